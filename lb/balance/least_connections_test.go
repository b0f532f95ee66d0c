package balance

import (
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// someLoads draws weights and as many loads.
func someLoads(t *rapid.T) ([]int, []*Load) {
	weights := rapid.SliceOfN(rapid.IntRange(1, 256), 1, 20).Draw(t, "weights")
	loads := make([]*Load, len(weights))
	for i := range loads {
		loads[i] = &Load{}
		loads[i].InFlight.Store(int64(rapid.IntRange(0, 50).Draw(t, "in flight")))
	}
	return weights, loads
}

// TestLeastConnectionsPicksTheLeast: for its weight nobody had a whole request less.
func TestLeastConnectionsPicksTheLeast(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		weights, loads := someLoads(t)
		picked := NewLeastConnections(weights, loads).Pick(&Request{Random: rapid.Uint64().Draw(t, "random")})
		score := float64(loads[picked].InFlight.Load()) / float64(weights[picked])
		for i, w := range weights {
			if other := float64(loads[i].InFlight.Load()+1) / float64(w); other < score {
				t.Fatalf("picked %d at %.3f, but %d is at less than %.3f", picked, score, i, other)
			}
		}
	})
}

// TestLeastConnectionsEqualWeights: the least loaded is picked, whatever the dice say.
func TestLeastConnectionsEqualWeights(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		_, loads := someLoads(t)
		weights := make([]int, len(loads))
		least := loads[0].InFlight.Load()
		for i := range weights {
			weights[i] = 7
			least = min(least, loads[i].InFlight.Load())
		}
		picked := NewLeastConnections(weights, loads).Pick(&Request{Random: rapid.Uint64().Draw(t, "random")})
		if got := loads[picked].InFlight.Load(); got != least {
			t.Fatalf("picked %d with %d in flight; the least is %d", picked, got, least)
		}
	})
}

// TestLeastConnectionsShares: when as many requests are held as 40 for each unit of weight, each holds its share.
func TestLeastConnectionsShares(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		weights := rapid.SliceOfN(rapid.IntRange(1, 5), 1, 10).Draw(t, "weights")
		loads := newLoads(len(weights))
		l, sum := NewLeastConnections(weights, loads), 0
		for _, w := range weights {
			sum += w
		}
		for range 40 * sum {
			loads[l.Pick(&Request{Random: rand.Uint64()})].InFlight.Add(1)
		}
		for i, w := range weights {
			if got, want := loads[i].InFlight.Load(), int64(40*w); got < want-2 || got > want+2 {
				t.Fatalf("%v: backend %d holds %d, want %d", weights, i, got, want)
			}
		}
	})
}

// TestLeastConnectionsTies: idle backends of one weight get the same number of requests, within what chance allows.
func TestLeastConnectionsTies(t *testing.T) {
	l := NewLeastConnections([]int{1, 1, 1, 1}, newLoads(4))
	within(t, draws(l, 4, 40_000), []float64{0.25, 0.25, 0.25, 0.25}, 40_000)
}

func newLoads(n int) []*Load {
	loads := make([]*Load, n)
	for i := range loads {
		loads[i] = &Load{}
	}
	return loads
}

// draws counts the picks of n requests with fixed dice.
func draws(p Policy, backends, n int) []int {
	dice, got := rand.New(rand.NewPCG(1, 2)), make([]int, backends)
	for range n {
		got[p.Pick(&Request{Random: dice.Uint64(), Hash: dice.Uint64(), Now: 1})]++
	}
	return got
}

// within checks counts against their shares: a binomial count is farther than five deviations from its mean once in two
// million times, and the dice are fixed.
func within(t *testing.T, got []int, shares []float64, n int) {
	t.Helper()
	for i, share := range shares {
		if far := deviations(got[i], n, share); far > 5 {
			t.Errorf("index %d: %d of %d, want a share of %.4f: %.1f deviations off", i, got[i], n, share, far)
		}
	}
}

func TestLeastConnectionsAvoids(t *testing.T) {
	avoiding(t, func(weights []int, loads []*Load) Policy { return NewLeastConnections(weights, loads) })
}

// avoiding: no policy picks what has failed as long as there is another, and each still picks somebody where there is none.
func avoiding(t *testing.T, policy func([]int, []*Load) Policy) {
	t.Helper()
	rapid.Check(t, func(t *rapid.T) {
		weights, loads := someLoads(t)
		var avoid []int
		for i := range weights {
			if rapid.Bool().Draw(t, "avoid") {
				avoid = append(avoid, i)
			}
		}
		r := &Request{
			Turn: rapid.Uint64().Draw(t, "turn"), Random: rapid.Uint64().Draw(t, "random"), Hash: rapid.Uint64().Draw(t, "hash"),
			Avoid: avoid,
		}
		picked := policy(weights, loads).Pick(r)
		if picked < 0 || picked >= len(weights) {
			t.Fatalf("picked %d of %d", picked, len(weights))
		}
		if r.avoids(picked) && len(avoid) < len(weights) {
			t.Fatalf("picked %d, avoiding %v of %d", picked, avoid, len(weights))
		}
	})
}
