package main

import (
	"context"
	"net/netip"
	"strings"
	"testing"

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
	r.cfg.control, r.cfg.advertise, r.cfg.metrics = "0.0.0.0:7443", "198.51.100.7:443", "localhost:9090"
	r.ports = r.cfg.ownPorts()
	r.cfg.listen["wide"] = "127.0.0.1:0"
	r.propose(&lbdv1.Listener{Name: "wide", Addresses: []string{":81"}, Protocol: lbdv1.Protocol_PROTOCOL_HTTP})
	r.publish()
	for address, want := range map[string]string{
		"127.0.0.1:7443":    "the control port",
		"127.8.0.1:7443":    "the control port",
		"198.51.100.7:443":  "the control port",
		"198.51.100.7:444":  "",
		"198.51.100.8:7443": "",
		"127.0.0.1:9090":    "the metrics port",
		"[::1]:9090":        "the metrics port",
		"127.0.0.2:9090":    "",
		"127.0.0.1:81":      "", // on this node the listener is elsewhere
		"192.0.2.1:80":      "",
	} {
		if got, _ := r.Taken(netip.MustParseAddrPort(address)); got != want {
			t.Errorf("%s is taken by %q, want %q", address, got, want)
		}
	}
	r.cfg.control, r.cfg.advertise, r.cfg.metrics = "off", "", "off"
	if got := r.cfg.ownPorts(); len(got) != 0 {
		t.Errorf("ports that are off: %v", got)
	}
	if own := addressesOf(":7443"); len(own) != 1 || own[0] != netip.MustParseAddrPort("[::]:7443") {
		t.Errorf("an address without a host: %v", own)
	}
	for _, local := range []string{"127.0.0.1:7443", "127.9.9.9:7443", "[::1]:7443"} {
		if !covers(netip.MustParseAddrPort("[::]:7443"), netip.MustParseAddrPort(local), isLocal) {
			t.Errorf("%s is not covered by all of the machine's addresses", local)
		}
	}
}
