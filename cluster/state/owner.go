package state

import (
	"net"
	"net/netip"
	"slices"
	"strings"

	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// Bounds are what callers that are bound to an owner may write for it. The zero value allows nothing.
type Bounds struct {
	hosts     []string
	networks  []netip.Prefix
	listeners []string
}

// BoundsOf are an owner's bounds; false where it has none: its callers may use any host, any backend and any address of a listener.
func (s *State) BoundsOf(owner string) (Bounds, bool) {
	stored, ok := s.Get(Owners, owner)
	if !ok {
		return Bounds{}, false
	}
	return boundsOf(stored.GetResource().GetOwnerBounds()), true
}

// boundsOf leaves out what is no network: Validate has refused it, or will.
func boundsOf(o *lbdv1.Owner) Bounds {
	b := Bounds{hosts: o.GetAllowedHosts(), listeners: o.GetAllowedListenerAddresses()}
	for _, text := range o.GetAllowedBackendCidrs() {
		if p, err := ParseNetwork(text); err == nil {
			b.networks = append(b.networks, p)
		}
	}
	return b
}

// Networks are where backends may be.
func (b Bounds) Networks() []netip.Prefix { return b.networks }

// AllowsHost tells whether a route or a certificate may be for a host: a name, "*.name" or an IP address, normalised; empty is
// any host.
func (b Bounds) AllowsHost(host string) bool {
	return slices.ContainsFunc(b.hosts, func(allowed string) bool {
		below, wild := strings.CutPrefix(allowed, "*")
		switch {
		case allowed == "*":
			return true
		case host == "":
			return false
		case wild: // ".example.com": all names that end so, "*.example.com" among them
			_, isIP := splitIP(host)
			return !isIP && strings.HasSuffix(host, below) && len(host) > len(below)
		}
		return host == allowed
	})
}

// AllowsBackend tells whether a backend may be at an address.
func (b Bounds) AllowsBackend(ip netip.Addr) bool {
	ip = ip.Unmap().WithZone("")
	return slices.ContainsFunc(b.networks, func(p netip.Prefix) bool { return p.Contains(ip) })
}

// AllowsListener tells whether a listener may have an address, normalised.
func (b Bounds) AllowsListener(address string) bool {
	return slices.ContainsFunc(b.listeners, func(allowed string) bool {
		return allowed == "*" || allowed == address || strings.HasPrefix(allowed, ":") && portOf(address) == allowed[1:]
	})
}

func portOf(address string) string {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return ""
	}
	return port
}

func checkBounds(c *checker, o *lbdv1.Owner) {
	if fault := ownerFault(o.GetName()); fault != "" && nameForm.MatchString(o.GetName()) {
		c.errorf("name", "%s", fault)
	}
	c.checkMost("allowed_hosts", len(o.GetAllowedHosts()), boundHostsMax)
	c.checkDistinct("allowed_hosts", o.GetAllowedHosts())
	for i, host := range o.GetAllowedHosts() {
		if fault := boundFault(host); fault != "" {
			c.errorf(itemPath("allowed_hosts", i), "`%s` %s", host, fault)
		}
	}
	c.checkNetworks("allowed_backend_cidrs", o.GetAllowedBackendCidrs(), boundNetworksMax)
	c.checkMost("allowed_listener_addresses", len(o.GetAllowedListenerAddresses()), boundListenersMax)
	c.checkDistinct("allowed_listener_addresses", o.GetAllowedListenerAddresses())
	for i, address := range o.GetAllowedListenerAddresses() {
		if fault := listenBoundFault(address); fault != "" {
			c.errorf(itemPath("allowed_listener_addresses", i), "`%s` %s", address, fault)
		}
	}
	c.warnOfOutside(o)
}

// listenBoundFault says why a bound is no address of listeners; empty: it is one.
func listenBoundFault(address string) string {
	if address == "*" {
		return ""
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "is no address: write `host:port`, `:port` for that port at any address, or `*`"
	}
	if _, isIP := splitIP(host); !isIP && host != "" {
		return "is no IP address"
	}
	return portFault(port)
}

