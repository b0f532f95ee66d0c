package health

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

const address = "10.0.0.1:80"

// steady takes the jitter out, so that a test can count seconds.
func steady() float64 { return 0.5 }

// start is a prober over a scripted network with checks, inside a bubble.
func start(t *testing.T, n *network, checks ...Check) *Prober {
	t.Helper()
	p := New(Options{Dial: n.dial, Rand: steady})
	t.Cleanup(p.Close)
	p.Set(byKey(checks...))
	return p
}

func byKey(checks ...Check) map[Key]Check {
	m := map[Key]Check{}
	for _, c := range checks {
		m[c.Key()] = c
	}
	return m
}

func stateOf(t *testing.T, p *Prober, c Check) State {
	t.Helper()
	synctest.Wait()
	s, known := p.Status(c.Key())
	if !known {
		t.Fatalf("no status for %s", c.Key())
	}
	return s.State
}

func wantState(t *testing.T, p *Prober, c Check, want State) {
	t.Helper()
	if got := stateOf(t, p, c); got != want {
		t.Fatalf("%s, want %s", got, want)
	}
}

// TestLife follows a backend that is up, dies and comes back, second by second.
func TestLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		n.set(address, ok)
		check := Check{Address: address, HTTP: &HTTP{}}
		began := time.Now()
		p := start(t, n, check)
		wantState(t, p, check, Up) // the first check is at once, and decides

		n.set(address, answer("HTTP/1.1 503 Busy\r\n\r\n"))
		time.Sleep(14 * time.Second) // failures at 5 s and 10 s
		wantState(t, p, check, Up)
		time.Sleep(time.Second) // and at 15 s
		wantState(t, p, check, Down)

		n.set(address, ok)
		time.Sleep(9 * time.Second) // a success at 20 s
		wantState(t, p, check, Down)
		time.Sleep(time.Second) // and at 25 s
		wantState(t, p, check, Up)

		got, _ := p.Status(check.Key())
		at := func(seconds int) time.Time { return began.Add(time.Duration(seconds) * time.Second) }
		want := Status{State: Up, Since: at(25), LastCheck: at(25), LastError: "status 503, want 2xx, 3xx", LastErrorTime: at(15), Transitions: []Transition{
			{At: at(0), State: Up}, {At: at(15), State: Down, Cause: "status 503, want 2xx, 3xx"}, {At: at(25), State: Up},
		}}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("got  %v\nwant %v", got, want)
		}
	})
}

// TestBlip is case A40: one failed check in three never takes a backend out.
func TestBlip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		n.set(address, ok)
		check := Check{Address: address}
		p := start(t, n, check)
		wantState(t, p, check, Up)
		for i := range 300 {
			n.set(address, ok)
			if i%3 == 0 {
				n.set(address, refuse)
			}
			time.Sleep(5 * time.Second)
			wantState(t, p, check, Up)
		}
		if s, _ := p.Status(check.Key()); s.LastError != "connect: connection refused" {
			t.Errorf("last error %q: the blips did not happen", s.LastError)
		}
	})
}

// TestA40Siblings: with a fall of 2, failures that are not in a row take nobody out, and two in a row do; with a rise of 3, two
// successes and a failure bring nobody back.
func TestA40Siblings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		n.set(address, ok)
		check := Check{Address: address, Fall: 2, Rise: 3}
		p := start(t, n, check)
		time.Sleep(time.Minute) // until it is decided it is asked every second
		wantState(t, p, check, Up)
		for _, step := range []struct {
			answers []behaviour
			want    State
		}{
			{[]behaviour{refuse, ok, refuse, ok}, Up},
			{[]behaviour{refuse, refuse}, Down},
			{[]behaviour{ok, ok, refuse, ok, ok}, Down},
			{[]behaviour{ok, ok, ok}, Up},
		} {
			for _, answer := range step.answers {
				n.set(address, answer)
				for asked := n.dialled(address); n.dialled(address) == asked; { // once, however the interval is jittered
					time.Sleep(100 * time.Millisecond)
				}
			}
			synctest.Wait()
			wantState(t, p, check, step.want)
		}
	})
}

