package main

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"

	lbdv1 "lbd/proto/lbd/v1"
)

// TestResolverBounds: of an owner that has bounds a name leads nowhere else, whatever DNS says later.
func TestResolverBounds(t *testing.T) {
	resolving(t, func(t *testing.T, r *resolver, world *names) {
		const free, bound, all = "b.test:80", "b.test:80 for shop", "all b.test:80 for shop"
		inside := map[string][]netip.Prefix{"shop": {netip.MustParsePrefix("10.1.0.0/16")}, "blog": {netip.MustParsePrefix("10.9.0.0/16")}}
		world.set("b.test", "10.0.0.1", "10.1.0.7", "10.1.0.8")
		r.keep(map[string]bool{free: true, bound: true, all: true}, rules{bounds: inside})
		wants(t, r, free, "10.0.0.1:80")
		wants(t, r, bound, "10.1.0.7:80")
		finds(t, r, all, "10.1.0.7:80 1, 10.1.0.8:80 1")

		// An answer outside of them: the last good one stays, and somebody says so.
		world.set("b.test", "10.0.0.1")
		later()
		wants(t, r, bound, "10.1.0.7:80")
		if p := r.problem(bound); !strings.Contains(p, "10.0.0.1") || !strings.Contains(p, "the owner's bounds") {
			t.Errorf("problem %q", p)
		}

		// Narrower bounds hold at once, also for what was good before.
		r.keep(map[string]bool{free: true, bound: true, all: true}, rules{bounds: map[string][]netip.Prefix{"shop": {netip.MustParsePrefix("10.1.0.8/32")}}})
		if !moves(r) {
			t.Error("narrower bounds wake nobody")
		}
		wants(t, r, bound, "")
		wants(t, r, free, "10.0.0.1:80")
	})
}

// TestResolverNewBounds: a name that is asked for anew because of bounds keeps its address as long as DNS does not answer.
func TestResolverNewBounds(t *testing.T) {
	resolving(t, func(t *testing.T, r *resolver, world *names) {
		world.set("b.test", "10.1.0.7")
		world.set("c.test", "10.0.0.1")
		r.keep(map[string]bool{"b.test:80": true, "c.test:80": true}, rules{})
		wants(t, r, "b.test:80", "10.1.0.7:80")
		world.set("b.test") // gone
		world.set("c.test")
		bounds := map[string][]netip.Prefix{"shop": {netip.MustParsePrefix("10.1.0.0/16")}}
		r.keep(map[string]bool{"b.test:80 for shop": true, "c.test:80 for shop": true}, rules{bounds: bounds})
		wants(t, r, "b.test:80 for shop", "10.1.0.7:80")
		wants(t, r, "c.test:80 for shop", "") // that is outside
		r.keep(map[string]bool{"b.test:80": true}, rules{})
		wants(t, r, "b.test:80", "10.1.0.7:80")
	})
}

// TestPublishBounds: bounds hold for the pools of their owner, from the moment that they are stored.
func TestPublishBounds(t *testing.T) {
	r := newRig(t)
	r.resolver.lookup = func(context.Context, string, string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("192.0.2.1")}, nil
	}
	r.propose(
		&lbdv1.Pool{Name: "named", Backends: []*lbdv1.Backend{{Address: "b.test:80"}, {Address: "192.0.2.2:80"}}},
		&lbdv1.Pool{Name: "found", Discovery: &lbdv1.Discovery{Host: "b.test", Port: 81}},
	)
	r.publish()
	at := func() string {
		return placesText(r.current.pools["named"].backends) + "; " + placesText(r.current.pools["found"].backends)
	}
	if got := at(); got != "b.test:80 at 192.0.2.1:80, 192.0.2.2:80; 192.0.2.1:81" {
		t.Errorf("without bounds: %s", got)
	}
	r.propose(&lbdv1.Owner{Name: "web", AllowedBackendCidrs: []string{"10.0.0.0/8"}})
	r.publish()
	if got := at(); got != "b.test:80 nowhere yet, 192.0.2.2:80; " {
		t.Errorf("within others: %s", got) // an address that somebody wrote is served
	}
	for _, status := range r.Backends("named") {
		if named := status.GetAddress() == "b.test:80"; named != strings.Contains(status.GetLastError(), "the owner's bounds") {
			t.Errorf("the status is %v", status)
		}
	}
	r.propose(&lbdv1.Owner{Name: "web", AllowedBackendCidrs: []string{"192.0.2.0/24"}})
	r.publish()
	r.resolver.ask(r.resolver.due(true), r.resolver.wake)
	r.followNames()
	if got := at(); got != "b.test:80 at 192.0.2.1:80, 192.0.2.2:80; 192.0.2.1:81" {
		t.Errorf("within its own: %s", got)
	}
}