// boundFault is patternFault for a bound: "*" is any host, and a wildcard is for all names below, be they of one label.
func boundFault(host string) string {
	if _, isIP := splitIP(host); isIP || host == "*" {
		return ""
	}
	rest, _ := strings.CutPrefix(host, "*.")
	switch {
	case strings.Contains(rest, "*"):
		return "has a `*` that is not the first of several labels: write `*.example.com`, or `*` for any host"
	case strings.HasSuffix(host, "."):
		return "ends with a dot: leave it out"
	}
	return hostFault(rest)
}

// warnOfOutside tells what the owner has already outside of new bounds: it stays as it is, and its callers cannot change it.
func (c *checker) warnOfOutside(o *lbdv1.Owner) {
	const toldMax = 10
	b := boundsOf(o)
	told := 0
	for _, kind := range []Kind{Listeners, Routes, Certificates, Pools} {
		for stored := range c.next.All(kind) {
			if stored.GetResource().GetOwner() != o.GetName() {
				continue
			}
			what := b.outside(stored)
			if what == "" {
				continue
			}
			if told++; told > toldMax {
				c.warnf("", "leaves more outside than is listed here")
				return
			}
			key, _ := KeyOf(stored.GetResource())
			c.warnf("", "leaves %s of %s `%s` outside: it stays as it is", what, kind.Singular(), key.Name)
		}
	}
}

// outside is the first host or address of a resource that the bounds do not allow; empty: there is none. Where the names of backends
// lead is not known here.
func (b Bounds) outside(stored *raftv1.StoredResource) string {
	r := stored.GetResource()
	for _, host := range HostsOf(stored) {
		if !b.AllowsHost(host) {
			if host == "" {
				return "any host"
			}
			return "host `" + host + "`"
		}
	}
	for _, address := range r.GetListener().GetAddresses() {
		if !b.AllowsListener(address) {
			return "address `" + address + "`"
		}
	}
	for _, d := range destinations(r.GetPool()) {
		if ip, isIP := splitIP(d.host); isIP && !b.AllowsBackend(ip) {
			return "backend `" + net.JoinHostPort(d.host, d.port) + "`"
		}
	}
	return ""
}

// HostsOf are the hosts that a route or a certificate is for, normalised; "" is any. Those of a certificate are not known as long as
// its content is not.
func HostsOf(stored *raftv1.StoredResource) []string {
	r := stored.GetResource()
	switch {
	case r.GetRoute() != nil && len(r.GetRoute().GetHosts()) == 0:
		return []string{""}
	case r.GetRoute() != nil:
		return r.GetRoute().GetHosts()
	case r.GetCertificate().GetSelfSigned() != nil:
		return r.GetCertificate().GetSelfSigned().GetHosts()
	case r.GetCertificate() != nil:
		return leafHosts(leafOf(stored))
	}
	return nil
}

// normalizeBounds writes each host, network and address in its one form.
func normalizeBounds(o *lbdv1.Owner) {
	for i, host := range o.GetAllowedHosts() {
		o.AllowedHosts[i] = normalHost(host)
	}
	normalizeNetworks(o.GetAllowedBackendCidrs())
	for i, address := range o.GetAllowedListenerAddresses() {
		o.AllowedListenerAddresses[i] = NormalAddress(address)
	}
}

// Holds tells whether a normalised resource is stored just so.
func (s *State) Holds(up *raftv1.StoredResource) bool {
	key, ok := KeyOf(up.GetResource())
	stored, exists := s.Get(key.Kind, key.Name)
	return ok && exists && same(stored, up)
}

// MayUse tells whether an owner's routes may name a listener of another.
func MayUse(listener *lbdv1.Resource, owner string) bool { return mayUse(listener, owner) }