// TestFirstDecisionIsFast: a backend that is dead at the start is out after fall checks at a second's distance, whatever
// the interval is.
func TestFirstDecisionIsFast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		n.set(address, refuse)
		check := Check{Address: address, Interval: time.Minute, Fall: 3}
		p := start(t, n, check)
		time.Sleep(1900 * time.Millisecond)
		wantState(t, p, check, Unknown)
		if !stateOf(t, p, check).Eligible() {
			t.Error("unknown is not eligible")
		}
		time.Sleep(200 * time.Millisecond)
		wantState(t, p, check, Down)
		before := n.dialled(address)
		time.Sleep(59 * time.Second)
		if n.dialled(address) != before {
			t.Error("still at the fast pace after the decision")
		}
	})
}

func TestFlipped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		var checks []Check
		for i := range 5 {
			checks = append(checks, Check{Address: fmt.Sprint("10.0.0.1:", i)})
			n.set(checks[i].Address, ok)
		}
		p := start(t, n, checks...)
		time.Sleep(time.Second)
		synctest.Wait()
		<-p.Flipped() // five flips, one slot
		select {
		case <-p.Flipped():
			t.Error("a second value for the same flips")
		default:
		}
		if got := p.TakeFlipped(); len(got) != 5 {
			t.Errorf("flipped: %v", got)
		}

		n.set(checks[3].Address, refuse)
		<-p.Flipped()
		if got := p.TakeFlipped(); !slices.Equal(got, []Key{checks[3].Key()}) {
			t.Errorf("flipped: %v", got)
		}
		if got := p.TakeFlipped(); len(got) != 0 {
			t.Errorf("flipped again: %v", got)
		}
	})
}

// TestSetKeepsState: what stays keeps its state and rhythm, what goes is asked no more.
func TestSetKeepsState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		n.set("a:1", refuse)
		n.set("b:1", ok)
		n.set("c:1", ok)
		a, b, c := Check{Address: "a:1"}, Check{Address: "b:1"}, Check{Address: "c:1"}
		p := start(t, n, a, b)
		time.Sleep(4 * time.Second)
		wantState(t, p, a, Down)
		asked := n.dialled("a:1")
		for range 50 {
			p.Set(byKey(a, b))
			wantState(t, p, a, Down)
		}
		if n.dialled("a:1") != asked {
			t.Error("a change of nothing started checks")
		}
		p.Set(byKey(a, c))
		wantState(t, p, a, Down)
		wantState(t, p, c, Up)
		if _, known := p.Status(b.Key()); known {
			t.Error("a removed check still has a status")
		}
		asked = n.dialled("b:1")
		time.Sleep(time.Minute)
		if n.dialled("b:1") != asked {
			t.Error("a removed check still runs")
		}
	})
}

// TestChangedCheckInheritsState: another path to the same dead backend does not put it back into service.
func TestChangedCheckInheritsState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		n.set(address, refuse)
		old := Check{Address: address, HTTP: &HTTP{Path: "/old"}, Interval: time.Minute}
		changed := Check{Address: address, HTTP: &HTTP{Path: "/new"}, Interval: time.Minute}
		p := start(t, n, old)
		time.Sleep(3 * time.Second)
		wantState(t, p, old, Down)
		p.TakeFlipped()

		p.Set(byKey(changed))
		wantState(t, p, changed, Down)
		if got := p.TakeFlipped(); !slices.Equal(got, []Key{changed.Key()}) {
			t.Errorf("the inherited state was not told: %v", got)
		}
		if s, _ := p.Status(changed.Key()); s.LastError == "" || len(s.Transitions) == 0 {
			t.Errorf("history was lost: %v", s)
		}
		n.set(address, ok)
		time.Sleep(2500 * time.Millisecond) // at the fast pace, though the interval is a minute
		wantState(t, p, changed, Up)
	})
}