func TestTaken(t *testing.T) {
	r := newRig(t)
	r.ports = []port{{"the control port", netip.MustParseAddrPort("0.0.0.0:7443")}, {"the metrics port", netip.MustParseAddrPort("127.0.0.1:9090")}}
	r.control = &control{}
	r.control.advertised.Store(&[]netip.AddrPort{netip.MustParseAddrPort("198.51.100.7:443")})
	r.cfg.listen["moved"], r.cfg.listen["away"] = "[fd00::2]:85", "127.0.0.1:0"
	taken := r.Taken(map[string][]string{"wide": {":81"}, "moved": {":82"}, "away": {":83"}, "link": {"[fe80::1%eth0]:84"}})
	for address, want := range map[string]string{
		"127.0.0.1:7443":      "the control port",
		"127.8.0.1:7443":      "the control port",
		"[::1%lo]:7443":       "the control port",
		"198.51.100.7:443":    "the control port",
		"198.51.100.7:444":    "",
		"198.51.100.8:7443":   "",
		"127.0.0.1:9090":      "the metrics port",
		"127.0.0.2:9090":      "",
		"127.0.0.1:81":        "listener `wide`",
		"127.0.0.1:82":        "", // on this node the listener is elsewhere
		"[fd00::2]:85":        "listener `moved`",
		"[fd00::2%eth0]:85":   "listener `moved`",
		"127.0.0.1:83":        "",
		"[fe80::1]:84":        "listener `link`",
		"[::ffff:7f00:1]:81":  "listener `wide`",
		"192.0.2.1:80":        "",
		"[::ffff:7f00:1]:443": "",
	} {
		if got, _ := taken(netip.MustParseAddrPort(address)); got != want {
			t.Errorf("%s is taken by %q, want %q", address, got, want)
		}
	}
	if _, name := taken(netip.MustParseAddrPort("127.0.0.1:81")); name != "wide" {
		t.Errorf("the listener's name is %q", name)
	}
	for _, local := range []string{"127.0.0.1:7443", "127.9.9.9:7443", "[::1]:7443"} {
		if !covers(netip.MustParseAddrPort("[::]:7443"), netip.MustParseAddrPort(local), isLocal) {
			t.Errorf("%s is not covered by all of the machine's addresses", local)
		}
	}
}

// TestPortsOf: what is given by name is where it was bound.
func TestPortsOf(t *testing.T) {
	c, err := openControl(nil, &config{control: "localhost:0"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	got := portsOf("the control port", c.listener)
	if len(got) != 1 || !got[0].at.Addr().IsLoopback() || got[0].at.Port() == 0 {
		t.Errorf("ports %v", got)
	}
	if off := portsOf("the metrics port", nil); len(off) != 0 {
		t.Errorf("what is off has ports %v", off)
	}
}

// TestLocate: the advertised name is asked for until somebody answers, and again after that.
func TestLocate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		world := &names{answers: map[string][]netip.Addr{}}
		ctx, cancel := context.WithCancel(t.Context())
		var c control
		c.done.Go(func() { c.locate(ctx, "lb1.test:7443", world.lookup) })
		synctest.Wait()
		if got := c.reached(); len(got) != 0 {
			t.Errorf("before an answer: %v", got)
		}
		world.set("lb1.test", "192.0.2.7", "fd00::7")
		later()
		if got := c.reached(); len(got) != 2 || got[0].at != netip.MustParseAddrPort("192.0.2.7:7443") {
			t.Errorf("reached at %v", got)
		}
		world.set("lb1.test", "192.0.2.8")
		later()
		if got := c.reached(); len(got) != 1 || got[0].at != netip.MustParseAddrPort("192.0.2.8:7443") {
			t.Errorf("after it has moved: %v", got)
		}
		cancel()
		c.done.Wait()
	})
	var c control
	c.locate(t.Context(), "[fd00::9]:7443", nil)
	c.locate(t.Context(), "", nil)
	if got := c.reached(); len(got) != 1 || got[0].at != netip.MustParseAddrPort("[fd00::9]:7443") {
		t.Errorf("an address is at %v", got)
	}
}

// TestPublishCircles: a backend that is this node itself takes no requests and is not asked, from when a listener is there until it goes.
func TestPublishCircles(t *testing.T) {
	r := newRig(t)
	r.resolver.local = func(ip netip.Addr) bool { return ip == netip.MustParseAddr("192.0.2.2") }
	r.propose(&lbdv1.Pool{Name: "own", Backends: []*lbdv1.Backend{{Address: "192.0.2.2:8081"}, {Address: "192.0.2.3:8081"}}})
	r.publish()
	at := func() string { return placesText(r.current.pools["own"].backends) }
	if got := at(); got != "192.0.2.2:8081, 192.0.2.3:8081" {
		t.Errorf("before: %s", got)
	}
	r.ports = []port{{"the metrics port", netip.MustParseAddrPort("[::]:8081")}}
	r.cfg.listen["other"] = "127.0.0.1:0"
	r.propose(&lbdv1.Listener{Name: "other", Addresses: []string{"127.0.0.1:8098"}, Protocol: lbdv1.Protocol_PROTOCOL_HTTP})
	r.publish()
	r.followNames()
	if got := at(); got != "192.0.2.2:8081 nowhere yet, 192.0.2.3:8081" {
		t.Errorf("with a port of our own there: %s", got)
	}
	if status := r.Backends("own")[0]; !strings.Contains(status.GetLastError(), "in circles") || !strings.Contains(status.GetIneligibleReason(), "in circles") {
		t.Errorf("the status is %v", status)
	}
	if r.said.count("192.0.2.2:8081") == 0 {
		t.Error("nobody is told")
	}
	for _, address := range []string{"192.0.2.2:8081", "[::1]:8081", "b.test:80"} {
		if conn, err := r.dialCheck(t.Context(), "tcp", address); err == nil {
			conn.Close()
			t.Errorf("a check asks %s", address)
		}
	}
	r.ports = nil
	r.propose(&lbdv1.Listener{Name: "other", Addresses: []string{"127.0.0.1:8099"}, Protocol: lbdv1.Protocol_PROTOCOL_HTTP})
	r.publish()
	r.followNames()
	if got := at(); got != "192.0.2.2:8081, 192.0.2.3:8081" {
		t.Errorf("after: %s", got)
	}
}
