package lb

import (
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestNetworksAreTheirSlowTwin: a set has what one of its networks contains.
func TestNetworksAreTheirSlowTwin(t *testing.T) {
	address := rapid.Custom(func(t *rapid.T) netip.Addr {
		b := byte(rapid.IntRange(0, 7).Draw(t, "b"))
		c := byte(rapid.IntRange(0, 255).Draw(t, "c"))
		switch rapid.IntRange(0, 2).Draw(t, "family") {
		case 0:
			return netip.AddrFrom4([4]byte{10, 0, b, c})
		case 1:
			return netip.AddrFrom16([16]byte{0x20, 1, 14: b, 15: c})
		}
		return netip.AddrFrom16([16]byte{10: 0xff, 11: 0xff, 12: 10, 14: b, 15: c})
	})
	rapid.Check(t, func(t *rapid.T) {
		var prefixes []netip.Prefix
		for range rapid.IntRange(0, 12).Draw(t, "networks") {
			a := address.Draw(t, "network")
			prefixes = append(prefixes, netip.PrefixFrom(a, a.BitLen()-rapid.IntRange(0, 12).Draw(t, "host bits")))
		}
		set := newNetworks(prefixes)
		for range 20 {
			a := plainAddress(address.Draw(t, "address"))
			slow := slices.ContainsFunc(prefixes, func(p netip.Prefix) bool {
				return p.Contains(a) || p.Contains(netip.AddrFrom16(a.As16()))
			})
			if fast := set.has(a); fast != slow {
				t.Fatalf("%s in %v: fast %v, slow %v", a, prefixes, fast, slow)
			}
		}
		if !slices.IsSortedFunc(set.from, netip.Addr.Compare) || len(set.from) > len(prefixes) {
			t.Fatalf("%v", set)
		}
	})
	whole := newNetworks([]netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("255.255.255.255/32")})
	if !whole.has(netip.MustParseAddr("255.255.255.255")) || whole.has(netip.MustParseAddr("::1")) {
		t.Error("0.0.0.0/0 is all of IPv4 and nothing else")
	}
}
