package state

import (
	"net/netip"

	lbdv1 "lbd/proto/lbd/v1"
)

func checkPolicy(c *checker, p *lbdv1.Policy) {
	switch rule := p.GetRule().(type) {
	case *lbdv1.Policy_BodySize:
		if n := rule.BodySize.GetMaxBytes(); n < 1 || n > policyBodyBytesMax {
			c.errorf("body_size.max_bytes", "must be 1 to %d, not %d", int64(policyBodyBytesMax), n)
		}
	case *lbdv1.Policy_Addresses:
		c.checkAddresses(rule.Addresses)
	case *lbdv1.Policy_Concurrency:
		if n := rule.Concurrency.GetMaxRequests(); n < 1 || n > concurrencyMax {
			c.errorf("concurrency.max_requests", "must be 1 to %d, not %d", concurrencyMax, n)
		}
	default:
		c.errorf("", "needs a rule: `addresses`, `body_size` or `concurrency`")
	}
}

func (c *checker) checkAddresses(a *lbdv1.Addresses) {
	if len(a.GetAllow())+len(a.GetDeny())+len(a.GetAllowLists())+len(a.GetDenyLists()) == 0 {
		c.errorf("addresses", "names nobody: set `allow`, `deny`, `allow_lists` or `deny_lists`")
	}
	c.checkNetworks("addresses.allow", a.GetAllow(), policyNetworksMax)
	c.checkNetworks("addresses.deny", a.GetDeny(), policyNetworksMax)
	lists := func(path string, names []string) {
		c.checkMost(path, len(names), policyListsMax)
		c.checkDistinct(path, names)
		for i, name := range names {
			c.refer(itemPath(path, i), AddressLists, name)
		}
	}
	lists("addresses.allow_lists", a.GetAllowLists())
	lists("addresses.deny_lists", a.GetDenyLists())
	c.checkServed(a)
}

// checkServed warns of a policy that serves nobody.
func (c *checker) checkServed(a *lbdv1.Addresses) {
	if why := c.nobody(a); why != "" {
		c.warnf("addresses", "serves nobody: %s", why)
	}
}

// nobody says why no client is allowed; empty where some may be, or where a list is not known.
func (c *checker) nobody(a *lbdv1.Addresses) string {
	allow, known := c.networks(a.GetAllow(), a.GetAllowLists())
	if !known || len(a.GetAllow())+len(a.GetAllowLists()) == 0 {
		return ""
	}
	if len(allow) == 0 {
		return "what `allow_lists` names is empty"
	}
	deny, _ := c.networks(a.GetDeny(), a.GetDenyLists())
	if len(deny) == 0 {
		return ""
	}
	denied := make(map[netip.Prefix]bool, len(deny))
	for _, p := range deny {
		denied[p] = true
	}
	for _, p := range allow {
		if !within(p, denied) {
			return ""
		}
	}
	return "all that is allowed is denied too, and what is denied is not served"
}

// within tells whether one of the networks holds all of p.
func within(p netip.Prefix, networks map[netip.Prefix]bool) bool {
	for bits := p.Bits(); bits >= 0; bits-- {
		if networks[netip.PrefixFrom(p.Addr(), bits).Masked()] {
			return true
		}
	}
	return false
}

// networks are those of a policy and of the lists that it names; not known where something cannot be read, is not there, or
// where the check has read looksNetworksMax of them.
func (c *checker) networks(texts, lists []string) (all []netip.Prefix, known bool) {
	known = true
	add := func(texts []string) {
		if c.looks.networks += len(texts); c.looks.networks > looksNetworksMax {
			known = false
			return
		}
		for _, text := range texts {
			p, err := ParseNetwork(text)
			if err != nil {
				known = false
				continue
			}
			all = append(all, p.Masked())
		}
	}
	add(texts)
	for _, name := range lists {
		stored, ok := c.next.Get(AddressLists, name)
		known = known && ok
		add(stored.GetResource().GetAddressList().GetAddresses())
	}
	return all, known
}

// checkAddressList takes an empty list too: one of who is denied may be empty for now.
func checkAddressList(c *checker, l *lbdv1.AddressList) {
	c.checkNetworks("addresses", l.GetAddresses(), addressListMax)
	for _, user := range c.next.Users(c.key) {
		if _, changed := c.position[user]; changed { // it is warned of itself
			continue
		}
		stored, _ := c.next.Get(user.Kind, user.Name)
		if why := c.nobody(stored.GetResource().GetPolicy().GetAddresses()); why != "" {
			c.warnf("addresses", "leaves policy `%s` without clients: %s", user.Name, why)
		}
	}
}

// indexPolicy finds a policy by the address lists that it names.
func indexPolicy(name string, p *lbdv1.Policy) []string {
	var keys []string
	for _, names := range [][]string{p.GetAddresses().GetAllowLists(), p.GetAddresses().GetDenyLists()} {
		for _, list := range names {
			keys = append(keys, useIndex(AddressLists, list)+join(string(Policies), name))
		}
	}
	return keys
}

func normalizePolicy(p *lbdv1.Policy) {
	normalizeNetworks(p.GetAddresses().GetAllow())
	normalizeNetworks(p.GetAddresses().GetDeny())
}

func normalizeAddressList(l *lbdv1.AddressList) { normalizeNetworks(l.GetAddresses()) }
