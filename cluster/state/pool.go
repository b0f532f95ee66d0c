package state

import (
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	lbdv1 "lbd/proto/lbd/v1"
)

func checkPool(c *checker, p *lbdv1.Pool) {
	c.checkEnum("balance", "algorithm", p.GetBalance())
	c.checkHashOn(p)
	if p.GetDiscovery() != nil {
		c.checkDiscovery(p)
	} else {
		c.checkBackends(p.GetBackends())
	}
	if p.GetHealthCheck() != nil {
		c.checkHealthCheck(p)
	}
	c.checkWait("connect_timeout", p.GetConnectTimeout())
	if p.GetTls() != nil {
		c.checkBackendTLS("tls", p.GetTls())
	}
	c.checkConnections(p)
	c.checkEjection(p.GetEjection())
	c.checkSession(p.GetSessionPersistence())
	c.checkSpan("slow_start", p.GetSlowStart(), slowStartMin, slowStartMax)
	c.checkSpan("drain_timeout", p.GetDrainTimeout(), drainTimeoutMin, timeoutMax)
	if n := p.GetFailOpen().GetBelowPercent(); p.GetFailOpen() != nil && (n < 1 || n > 100) {
		c.errorf("fail_open.below_percent", "must be 1 to 100, not %d", n)
	}
}

func (c *checker) checkBackends(backends []*lbdv1.Backend) {
	if len(backends) == 0 {
		c.errorf("backends", "is required: at least one backend, or `discovery`")
	}
	c.checkMost("backends", len(backends), backendsMax)
	seen := make(map[string]bool)
	for i, b := range backends {
		path := itemPath("backends", i)
		c.checkBackendAddress(path+".address", b.GetAddress())
		if seen[b.GetAddress()] && b.GetAddress() != "" {
			c.errorf(path+".address", "`%s` is there twice", b.GetAddress())
		}
		seen[b.GetAddress()] = true
		if w := b.GetWeight(); w < 0 || w > weightMax {
			c.errorf(path+".weight", "must be 0 to %d, not %d", weightMax, w)
		}
	}
}

func (c *checker) checkDiscovery(p *lbdv1.Pool) {
	d := p.GetDiscovery()
	if len(p.GetBackends()) > 0 {
		c.errorf("discovery", "finds the backends, which `backends` lists already: leave one of them out")
	}
	switch {
	case d.GetSrv() != "" && (d.GetHost() != "" || d.GetPort() != 0):
		c.errorf("discovery.srv", "says host and port already: leave `host` and `port` out")
	case d.GetSrv() != "":
		c.checkService(d.GetSrv())
	case d.GetHost() == "":
		c.errorf("discovery", "needs `host` and `port`, or `srv`")
	case d.GetPort() < 1 || d.GetPort() > 65535:
		c.errorf("discovery.port", "must be 1 to 65535, not %d", d.GetPort())
	default:
		c.checkBackendHost("discovery.host", d.GetHost(), strconv.Itoa(int(d.GetPort())))
	}
}

// checkService checks the name of an SRV record: _service._protocol.name (RFC 2782).
func (c *checker) checkService(name string) {
	labels := strings.SplitN(name, ".", 3)
	if len(labels) < 3 || !strings.HasPrefix(labels[0], "_") || !strings.HasPrefix(labels[1], "_") || hostFault(name) != "" {
		c.errorf("discovery.srv", "`%s` is no SRV name: write it as in `_http._tcp.shop.example.com`", name)
	}
}

func (c *checker) checkHashOn(p *lbdv1.Pool) {
	if p.GetHashOn() == nil {
		return
	}
	if p.GetBalance() != lbdv1.Balance_BALANCE_MAGLEV {
		c.errorf("hash_on", "is only for balance MAGLEV")
	}
	switch source := p.GetHashOn().GetSource().(type) {
	case nil:
		c.errorf("hash_on", "needs one of `client_address`, `header` and `cookie`")
	case *lbdv1.HashOn_Header:
		if !isToken(source.Header) {
			c.errorf("hash_on.header", "`%s` is no header name", source.Header)
		}
	case *lbdv1.HashOn_Cookie:
		if !isToken(source.Cookie) {
			c.errorf("hash_on.cookie", "`%s` is no cookie name", source.Cookie)
		}
	}
}