// TestInheritFavoursTheBackend: of two checks that go, one that says up counts.
func TestInheritFavoursTheBackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		n.set(address, answer("HTTP/1.1 404 Not Found\r\n\r\n"))
		down, up, next := Check{Address: address, HTTP: &HTTP{}}, Check{Address: address}, Check{Address: address, Fall: 9}
		p := start(t, n, down, up)
		time.Sleep(3 * time.Second)
		wantState(t, p, down, Down)
		wantState(t, p, up, Up)
		n.set(address, refuse) // so that only inheritance can say up
		p.Set(byKey(next))
		wantState(t, p, next, Up)
	})
}

// TestRemoveWhileRunning: the result of a check that nobody wants any more changes nothing.
func TestRemoveWhileRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		n.set(address, blackHole)
		check := Check{Address: address, Fall: 1, Interval: 4 * time.Second, Timeout: time.Second}
		p := start(t, n, check)
		time.Sleep(500 * time.Millisecond)
		p.Set(nil)
		p.Set(byKey(check)) // the same key again, but another life, whose first check ends at 1.5 s
		time.Sleep(700 * time.Millisecond)
		if n.dialled(address) != 2 {
			t.Fatalf("%d checks began, want 2", n.dialled(address))
		}
		if got := p.TakeFlipped(); len(got) != 0 {
			t.Errorf("flipped: %v", got)
		}
		wantState(t, p, check, Unknown)
		time.Sleep(time.Second)
		wantState(t, p, check, Down)
	})
}

func TestSharedKey(t *testing.T) {
	a := Check{Address: address, HTTP: &HTTP{}}
	same := Check{
		Address: address, HTTP: &HTTP{Path: "/", Host: address, Expect: []string{"2xx", "3xx"}},
		Interval: 5 * time.Second, Timeout: time.Second, Rise: 2, Fall: 3,
		DownInterval: 5 * time.Second, Start: Up, Dial: netip.MustParseAddrPort("10.0.0.9:80"),
	}
	if a.Key() != same.Key() {
		t.Errorf("%s\n%s", a.Key(), same.Key())
	}
	for _, other := range []Check{
		{Address: "10.0.0.2:80", HTTP: &HTTP{}},
		{Address: address},
		{Address: address, HTTP: &HTTP{Path: "/x"}},
		{Address: address, HTTP: &HTTP{Host: "x"}},
		{Address: address, HTTP: &HTTP{Expect: []string{"200"}}},
		{Address: address, HTTP: &HTTP{Expect: []string{"2xx 3xx"}}},
		{Address: address, HTTP: &HTTP{}, Interval: time.Second},
		{Address: address, HTTP: &HTTP{}, Timeout: 2 * time.Second},
		{Address: address, HTTP: &HTTP{}, Rise: 1},
		{Address: address, HTTP: &HTTP{}, Fall: 1},
		{Address: address, HTTP: &HTTP{Method: "HEAD"}},
		{Address: address, HTTP: &HTTP{Headers: map[string]string{"A": "b"}}},
		{Address: address, HTTP: &HTTP{ExpectBody: "ok"}},
		{Address: address, HTTP: &HTTP{}, TLS: &TLS{}},
		{Address: address, HTTP: &HTTP{}, TLS: &TLS{Key: "a"}},
		{Address: address, HTTP: &HTTP{}, Port: 81},
		{Address: address, HTTP: &HTTP{}, DownInterval: time.Second},
		{Address: address, HTTP: &HTTP{}, Start: Down},
	} {
		if a.Key() == other.Key() {
			t.Errorf("one key for two checks: %s", a.Key())
		}
	}
	fields := func(value string) Key {
		return Check{Address: address, HTTP: &HTTP{Headers: map[string]string{"Authorization": value}}}.Key()
	}
	if fields("Bearer secret") == fields("Bearer other") || strings.Contains(string(fields("Bearer secret")), "secret") {
		t.Errorf("a field's value does not tell keys apart, or is in one: %s", fields("Bearer secret"))
	}
	if got := (Check{Address: address, Interval: time.Second}).complete().Timeout; got != 500*time.Millisecond {
		t.Errorf("timeout of a check every second: %s", got)
	}
}

