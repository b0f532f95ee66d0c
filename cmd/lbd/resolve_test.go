package main

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"lbd/cluster/state"
)

// names is a resolver's world: what each host answers, and how long that takes.
type names struct {
	mu      sync.Mutex
	answers map[string][]netip.Addr
	delay   time.Duration
	asked   int
}

func (n *names) set(host string, ips ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []netip.Addr
	for _, ip := range ips {
		all = append(all, netip.MustParseAddr(ip))
	}
	n.answers[host] = all
}

func (n *names) lookup(ctx context.Context, _, host string) ([]netip.Addr, error) {
	n.mu.Lock()
	n.asked++
	answer, delay := n.answers[host], n.delay
	n.mu.Unlock()
	select {
	case <-time.After(delay):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if answer == nil {
		return nil, errors.New("no such host")
	}
	return answer, nil
}

// questions is how many were asked so far.
func (n *names) questions() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.asked
}

func resolving(t *testing.T, test func(t *testing.T, r *resolver, world *names)) {
	synctest.Test(t, func(t *testing.T) {
		world := &names{answers: map[string][]netip.Addr{}}
		r := newResolverWith(world.lookup, slog.New(slog.DiscardHandler))
		defer r.close()
		test(t, r, world)
	})
}

func wants(t *testing.T, r *resolver, name, want string) {
	t.Helper()
	got := r.address(name)
	if want == "" && got.IsValid() || want != "" && got != netip.MustParseAddrPort(want) {
		t.Errorf("%s is at %v, want %q", name, got, want)
	}
}

// moves reports whether the appliance was woken.
func moves(r *resolver) bool {
	synctest.Wait()
	select {
	case <-r.moved:
		return true
	default:
		return false
	}
}

func TestResolverLiteral(t *testing.T) {
	resolving(t, func(t *testing.T, r *resolver, world *names) {
		r.keep(map[string]bool{"10.0.0.1:80": true, "[2001:db8::1]:443": true}, rules{})
		wants(t, r, "10.0.0.1:80", "10.0.0.1:80")
		wants(t, r, "[2001:db8::1]:443", "[2001:db8::1]:443")
		if n := world.questions(); n != 0 {
			t.Errorf("%d questions for addresses", n)
		}
	})
}

func TestResolverAnswersAtOnce(t *testing.T) {
	resolving(t, func(t *testing.T, r *resolver, world *names) {
		world.set("b.test", "2001:db8::1", "10.0.0.9", "10.0.0.2")
		r.keep(map[string]bool{"b.test:80": true}, rules{})
		wants(t, r, "b.test:80", "10.0.0.2:80")
		if moves(r) {
			t.Error("woken for an answer that keep has waited for")
		}
		if p := r.problem("b.test:80"); p != "" {
			t.Errorf("problem %q", p)
		}
		world.set("b.test", "10.0.0.2", "10.0.0.9", "2001:db8::1")
		time.Sleep(2 * resolveInterval)
		if moves(r) {
			t.Error("the same addresses in another order are a change")
		}
	})
}

// A working resolver that is slow must not hold a publish up, and its answer must not wait for the next round.
func TestResolverAnswersLate(t *testing.T) {
	resolving(t, func(t *testing.T, r *resolver, world *names) {
		world.set("b.test", "10.0.0.1")
		world.delay = 2 * time.Second
		start := time.Now()
		r.keep(map[string]bool{"b.test:80": true}, rules{})
		if took := time.Since(start); took != resolveWait {
			t.Errorf("keep waited %v, want %v", took, resolveWait)
		}
		wants(t, r, "b.test:80", "")
		if p := r.problem("b.test:80"); p == "" {
			t.Error("a name without an answer is no problem")
		}
		time.Sleep(world.delay)
		if !moves(r) {
			t.Error("a late answer wakes nobody")
		}
		wants(t, r, "b.test:80", "10.0.0.1:80")
	})
}

