package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	lbdv1 "lbd/proto/lbd/v1"
)

// services are the SRV records of a resolver's world.
type services struct {
	mu      sync.Mutex
	targets map[string][]*net.SRV
}

func (s *services) set(name string, targets ...*net.SRV) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.targets = map[string][]*net.SRV{name: targets}
}

func (s *services) lookup(_ context.Context, name string) ([]*net.SRV, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.targets[name] == nil {
		return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
	}
	return s.targets[name], nil
}

// found says where a discovery leads, as "address weight", and "backup" after those that are.
func found(r *resolver, question string) string {
	q, _ := parseQuestion(question)
	var all []string
	for _, d := range r.discovered(q) {
		text := fmt.Sprint(d.addr, " ", d.weight)
		if d.backup {
			text += " backup"
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

func finds(t *testing.T, r *resolver, question, want string) {
	t.Helper()
	if got := found(r, question); got != want {
		t.Errorf("%s leads to %q, want %q", question, got, want)
	}
}

// later lets every name be asked once more.
func later() { time.Sleep(resolveInterval + resolveRetry) }

func TestQuestionText(t *testing.T) {
	for _, q := range []question{
		{host: "b.test", port: 80}, {kind: allAddresses, host: "b.test", port: 65535}, {kind: service, host: "_http._tcp.b.test"},
		discoveryOf(&lbdv1.Discovery{Host: "b.test", Port: 80}), discoveryOf(&lbdv1.Discovery{Srv: "_http._tcp.b.test"}),
		{host: "b.test", port: 80, within: "shop"}, {kind: allAddresses, host: "2001:db8::1", port: 1, within: "shop"}, {kind: service, host: "_http._tcp.b.test", within: "shop"},
	} {
		if back, ok := parseQuestion(q.String()); !ok || back != q {
			t.Errorf("%+v is written %q, which is read as %+v", q, q, back)
		}
	}
	for _, bad := range []string{"b.test", "b.test:x", "b.test:65536", "all b.test"} {
		if q, ok := parseQuestion(bad); ok {
			t.Errorf("%q is read as %+v", bad, q)
		}
	}
}

func TestDiscoverAll(t *testing.T) {
	resolving(t, func(t *testing.T, r *resolver, world *names) {
		const q = "all b.test:80"
		in := map[string]bool{q: true}
		world.set("b.test", "2001:db8::1", "10.0.0.2", "10.0.0.1", "10.0.0.2")
		r.keep(in, rules{})
		finds(t, r, q, "10.0.0.1:80 1, 10.0.0.2:80 1, [2001:db8::1]:80 1")

		world.set("b.test", "10.0.0.1", "10.0.0.3", "127.0.0.1", "0.0.0.0", "224.0.0.1", "::ffff:127.0.0.1")
		later()
		finds(t, r, q, "10.0.0.1:80 1, 10.0.0.3:80 1") // what is forbidden is left out
		if !moves(r) {
			t.Error("another answer wakes nobody")
		}

		world.set("b.test", "127.0.0.1") // all of it is forbidden: the last good answer stays, and somebody says so
		later()
		finds(t, r, q, "10.0.0.1:80 1, 10.0.0.3:80 1")
		if p := r.problem(q); !strings.Contains(p, "127.0.0.1") {
			t.Errorf("problem %q", p)
		}
		world.set("b.test") // gone
		later()
		finds(t, r, q, "10.0.0.1:80 1, 10.0.0.3:80 1")
		if p := r.problem(q); !strings.Contains(p, "no such host") {
			t.Errorf("problem %q", p)
		}

		var many []string
		for i := range discoveredMax + 50 {
			many = append(many, netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}).String())
		}
		world.set("b.test", many...)
		later()
		if n := len(strings.Split(found(r, q), ", ")); n != discoveredMax {
			t.Errorf("%d backends, want %d", n, discoveredMax)
		}
	})
}

// TestDiscoverOurselves: a name that leads to a listener of this node would send requests in circles.
func TestDiscoverOurselves(t *testing.T) {
	resolving(t, func(t *testing.T, r *resolver, world *names) {
		const q = "all b.test:443"
		in := map[string]bool{q: true, "c.test:8443": true}
		r.local = func(ip netip.Addr) bool { return ip == netip.MustParseAddr("10.0.0.5") }
		world.set("b.test", "10.0.0.1", "10.0.0.5", "10.0.0.7")
		world.set("c.test", "10.0.0.5", "10.0.0.7")
		r.keep(in, rules{own: []netip.AddrPort{netip.MustParseAddrPort("[::]:443"), netip.MustParseAddrPort("10.0.0.7:8443")}})
		finds(t, r, q, "10.0.0.1:443 1, 10.0.0.7:443 1")
		wants(t, r, "c.test:8443", "10.0.0.5:8443")
		world.set("c.test", "10.0.0.7")
		later()
		if p := r.problem("c.test:8443"); !strings.Contains(p, "a listener of this node") || !strings.Contains(p, "10.0.0.7") {
			t.Errorf("problem %q", p)
		}
		r.keep(in, rules{own: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:443")}}) // the listeners have moved
		synctest.Wait()
		finds(t, r, q, "10.0.0.5:443 1, 10.0.0.7:443 1")
		wants(t, r, "c.test:8443", "10.0.0.7:8443")
	})
}

func TestIsLocal(t *testing.T) {
	if !isLocal(netip.MustParseAddr("127.0.0.1")) || isLocal(netip.MustParseAddr("192.0.2.77")) {
		t.Error("an address is taken for what it is not")
	}
}

func TestPlacesOfListeners(t *testing.T) {
	c := newCompiled()
	c.listeners["a"] = compiledListener(t, stored(t, 1, httpListener("a", ":80", "[2001:db8::1]:81", "0.0.0.0:82")), "")
	c.listeners["b"] = compiledListener(t, stored(t, 1, httpListener("b", ":80")), "127.0.0.1:0")
	if got := fmt.Sprint(c.places()); got != "[0.0.0.0:82 [::]:80 [2001:db8::1]:81]" {
		t.Errorf("places %s", got)
	}
}

func TestDiscoverService(t *testing.T) {
	resolving(t, func(t *testing.T, r *resolver, world *names) {
		const q = "srv _http._tcp.b.test"
		in := map[string]bool{q: true}
		srv := &services{}
		r.srv = srv.lookup
		world.set("one.test", "10.0.0.1")
		world.set("two.test", "10.0.0.2", "10.0.0.3")
		world.set("old.test", "10.0.0.9")
		srv.set("_http._tcp.b.test",
			&net.SRV{Target: "one.test.", Port: 8080, Priority: 10, Weight: 60000},
			&net.SRV{Target: "two.test.", Port: 81, Priority: 10, Weight: 0},
			&net.SRV{Target: "old.test.", Port: 82, Priority: 20, Weight: 5})
		r.keep(in, rules{})
		const all = "10.0.0.1:8080 256, 10.0.0.2:81 1, 10.0.0.3:81 1, 10.0.0.9:82 5 backup"
		finds(t, r, q, all)

		srv.set("_http._tcp.b.test", &net.SRV{Target: "one.test.", Port: 8080, Priority: 30, Weight: 7})
		later()
		finds(t, r, q, "10.0.0.1:8080 7") // the lowest priority is what there is, whatever its number

		srv.set("_http._tcp.b.test", &net.SRV{Target: ".", Port: 0}) // "decidedly not available", RFC 2782
		later()
		finds(t, r, q, "10.0.0.1:8080 7")
		if p := r.problem(q); p == "" {
			t.Error("a service that is not to be had is no problem")
		}
	})
}

// A target whose address cannot be asked for now is not gone: to take its backends out would turn an overloaded DNS server into
// lost capacity. One that does not exist is.
func TestDiscoverServiceInPart(t *testing.T) {
	resolving(t, func(t *testing.T, r *resolver, _ *names) {
		const q = "srv _http._tcp.b.test"
		srv := &services{}
		srv.set("_http._tcp.b.test",
			&net.SRV{Target: "one.test.", Port: 80, Weight: 1}, &net.SRV{Target: "two.test.", Port: 80, Weight: 1})
		var mu sync.Mutex
		fault := error(nil)
		fails := func(err error) {
			mu.Lock()
			defer mu.Unlock()
			fault = err
		}
		r.srv = srv.lookup
		r.lookup = func(_ context.Context, _, host string) ([]netip.Addr, error) {
			mu.Lock()
			defer mu.Unlock()
			if host == "one.test" {
				return []netip.Addr{netip.MustParseAddr("10.0.0.1")}, nil
			}
			return []netip.Addr{netip.MustParseAddr("10.0.0.2")}, fault
		}
		fails(&net.DNSError{Err: "server misbehaving", IsTemporary: true})
		r.keep(map[string]bool{q: true}, rules{})
		finds(t, r, q, "10.0.0.1:80 1") // some are better than none
		if p := r.problem(q); !strings.Contains(p, "misbehaving") {
			t.Errorf("problem %q", p)
		}
		fails(nil)
		later()
		finds(t, r, q, "10.0.0.1:80 1, 10.0.0.2:80 1")
		fails(errors.New("i/o timeout"))
		later()
		finds(t, r, q, "10.0.0.1:80 1, 10.0.0.2:80 1")
		fails(&net.DNSError{Err: "no such host", IsNotFound: true})
		later()
		finds(t, r, q, "10.0.0.1:80 1")
		if p := r.problem(q); p != "" {
			t.Errorf("problem %q", p)
		}
	})
}

// TestDiscoveredBackends: a pool follows its discovery, its overrides follow their addresses, and a discovery that fails is said.
func TestDiscoveredBackends(t *testing.T) {
	r := newRig(t)
	world := &names{answers: map[string][]netip.Addr{}}
	r.resolver.lookup = world.lookup
	r.propose(&lbdv1.Pool{Name: "found", Discovery: &lbdv1.Discovery{Host: "b.test", Port: 80}})
	r.publish()
	if c := r.Conditions("pools", "found")[1]; c.GetStatus() || !strings.Contains(c.GetMessage(), "discovery of b.test: resolve: no such host") {
		t.Errorf("condition %v", c)
	}
	if !slices.ContainsFunc(r.Status().GetProblems(), func(p string) bool { return strings.Contains(p, "pools/found: discovery of b.test") }) {
		t.Errorf("problems %q", r.Status().GetProblems())
	}

	world.set("b.test", "10.0.0.1", "10.0.0.2")
	r.resolver.ask(r.resolver.due(true), r.resolver.wake)
	r.followNames()
	r.override(&lbdv1.Override{Pool: "found", Address: "10.0.0.2:80", What: &lbdv1.Override_Weight{Weight: 0}})
	r.publish()
	weights := func() string {
		var all []string
		for _, b := range r.Backends("found") {
			all = append(all, fmt.Sprint(b.GetAddress(), " ", b.GetWeight()))
		}
		return strings.Join(all, ", ")
	}
	if got := weights(); got != "10.0.0.1:80 1, 10.0.0.2:80 0" {
		t.Errorf("backends %s", got)
	}
	world.set("b.test", "10.0.0.2", "10.0.0.3")
	r.resolver.ask(r.resolver.due(true), r.resolver.wake)
	r.followNames()
	if got := weights(); got != "10.0.0.2:80 0, 10.0.0.3:80 1" {
		t.Errorf("backends %s", got)
	}
	before := r.view.Load()
	r.followNames()
	if r.view.Load() != before {
		t.Error("names that have not moved make a new form")
	}
}