func (c *checker) checkBackendTLS(base string, t *lbdv1.BackendTls) {
	if t.GetServerName() != "" {
		if fault := serverFault(t.GetServerName()); fault != "" {
			c.errorf(base+".server_name", "`%s` %s", t.GetServerName(), fault)
		}
	}
	if t.GetTrustBundle() != "" {
		c.refer(base+".trust_bundle", TrustBundles, t.GetTrustBundle())
	}
	if t.GetClientCertificate() != "" {
		c.refer(base+".client_certificate", Certificates, t.GetClientCertificate())
	}
}

func (c *checker) checkConnections(p *lbdv1.Pool) {
	n, q := p.GetConnections(), p.GetQueue()
	c.checkRange("connections.max_per_backend", int64(n.GetMaxPerBackend()), 1, backendConnectionsMax)
	if idle := n.GetIdlePerBackend(); idle < 0 || idle > backendConnectionsMax {
		c.errorf("connections.idle_per_backend", "must be 0 to %d, not %d", backendConnectionsMax, idle)
	}
	c.checkSpan("connections.idle_timeout", n.GetIdleTimeout(), timeoutMin, idleTimeoutMax)
	c.checkRange("connections.requests", int64(n.GetRequests()), 1, requestsPerConnectionMax)
	c.checkSpan("connections.age", n.GetAge(), connectionAgeMin, timeoutMax)
	if q != nil && n.GetMaxPerBackend() == 0 {
		c.errorf("queue", "needs `connections.max_per_backend`: without it no request ever waits")
	}
	c.checkRange("queue.length", int64(q.GetLength()), 1, queueLengthMax)
	c.checkSpan("queue.timeout", q.GetTimeout(), timeoutMin, queueTimeoutMax)
}

func (c *checker) checkEjection(e *lbdv1.Ejection) {
	c.checkRange("ejection.consecutive_errors", int64(e.GetConsecutiveErrors()), 1, ejectionErrorsMax)
	c.checkSpan("ejection.base_time", e.GetBaseTime(), ejectionTimeMin, ejectionTimeMax)
	c.checkRange("ejection.max_percent", int64(e.GetMaxPercent()), 1, 100)
}

func (c *checker) checkSession(s *lbdv1.SessionPersistence) {
	if s == nil {
		return
	}
	const base = "session_persistence."
	c.checkCookie(base+"cookie", s.GetCookie())
	c.checkSpan(base+"idle_timeout", s.GetIdleTimeout(), bindingMin, bindingMax)
	c.checkSpan(base+"absolute_timeout", s.GetAbsoluteTimeout(), bindingMin, bindingMax)
	c.checkEnum(base+"same_site", "value", s.GetSameSite())
	c.checkSplitClash(s.GetCookie())
}

// checkSplitClash finds routes outside of the change whose split_persistence has the cookie that the pool would get.
func (c *checker) checkSplitClash(cookie string) {
	before, _ := c.base.Get(Pools, c.key.Name)
	if session := before.GetResource().GetPool().GetSessionPersistence(); session != nil && session.GetCookie() == cookie {
		return
	}
	for _, user := range c.next.Users(c.key) {
		if _, changed := c.position[user]; changed {
			continue
		}
		split := c.route(user.Name).GetForward().GetSplitPersistence()
		if split != nil && split.GetCookie() == cookie {
			c.errorf("session_persistence.cookie", "is that of split_persistence of route `%s` too: each needs its own", user.Name)
			return
		}
	}
}

func (c *checker) checkBackendAddress(path, address string) {
	if address == "" {
		c.errorf(path, "is required: `host:port`")
		return
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		c.errorf(path, "`%s` is no address: write `host:port` or `[v6]:port`", address)
		return
	}
	if fault := portFault(port); fault != "" {
		c.errorf(path, "`%s` %s", address, fault)
		return
	}
	c.checkBackendHost(path, host, port)
}

// checkBackendHost checks where a pool sends to: not to what is no machine, not to this one or its link, not in circles.
func (c *checker) checkBackendHost(path, host, port string) {
	ip, isIP := splitIP(host)
	if !isIP {
		if fault := hostFault(host); fault != "" {
			c.errorf(path, "`%s` %s", host, fault)
			return
		}
	}
	if fault := zoneFault(host); fault != "" {
		c.errorf(path, "`%s` %s", host, fault)
		return
	}
	if isIP && !OneMachine(ip) {
		c.errorf(path, "`%s` is no address of one machine", host)
		return
	}
	c.checkAllowed(path, host)
	c.checkBackendLoop(path, host, port)
}

