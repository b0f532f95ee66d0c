package main

import (
	"context"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
)

// TestNeighbours: where the other nodes have their control ports no backend may be, also where they are known by a name.
func TestNeighbours(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, world := newMovingState(), &names{answers: map[string][]netip.Addr{}}
		n := &neighbours{self: store.ID(), store: store, lookup: world.lookup}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { n.run(ctx) })
		at := func(want ...string) {
			t.Helper()
			synctest.Wait()
			got := map[netip.AddrPort]bool{}
			for _, p := range n.ports() {
				got[p.at] = true
			}
			if len(got) != len(want) {
				t.Errorf("ports %v, want %v", got, want)
			}
			for _, w := range want {
				if !got[netip.MustParseAddrPort(w)] {
					t.Errorf("ports %v, want %v", got, want)
				}
			}
		}
		store.joins(t, "1", "10.0.0.1:7443") // this one
		at()
		store.joins(t, "2", "10.0.0.2:7443")
		store.joins(t, "3", "edge-3.test:7443")
		at("10.0.0.2:7443")
		world.set("edge-3.test", "10.0.0.3", "fd00::3")
		later()
		at("10.0.0.2:7443", "10.0.0.3:7443", "[fd00::3]:7443")
		world.set("edge-3.test", "10.0.0.4")
		later()
		at("10.0.0.2:7443", "10.0.0.4:7443")
		cancel()
		running.Wait()
	})
	var none *neighbours
	if got := none.ports(); len(got) != 0 {
		t.Errorf("where there are none: %v", got)
	}
}