func TestJitter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		n.set(address, ok)
		values := []float64{0, 0.999999}
		p := New(Options{Dial: n.dial, Rand: func() float64 { return values[n.dialled(address)%2] }})
		t.Cleanup(p.Close)
		p.Set(byKey(Check{Address: address, Interval: 10 * time.Second}))
		synctest.Wait()
		for i, gap := range []time.Duration{11, 9, 11, 9} {
			time.Sleep(gap*time.Second - 100*time.Millisecond)
			synctest.Wait()
			if got := n.dialled(address); got != i+1 {
				t.Fatalf("check %d came early", got)
			}
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
			if got := n.dialled(address); got != i+2 {
				t.Fatalf("check %d is late", i+2)
			}
		}
	})
}

// TestCloseInTheMiddle: checks that hang, in every phase, do not hold up Close.
func TestCloseInTheMiddle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		n.set("a:1", blackHole)
		n.set("b:1", accept)
		n.set("c:1", deaf)
		p := New(Options{Dial: n.dial, Rand: steady})
		p.Set(byKey(Check{Address: "a:1", HTTP: &HTTP{}}, Check{Address: "b:1", HTTP: &HTTP{}}, Check{Address: "c:1", HTTP: &HTTP{}}))
		time.Sleep(100 * time.Millisecond)
		began := time.Now()
		p.Close()
		if took := time.Since(began); took != 0 {
			t.Errorf("Close took %s", took)
		}
		if got := p.TakeFlipped(); len(got) != 0 {
			t.Errorf("Close flipped %v", got)
		}
		p.Set(byKey(Check{Address: "a:1"})) // too late, and harmless
		time.Sleep(time.Minute)
		if n.dialled("a:1") != 1 {
			t.Error("a check after Close")
		}
	})
}

// TestManyBackends: ten thousand are spread over the first second, checked at their interval, and cost one goroutine
// between checks.
func TestManyBackends(t *testing.T) {
	const backends = 10_000
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		checks := map[Key]Check{}
		for i := range backends {
			c := Check{Address: fmt.Sprintf("10.%d.%d.1:80", i/250, i%250), Interval: 10 * time.Second}
			checks[c.Key()] = c
			n.set(c.Address, refuse)
		}
		before := runtime.NumGoroutine()
		p := New(Options{Dial: n.dial})
		t.Cleanup(p.Close)
		p.Set(checks)
		time.Sleep(4 * time.Second)
		synctest.Wait()
		if got := runtime.NumGoroutine() - before; got > 10 {
			t.Errorf("%d goroutines between checks", got)
		}
		if got := len(p.TakeFlipped()); got != backends {
			t.Errorf("%d of %d decided after 4 s", got, backends)
		}
		time.Sleep(30 * time.Second)
		synctest.Wait()
		for address, dials := range n.dials {
			if dials < 5 || dials > 7 { // three at first, then one in 9 to 11 s
				t.Fatalf("%s was checked %d times", address, dials)
			}
		}
	})
}

// TestHangingBackends: sockets are bounded when thousands hang, and the healthy are still checked.
func TestHangingBackends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		checks := map[Key]Check{}
		for i := range checksRunningMax + 500 {
			c := Check{Address: fmt.Sprintf("10.0.%d.%d:80", i/250, i%250)}
			checks[c.Key()] = c
			n.set(c.Address, blackHole)
		}
		healthy := Check{Address: address + "80"}
		checks[healthy.Key()] = healthy
		n.set(healthy.Address, ok)
		p := New(Options{Dial: n.dial, Rand: steady})
		t.Cleanup(p.Close)
		p.Set(checks)
		time.Sleep(10 * time.Second)
		wantState(t, p, healthy, Up)
		if n.openMost != checksRunningMax {
			t.Errorf("%d sockets at once, want %d", n.openMost, checksRunningMax)
		}
		down := 0
		for key := range checks {
			if s, _ := p.Status(key); s.State == Down {
				down++
			}
		}
		if down != len(checks)-1 {
			t.Errorf("%d of %d hanging backends are down", down, len(checks)-1)
		}
	})
}

