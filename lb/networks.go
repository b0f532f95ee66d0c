package lb

import (
	"net/netip"
	"slices"
	"sort"
)

// networks is a set of addresses, as ranges that are sorted and apart: to look one up among 50,000 networks takes 16 steps.
type networks struct {
	from, to []netip.Addr
}

func newNetworks(prefixes []netip.Prefix) networks {
	sorted := make([]netip.Prefix, 0, len(prefixes))
	for _, p := range prefixes {
		if p.IsValid() {
			sorted = append(sorted, unmapped(p))
		}
	}
	slices.SortFunc(sorted, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	var n networks
	for _, p := range sorted {
		from, to := p.Addr(), lastAddress(p)
		if last := len(n.to) - 1; last >= 0 && from.BitLen() == n.to[last].BitLen() && !n.to[last].Less(from) {
			if n.to[last].Less(to) {
				n.to[last] = to
			}
			continue
		}
		n.from, n.to = append(n.from, from), append(n.to, to)
	}
	return n
}

// has reports whether address, without zone and not mapped, is in the set.
func (n *networks) has(address netip.Addr) bool {
	i := sort.Search(len(n.from), func(i int) bool { return address.Less(n.from[i]) }) - 1
	return i >= 0 && n.from[i].BitLen() == address.BitLen() && !n.to[i].Less(address)
}

// unmapped is the network with its host bits cleared, IPv4 where it is IPv4 in IPv6 clothes (RFC 4291 2.5.5.2).
func unmapped(p netip.Prefix) netip.Prefix {
	if a := p.Addr(); a.Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(a.Unmap(), p.Bits()-96)
	}
	return p.Masked()
}

func lastAddress(p netip.Prefix) netip.Addr {
	bytes := p.Addr().AsSlice()
	for bit := p.Bits(); bit < len(bytes)*8; bit++ {
		bytes[bit/8] |= 0x80 >> (bit % 8)
	}
	last, _ := netip.AddrFromSlice(bytes)
	return last
}