func TestResolverKeepsTheLastGoodAnswer(t *testing.T) {
	resolving(t, func(t *testing.T, r *resolver, world *names) {
		world.set("b.test", "10.0.0.1")
		r.keep(map[string]bool{"b.test:80": true}, rules{})
		world.set("b.test")
		time.Sleep(resolveInterval + resolveRetry)
		if moves(r) {
			t.Error("a failure is a change")
		}
		wants(t, r, "b.test:80", "10.0.0.1:80")
		if p := r.problem("b.test:80"); p != "resolve: no such host" {
			t.Errorf("problem %q", p)
		}
		world.set("b.test", "10.0.0.2")
		time.Sleep(resolveInterval + resolveRetry)
		if !moves(r) {
			t.Error("a new address wakes nobody")
		}
		wants(t, r, "b.test:80", "10.0.0.2:80")
		if p := r.problem("b.test:80"); p != "" {
			t.Errorf("problem %q after a good answer", p)
		}
	})
}

// A backend that has never had an address takes no requests: it is not left waiting for the ordinary interval.
func TestResolverRetriesWhatHasNoAnswer(t *testing.T) {
	resolving(t, func(t *testing.T, r *resolver, world *names) {
		r.keep(map[string]bool{"b.test:80": true}, rules{})
		if p := r.problem("b.test:80"); p != "resolve: no such host" {
			t.Errorf("problem %q", p)
		}
		world.set("b.test", "10.0.0.1")
		time.Sleep(resolveRetry + time.Second)
		if !moves(r) {
			t.Error("not asked again within the retry interval")
		}
		wants(t, r, "b.test:80", "10.0.0.1:80")
	})
}

func TestResolverForgets(t *testing.T) {
	resolving(t, func(t *testing.T, r *resolver, world *names) {
		world.set("b.test", "10.0.0.1")
		r.keep(map[string]bool{"b.test:80": true}, rules{})
		r.keep(map[string]bool{}, rules{})
		asked := world.questions()
		time.Sleep(2 * resolveInterval)
		synctest.Wait()
		if world.questions() != asked {
			t.Error("a name that nobody uses is asked for")
		}
		wants(t, r, "b.test:80", "")
	})
}

func TestResolverBoundsQuestions(t *testing.T) {
	resolving(t, func(t *testing.T, r *resolver, world *names) {
		world.delay = resolveTimeout // every one of them takes a whole time-out
		all := map[string]bool{}
		for i := range 2 * resolveAtOnceMax {
			all[string(rune('a'+i))+".test:80"] = true
		}
		r.keep(all, rules{})
		if n := world.questions(); n != resolveAtOnceMax {
			t.Errorf("%d questions at once, want %d", n, resolveAtOnceMax)
		}
	})
}

// TestResolverForbidden: a name may not lead where a document may not point.
func TestResolverForbidden(t *testing.T) {
	resolving(t, func(t *testing.T, r *resolver, world *names) {
		in := map[string]bool{"b.test:80": true}
		world.set("b.test", "127.0.0.1", "10.0.0.7")
		r.keep(in, rules{})
		wants(t, r, "b.test:80", "10.0.0.7:80")

		world.set("b.test", "127.0.0.1", "::ffff:127.0.0.2", "169.254.1.1")
		time.Sleep(2 * resolveInterval)
		wants(t, r, "b.test:80", "10.0.0.7:80") // the last good answer stays
		if p := r.problem("b.test:80"); !strings.Contains(p, "127.0.0.1") {
			t.Errorf("problem %q does not name the answer", p)
		}

		r.keep(in, rules{Settings: state.Settings{AllowLoopbackBackends: true}})
		if !moves(r) {
			t.Error("an allowed answer wakes nobody")
		}
		wants(t, r, "b.test:80", "127.0.0.1:80")

		r.keep(in, rules{})
		if !moves(r) {
			t.Error("a forbidden address wakes nobody")
		}
		wants(t, r, "b.test:80", "")
	})
}
