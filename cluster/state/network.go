package state

import (
	"fmt"
	"net/netip"
)

// ParseNetwork reads "10.0.0.0/8", or one address as the network that holds it alone. An IPv4 network inside IPv6 is
// refused: peers over IPv4 are known by their IPv4 address.
func ParseNetwork(text string) (netip.Prefix, error) {
	if ip, err := netip.ParseAddr(text); err == nil && ip.Zone() == "" {
		ip = ip.Unmap()
		return netip.PrefixFrom(ip, ip.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	if err == nil && p.Addr().Is4In6() {
		return netip.Prefix{}, fmt.Errorf("read network %q: an IPv4 network in IPv6 form", text)
	}
	return p, err
}

// checkNetworks checks a list of networks, each there once.
func (c *checker) checkNetworks(field string, networks []string, limit int) {
	c.checkMost(field, len(networks), limit)
	c.checkDistinct(field, networks)
	for i, network := range networks {
		switch p, err := ParseNetwork(network); {
		case err != nil:
			c.errorf(itemPath(field, i), "`%s` is no network: write `10.0.0.0/8`, `2001:db8::/32` or one address", network)
		case p != p.Masked():
			c.errorf(itemPath(field, i), "`%s` has bits set behind its prefix: write `%s`", network, p.Masked())
		}
	}
}

// normalizeNetworks writes each network in its one form. What is none stays, for Validate to refuse.
func normalizeNetworks(networks []string) {
	for i, network := range networks {
		if p, err := ParseNetwork(network); err == nil {
			networks[i] = p.String()
		}
	}
}