// checkAllowed refuses this machine and its link where the cluster's settings do not allow them: whoever may write a
// pool could else reach what listens on the node only for the node.
func (c *checker) checkAllowed(path, host string) {
	setting := forbiddenBy(host, c.next.Settings())
	if setting == "" {
		return
	}
	text := "`%s` is refused as a backend unless cluster_settings.%s is true"
	if _, named := c.position[Key{Kind: ClusterSettings}]; named {
		c.errorf(path, text, host, setting)
		return
	}
	c.dependf(path, text, host, setting)
}

// forbiddenBy is the setting that would have to be true for a backend on this host; empty: it is allowed.
func forbiddenBy(host string, s Settings) string {
	ip, isIP := splitIP(host)
	switch {
	case isIP:
		return s.Forbids(ip)
	case !s.AllowLoopbackBackends && isLocalName(host):
		return "allow_loopback_backends"
	}
	return ""
}

// Forbids is the setting that would have to be true for a backend at an address; empty: it is allowed.
func (s Settings) Forbids(ip netip.Addr) string {
	ip = ip.Unmap()
	switch {
	case !s.AllowLoopbackBackends && ip.IsLoopback():
		return "allow_loopback_backends"
	case !s.AllowLinkLocalBackends && ip.IsLinkLocalUnicast():
		return "allow_link_local_backends"
	}
	return ""
}

// OneMachine tells whether an address is that of one machine: not of none, of a group or of all.
func OneMachine(ip netip.Addr) bool {
	ip = ip.Unmap()
	return ip.IsValid() && !ip.IsUnspecified() && !ip.IsMulticast() && ip != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

func (c *checker) checkBackendLoop(path, host, port string) {
	c.next.indexed(listenIndex(port), func(rest string) bool {
		bound, name, _ := strings.Cut(rest, sep)
		if !reaches(host, bound) {
			return true
		}
		c.errorf(path, "is listener `%s` itself: requests would go in circles", name)
		return false
	})
}

// destination is a host and port that a pool sends to, as far as its document says.
type destination struct{ path, host, port string }

func destinations(p *lbdv1.Pool) []destination {
	var all []destination
	for i, b := range p.GetBackends() {
		if host, port, err := net.SplitHostPort(b.GetAddress()); err == nil {
			all = append(all, destination{itemPath("backends", i), host, port})
		}
	}
	if d := p.GetDiscovery(); d.GetHost() != "" {
		all = append(all, destination{"discovery", d.GetHost(), strconv.Itoa(int(d.GetPort()))})
	}
	return all
}

// indexPool finds a pool by what it refers to, and by those of its backends that may be this machine or a listener's own
// address.
func indexPool(name string, p *lbdv1.Pool) []string {
	var keys []string
	for _, d := range destinations(p) {
		if _, err := netip.ParseAddr(d.host); err == nil || isLocalName(d.host) {
			keys = append(keys, dialIndex(d.port)+join(d.host, name))
		}
	}
	for _, t := range []*lbdv1.BackendTls{p.GetTls(), p.GetHealthCheck().GetTlsOverride()} {
		if t.GetTrustBundle() != "" {
			keys = append(keys, useIndex(TrustBundles, t.GetTrustBundle())+join(string(Pools), name))
		}
		if t.GetClientCertificate() != "" {
			keys = append(keys, useIndex(Certificates, t.GetClientCertificate())+join(string(Pools), name))
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

func normalizePool(p *lbdv1.Pool) {
	for _, b := range p.GetBackends() {
		if b != nil {
			b.Address = NormalAddress(b.GetAddress())
		}
	}
	if d := p.GetDiscovery(); d != nil {
		d.Host, d.Srv = normalHost(d.GetHost()), strings.ToLower(d.GetSrv())
	}
	if header, ok := p.GetHashOn().GetSource().(*lbdv1.HashOn_Header); ok {
		header.Header = strings.ToLower(header.Header)
	}
	h := p.GetHealthCheck()
	for _, t := range []*lbdv1.BackendTls{p.GetTls(), h.GetTlsOverride()} {
		if t != nil {
			t.ServerName = normalHost(t.GetServerName())
		}
	}
	for i, status := range h.GetHttp().GetExpectStatus() {
		h.GetHttp().ExpectStatus[i] = strings.ToLower(status)
	}
}
