package loop

import "net/netip"

// unmapped writes an IPv4 address that came over an IPv6 socket as IPv4.
func unmapped(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}
