package lb

import (
	"fmt"
	"net/netip"
	"slices"
)

// compile makes the rule ready to be asked. Once: lists may be long.
func (a *AddressRule) compile() {
	a.once.Do(func() {
		a.allow, a.deny = networksOf(a.Allow, a.AllowLists), networksOf(a.Deny, a.DenyLists)
		a.except = newNetworks(a.DenyExcept)
	})
}

func networksOf(prefixes []netip.Prefix, lists []AddressList) networks {
	all := slices.Clone(prefixes)
	for _, l := range lists {
		all = append(all, l.Networks...)
	}
	return newNetworks(all)
}

// permits reports whether a client is served. Who is denied is not, even if allowed too; an exception to that allows nothing by itself.
func (a *AddressRule) permits(client netip.Addr) bool {
	return !a.denies(client) && (!a.Closed || a.allow.has(client))
}

func (a *AddressRule) denies(client netip.Addr) bool {
	return a.deny.has(client) && !a.except.has(client)
}

// why says what of the rule keeps out a client that it does not permit.
func (a *AddressRule) why(client netip.Addr) string {
	if a.denies(client) {
		if p, ok := findNetwork(a.Deny, client); ok {
			return fmt.Sprintf("address %s is in %s, which policy %s denies", client, p, a.Policy)
		}
		for _, l := range a.DenyLists {
			if p, ok := findNetwork(l.Networks, client); ok {
				return fmt.Sprintf("address %s is in %s of address list %s, which policy %s denies", client, p, l.Name, a.Policy)
			}
		}
	}
	return fmt.Sprintf("address %s is in no network that policy %s allows", client, a.Policy)
}

// findNetwork returns the first of some networks that has the address.
func findNetwork(in []netip.Prefix, address netip.Addr) (netip.Prefix, bool) {
	for _, p := range in {
		if p.IsValid() && unmapped(p).Contains(address) {
			return unmapped(p), true
		}
	}
	return netip.Prefix{}, false
}