// TestStartIsSpread: a thousand new checks begin over a second, not at once; a few begin at once.
func TestStartIsSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		checks := map[Key]Check{}
		for i := range 1000 {
			c := Check{Address: fmt.Sprintf("10.0.%d.%d:80", i/250, i%250)}
			checks[c.Key()] = c
			n.set(c.Address, ok)
		}
		p := New(Options{Dial: n.dial, Rand: steady})
		t.Cleanup(p.Close)
		p.Set(checks)
		for begun := 0; begun < 1000; {
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
			n.mu.Lock()
			now := len(n.dials)
			n.mu.Unlock()
			if now-begun < 99 || now-begun > 101 {
				t.Fatalf("%d checks began within 100 ms, want 100", now-begun)
			}
			begun = now
		}
	})
}

// TestDownInterval: a backend that is down is asked at a pace of its own.
func TestDownInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		n.set(address, ok)
		check := Check{Address: address, Interval: 2 * time.Second, DownInterval: 30 * time.Second}
		p := start(t, n, check)
		wantState(t, p, check, Up)
		n.set(address, refuse)
		time.Sleep(6 * time.Second)
		wantState(t, p, check, Down)
		asked := n.dialled(address)
		n.set(address, ok)
		time.Sleep(59 * time.Second)
		if got := n.dialled(address) - asked; got != 1 {
			t.Errorf("%d checks in 59 s of being down, want 1", got)
		}
		wantState(t, p, check, Down)
		time.Sleep(time.Second)
		wantState(t, p, check, Up)
		asked = n.dialled(address)
		time.Sleep(9 * time.Second)
		if got := n.dialled(address) - asked; got != 4 {
			t.Errorf("%d checks in 9 s of being up, want 4", got)
		}
	})
}

// TestStartDown: a backend that starts down takes no requests before rise successes, which come at the fast pace.
func TestStartDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		n.set(address, ok)
		check := Check{Address: address, Start: Down, Rise: 3, Interval: time.Minute}
		p := start(t, n, check)
		if s, _ := p.Status(check.Key()); s.State != Down || s.LastError != startsDown || !s.LastErrorTime.Equal(s.Since) {
			t.Errorf("before the first check: %v", s)
		}
		<-p.Flipped()
		if got := p.TakeFlipped(); !slices.Equal(got, []Key{check.Key()}) {
			t.Errorf("flipped: %v", got)
		}
		time.Sleep(1900 * time.Millisecond)
		wantState(t, p, check, Down)
		time.Sleep(100 * time.Millisecond)
		wantState(t, p, check, Up)
		if s, _ := p.Status(check.Key()); s.LastError != "" || !s.LastErrorTime.IsZero() {
			t.Errorf("after: %v", s)
		}
	})
}

// TestMovedAddress: the address behind a name changes. The state stays, the new address is asked at once and decides soon, and
// what the old one still answers counts for nothing.
func TestMovedAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const name, before, after = "shop.internal:80", "10.0.0.1:80", "10.0.0.2:80"
		n := newNetwork()
		n.set(before, ok)
		n.set(after, refuse)
		check := Check{Address: name, Dial: netip.MustParseAddrPort(before), Interval: 20 * time.Second, Timeout: 3 * time.Second}
		p := start(t, n, check)
		wantState(t, p, check, Up)
		time.Sleep(time.Second)

		check.Dial = netip.MustParseAddrPort(after)
		p.Set(byKey(check))
		wantState(t, p, check, Up)
		if n.dialled(after) != 1 {
			t.Errorf("the new address was asked %d times at once", n.dialled(after))
		}
		time.Sleep(6 * time.Second) // at the fast pace, which is the timeout here
		wantState(t, p, check, Down)
		if n.dialled(before) != 1 || n.dialled(name) != 0 {
			t.Error("the old address or the name is asked")
		}

		n.set(after, blackHole)
		asked := n.dialled(after)
		for n.dialled(after) == asked {
			time.Sleep(time.Second)
			synctest.Wait()
		}
		n.set(before, ok)
		check.Dial = netip.MustParseAddrPort(before) // while a check of the other one hangs
		p.Set(byKey(check))
		time.Sleep(3100 * time.Millisecond)
		if s, _ := p.Status(check.Key()); n.dialled(before) != 2 || s.LastError != "connect: connection refused" {
			t.Errorf("%d checks of the address that is good again, %v", n.dialled(before), s)
		}
		wantState(t, p, check, Down) // one success of two
		time.Sleep(3 * time.Second)
		wantState(t, p, check, Up)
		p.Set(byKey(check))
		asked = n.dialled(before)
		synctest.Wait()
		if n.dialled(before) != asked {
			t.Error("an address that stays is asked out of turn")
		}
	})
}

