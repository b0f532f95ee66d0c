package state

import lbdv1 "lbd/proto/lbd/v1"

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
}

// checkAddressList takes an empty list too: one of who is denied may be empty for now.
func checkAddressList(c *checker, l *lbdv1.AddressList) {
	c.checkNetworks("addresses", l.GetAddresses(), addressListMax)
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
