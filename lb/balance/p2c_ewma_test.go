package balance

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// deviations is how far a binomial count is from its mean, in standard deviations.
func deviations(got, n int, share float64) float64 {
	return math.Abs(float64(got)-float64(n)*share) / max(math.Sqrt(float64(n)*share*(1-share)), 1e-9)
}

// TestP2CIdleShares: where all answer alike and nothing is in flight, the draw by weight decides.
func TestP2CIdleShares(t *testing.T) {
	weights := []int{1, 2, 3, 10, 4}
	const n = 100_000
	shares := make([]float64, len(weights))
	for i, w := range weights {
		shares[i] = float64(w) / 20
	}
	within(t, draws(NewP2CEWMA(weights, newLoads(5)), 5, n), shares, n)
}

// TestP2CShares: under load each holds its share, roughly: two draws do not find the least loaded every time.
func TestP2CShares(t *testing.T) {
	weights := []int{1, 2, 4, 1}
	loads := newLoads(len(weights))
	p, dice := NewP2CEWMA(weights, loads), rand.New(rand.NewPCG(3, 4))
	const held = 800
	for range held {
		loads[p.Pick(&Request{Random: dice.Uint64()})].InFlight.Add(1)
	}
	for i, w := range weights {
		got, want := float64(loads[i].InFlight.Load()), float64(held*w/8)
		if got < 0.9*want || got > 1.1*want {
			t.Errorf("backend %d of weight %d holds %.0f, want %.0f", i, w, got, want)
		}
	}
}

// TestP2CPrefersTheFaster: one that takes ten times as long gets what is left over, and is tried again once the memory fades.
func TestP2CPrefersTheFaster(t *testing.T) {
	loads := newLoads(3)
	for i, ms := range []int{10, 100, 10} {
		loads[i].Observe(time.Duration(ms)*time.Millisecond, 1)
	}
	p := NewP2CEWMA([]int{1, 1, 1}, loads)
	if got := draws(p, 3, 1000); got[1] != 0 {
		t.Errorf("the slow one got %d of 1000", got[1])
	}
	later := int64(1 + 9_500)
	for at := int64(1); at <= later; at += 100 {
		loads[0].Observe(10*time.Millisecond, at)
		loads[2].Observe(10*time.Millisecond, at)
	}
	seen := false
	for i := range uint64(100) {
		seen = seen || p.Pick(&Request{Random: i, Now: later}) == 1
	}
	if !seen {
		t.Error("it is not tried again")
	}
}

// TestP2CUnknownLatency: a backend without a measurement wins by its requests in flight alone.
func TestP2CUnknownLatency(t *testing.T) {
	loads := newLoads(2)
	loads[0].Observe(time.Second, 1)
	loads[0].InFlight.Store(3)
	loads[1].InFlight.Store(4)
	if got := draws(NewP2CEWMA([]int{1, 1}, loads), 2, 100); got[1] != 0 {
		t.Errorf("the unknown, more loaded one got %d of 100", got[1])
	}
}

func TestP2CAvoids(t *testing.T) {
	avoiding(t, func(weights []int, loads []*Load) Policy { return NewP2CEWMA(weights, loads) })
}

// TestP2CDrawsTwo: the two are always different where there are two, so the better of two is always found.
func TestP2CDrawsTwo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		weights := []int{rapid.IntRange(1, 256).Draw(t, "a"), rapid.IntRange(1, 256).Draw(t, "b")}
		loads := newLoads(2)
		loads[0].InFlight.Store(1_000_000)
		if got := NewP2CEWMA(weights, loads).Pick(&Request{Random: rapid.Uint64().Draw(t, "random")}); got != 1 {
			t.Fatal("the one with a million in flight was picked")
		}
	})
}

// TestObserve: the average is one of time, not of numbers.
func TestObserve(t *testing.T) {
	var l Load
	if l.Latency() != 0 {
		t.Error("a latency from nowhere")
	}
	l.Observe(100*time.Millisecond, 5)
	if got := l.Latency(); got != 100*time.Millisecond {
		t.Errorf("the first: %v", got)
	}
	for ms := range int64(10_000) {
		l.Observe(200*time.Millisecond, 5+ms) // for one memory's time
	}
	want := 200 - 100/math.E
	if got := float64(l.Latency()) / 1e6; math.Abs(got-want) > 1 {
		t.Errorf("after 10 s of 200 ms: %.1f ms, want %.1f", got, want)
	}
	before := l.Latency()
	l.Observe(time.Hour, 1) // the clock was set back
	if l.Latency() != before {
		t.Errorf("a clock that was set back: %v", l.Latency())
	}
}

// TestFail: errors at once do not look like answers at once, and one error alone is no verdict.
func TestFail(t *testing.T) {
	var l Load
	l.Fail(1)
	if got := l.Latency(); got > 20*time.Millisecond {
		t.Errorf("after one error: %v", got)
	}
	for ms := range int64(2000) {
		l.Fail(1 + ms)
	}
	if got := l.Latency(); got < 150*time.Millisecond {
		t.Errorf("after two seconds of errors: %v", got)
	}
	l.Forget()
	if l.Latency() != 0 {
		t.Error("not forgotten")
	}
}

// TestObserveWraps: 32 bits of milliseconds wrap every 49 days.
func TestObserveWraps(t *testing.T) {
	var l Load
	wrap := int64(1) << 32
	l.Observe(time.Second, wrap-5000)
	if got := l.expected(wrap); math.Abs(got-0.5e9) > 1e6 {
		t.Errorf("5 s later: %.0f ns, want half", got)
	}
	if got := l.expected(wrap + 6000); got != 0 {
		t.Errorf("11 s later: %.0f ns", got)
	}
}