// TestOnFlip has each change with where it came from and why, in order; a state that is taken over is none.
func TestOnFlip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		n.set(address, ok)
		check := Check{Address: address, Interval: time.Second, Timeout: 100 * time.Millisecond, Rise: 1, Fall: 2}
		began, want := time.Now(), check.Key()
		var got []string
		p := New(Options{Dial: n.dial, Rand: steady, OnFlip: func(key Key, from, to State, err string, at time.Time) {
			if key != want {
				t.Errorf("key %s", key)
			}
			got = append(got, fmt.Sprintf("%s %s to %s %q", at.Sub(began), from, to, err))
		}})
		t.Cleanup(p.Close)
		p.Set(byKey(check))
		time.Sleep(500 * time.Millisecond)
		n.set(address, refuse)
		time.Sleep(3 * time.Second)
		n.set(address, ok)
		time.Sleep(time.Second)
		check.Fall = 3
		p.Set(byKey(check))
		time.Sleep(100 * time.Millisecond)
		p.Close()
		flips := []string{`0s UNKNOWN to UP ""`, `2s UP to DOWN "connect: connection refused"`, `4s DOWN to UP ""`}
		if !slices.Equal(got, flips) {
			t.Errorf("got  %v\nwant %v", got, flips)
		}
	})
}

func TestTransitionsAreBounded(t *testing.T) {
	b := newProbe("", Check{Address: address, Rise: 1, Fall: 1}.complete(), time.Unix(0, 0))
	for i := range 21 {
		var err error
		if i%2 == 1 {
			err = errors.New("down")
		}
		if !b.observe(err, time.Unix(int64(i), 0)) {
			t.Fatal("did not flip")
		}
	}
	got := b.status().Transitions
	if len(got) != transitionsMax || got[0].At.Unix() != 13 || got[7].At.Unix() != 20 || got[7].State != Up || got[6].Cause != "down" {
		t.Errorf("%v", got)
	}
	got[0].Cause = "changed by a reader"
	if b.status().Transitions[0].Cause == got[0].Cause {
		t.Error("a status shares memory with the prober")
	}
}

// TestRealServer has the default dialer, the kernel and goleak in place of a bubble.
func TestRealServer(t *testing.T) {
	defer goleak.VerifyNone(t)
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	p := New(Options{})
	defer p.Close()
	up := Check{Address: strings.TrimPrefix(server.URL, "http://"), HTTP: &HTTP{Expect: []string{"404"}}}
	down := Check{Address: up.Address, HTTP: &HTTP{}, Fall: 1}
	p.Set(byKey(up, down))
	flipped := map[Key]bool{}
	for len(flipped) < 2 {
		<-p.Flipped()
		for _, key := range p.TakeFlipped() {
			flipped[key] = true
		}
	}
	if s, _ := p.Status(up.Key()); s.State != Up {
		t.Errorf("%v", s)
	}
	if s, _ := p.Status(down.Key()); s.State != Down || s.LastError != "status 404, want 2xx, 3xx" {
		t.Errorf("%v", s)
	}
}
