package state

import (
	"iter"
	"net/netip"
	"slices"

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
	switch denied := len(a.GetDeny()) + len(a.GetDenyLists()); {
	case len(a.GetDenyExcept()) > 0 && denied == 0:
		c.errorf("addresses.deny_except", "is out of what is denied, and nothing is: set `deny` or `deny_lists`")
	case denied+len(a.GetAllow())+len(a.GetAllowLists()) == 0:
		c.errorf("addresses", "names nobody: set `allow`, `deny`, `allow_lists` or `deny_lists`")
	}
	c.checkNetworks("addresses.allow", a.GetAllow(), policyNetworksMax)
	c.checkNetworks("addresses.deny", a.GetDeny(), policyNetworksMax)
	c.checkNetworks("addresses.deny_except", a.GetDenyExcept(), policyNetworksMax)
	c.checkExcepted(a)
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

// checkExcepted warns of exceptions that change nothing, and of what is excepted whole. What lists deny may change without the
// policy: it counts for nothing here.
func (c *checker) checkExcepted(a *lbdv1.Addresses) {
	if len(a.GetDenyExcept()) == 0 || len(a.GetDeny()) == 0 || len(a.GetDenyLists()) > 0 {
		return
	}
	deny, denyKnown := c.networks(a.GetDeny(), nil)
	except, exceptKnown := c.networks(a.GetDenyExcept(), nil)
	if !denyKnown || !exceptKnown {
		return
	}
	denied, excepted := setOf(deny), setOf(except)
	whole := make(map[netip.Prefix]bool) // exceptions that hold all of a denied network
	for i, p := range deny {
		for q := range around(p, excepted) {
			whole[q] = true
		}
		if within(p, excepted) {
			c.warnf(itemPath("addresses.deny", i), "denies nobody: `deny_except` names all of `%s`", p)
		}
	}
	for i, p := range except {
		if !within(p, denied) && !whole[p] {
			c.warnf(itemPath("addresses.deny_except", i), "changes nothing: nobody in `%s` is denied", p)
		}
	}
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
	except, known := c.networks(a.GetDenyExcept(), nil)
	denied, allowed, excepted := setOf(deny), setOf(allow), setOf(except)
	for _, p := range allow {
		if !within(p, denied) || within(p, excepted) {
			return ""
		}
	}
	if !known || slices.ContainsFunc(except, func(p netip.Prefix) bool { return within(p, allowed) }) {
		return ""
	}
	return "all that is allowed is denied too, and what is denied is not served"
}

func setOf(networks []netip.Prefix) map[netip.Prefix]bool {
	set := make(map[netip.Prefix]bool, len(networks))
	for _, p := range networks {
		set[p] = true
	}
	return set
}

// within tells whether one of the networks holds all of p.
func within(p netip.Prefix, networks map[netip.Prefix]bool) bool {
	for range around(p, networks) {
		return true
	}
	return false
}

// around are those of the networks that hold all of p.
func around(p netip.Prefix, networks map[netip.Prefix]bool) iter.Seq[netip.Prefix] {
	return func(yield func(netip.Prefix) bool) {
		for bits := p.Bits(); bits >= 0; bits-- {
			if q := netip.PrefixFrom(p.Addr(), bits).Masked(); networks[q] && !yield(q) {
				return
			}
		}
	}
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
	normalizeNetworks(p.GetAddresses().GetDenyExcept())
}

func normalizeAddressList(l *lbdv1.AddressList) { normalizeNetworks(l.GetAddresses()) }
