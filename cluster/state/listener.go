package state

import (
	"net"
	"slices"
	"strings"

	lbdv1 "lbd/proto/lbd/v1"
)

func checkListener(c *checker, l *lbdv1.Listener) {
	c.checkCount("addresses", "address", len(l.GetAddresses()), addressesMax)
	for i, address := range l.GetAddresses() {
		c.checkListenAddress(itemPath("addresses", i), address, l.GetAddresses()[:i])
	}
	c.checkEnum("protocol", "protocol", l.GetProtocol())
	switch l.GetProtocol() {
	case lbdv1.Protocol_PROTOCOL_UNSPECIFIED:
		c.errorf("protocol", "is required: `HTTP` or `HTTPS`")
	case lbdv1.Protocol_PROTOCOL_HTTP:
		if l.GetTls() != nil {
			c.errorf("tls", "`tls` is only for protocol HTTPS")
		}
	case lbdv1.Protocol_PROTOCOL_HTTPS:
		c.checkListenerTLS(l.GetTls())
	}
	c.checkListenerTimeouts(l)
	c.checkListenerLimits(l.GetLimits())
	c.checkNetworks("trusted_proxies", l.GetTrustedProxies(), trustedProxiesMax)
	if l.GetHealthPath() != "" {
		c.checkTarget("health_path", l.GetHealthPath())
	}
	c.checkHeaderChanges("response_headers", l.GetResponseHeaders(), responseFieldsOfOurs)
	c.checkAllowedOwners(l)
}

func (c *checker) checkAllowedOwners(l *lbdv1.Listener) {
	allowed := l.GetAllowedOwners()
	c.checkMost("allowed_owners", len(allowed), allowedOwnersMax)
	c.checkDistinct("allowed_owners", allowed)
	for i, owner := range allowed {
		if fault := ownerFault(owner); fault != "" {
			c.errorf(itemPath("allowed_owners", i), "%s", fault)
		}
	}
	c.checkGuests(l)
}

// checkGuests refuses to lock out routes that use the listener and are not in the change.
func (c *checker) checkGuests(l *lbdv1.Listener) {
	before, existed := c.base.Get(Listeners, l.GetName())
	now, _ := c.next.Get(Listeners, l.GetName())
	if !existed || before.GetResource().GetOwner() == now.GetResource().GetOwner() &&
		slices.Equal(before.GetResource().GetListener().GetAllowedOwners(), l.GetAllowedOwners()) {
		return
	}
	told := make(map[string]bool)
	for _, user := range c.next.Users(c.key) {
		stored, _ := c.next.Get(user.Kind, user.Name)
		owner := stored.GetResource().GetOwner()
		if _, changed := c.position[user]; changed || told[owner] || mayUse(now.GetResource(), owner) {
			continue
		}
		told[owner] = true
		c.errorf("allowed_owners", "route `%s` of owner `%s` uses the listener: name `%s` here, or have that changed first", user.Name, owner, owner)
	}
}

// mayUse tells whether an owner's routes may name a listener. What the first start made is everybody's, and stays where
// it is until it is replaced.
func mayUse(listener *lbdv1.Resource, owner string) bool {
	return listener.GetOwner() == owner || listener.GetOwner() == OwnerDev || owner == OwnerDev ||
		slices.Contains(listener.GetListener().GetAllowedOwners(), owner)
}

func (c *checker) checkListenerTimeouts(l *lbdv1.Listener) {
	t := l.GetTimeouts()
	c.checkWait("timeouts.handshake", t.GetHandshake())
	c.checkWait("timeouts.request_head", t.GetRequestHead())
	c.checkWait("timeouts.keep_alive_idle", t.GetKeepAliveIdle())
	c.checkWait("timeouts.write_stall", t.GetWriteStall())
	if t.GetHandshake() != nil && l.GetProtocol() == lbdv1.Protocol_PROTOCOL_HTTP {
		c.errorf("timeouts.handshake", "`handshake` is only for protocol HTTPS")
	}
}

func (c *checker) checkListenerLimits(l *lbdv1.ListenerLimits) {
	c.checkRange("limits.connections", int64(l.GetConnections()), 1, connectionsMax)
	c.checkRange("limits.requests_per_connection", int64(l.GetRequestsPerConnection()), 1, requestsPerConnectionMax)
	c.checkTimeout("limits.connection_age", l.GetConnectionAge())
	c.checkRange("limits.head_bytes", int64(l.GetHeadBytes()), requestHeadBytesMin, requestHeadBytesMax)
	c.checkRange("limits.fields", int64(l.GetFields()), requestFieldsMin, requestFieldsMax)
}

// checkListenAddress checks one address, and that nothing else listens there.
func (c *checker) checkListenAddress(path, address string, before []string) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		c.errorf(path, "`%s` is no address: write `host:port`, `:port` or `[v6]:port`", address)
		return
	}
	if fault := portFault(port); fault != "" {
		c.errorf(path, "`%s` %s", address, fault)
		return
	}
	if _, ok := splitIP(host); !ok && host != "" {
		c.errorf(path, "`%s` is no IP address of this machine: a name may mean another one on each node", host)
		return
	}
	if fault := zoneFault(host); fault != "" {
		c.errorf(path, "`%s` %s", address, fault)
		return
	}
	for _, other := range before {
		if h, p, err := net.SplitHostPort(other); err == nil && p == port && overlap(h, host) {
			c.errorf(path, "`%s` overlaps `%s` of the same listener", address, other)
			return
		}
	}
	c.checkListenClash(path, address, host, port)
	c.checkListenLoop(path, host, port)
}

func (c *checker) checkListenClash(path, address, host, port string) {
	c.next.indexed(listenIndex(port), func(rest string) bool {
		h, name, _ := strings.Cut(rest, sep)
		other := Key{Listeners, name}
		if other == c.key || !overlap(h, host) || !c.earlier(other) {
			return true
		}
		c.errorf(path, "`%s` overlaps `%s` of listener `%s`", address, net.JoinHostPort(h, port), name)
		return false
	})
}

// checkListenLoop finds pools that would send to the listener's own address; those in the change report it themselves.
func (c *checker) checkListenLoop(path, host, port string) {
	c.next.indexed(dialIndex(port), func(rest string) bool {
		backend, name, _ := strings.Cut(rest, sep)
		if _, changed := c.position[Key{Pools, name}]; changed || !reaches(backend, host) {
			return true
		}
		c.errorf(path, "is a backend of pool `%s`: requests would go in circles", name)
		return false
	})
}

// overlap tells whether two hosts of listeners with the same port want the same socket. All addresses ("" or "::")
// include every one, 0.0.0.0 every IPv4 address.
func overlap(a, b string) bool {
	if a == b || isAny(a) || isAny(b) {
		return true
	}
	return (a == "0.0.0.0" && isIPv4(b)) || (b == "0.0.0.0" && isIPv4(a))
}

// reaches tells whether a connection to a backend's host arrives at a listener's host on the same port. What other
// addresses this machine has is not known here.
func reaches(backend, listener string) bool {
	if backend == listener {
		return true
	}
	ip, isIP := splitIP(backend)
	local := isLocalName(backend) || (isIP && (ip.IsLoopback() || ip.IsUnspecified()))
	if !local {
		return false
	}
	bound, _ := splitIP(listener)
	return isAny(listener) || listener == "0.0.0.0" && (!isIP || ip.Is4()) || !isIP && bound.IsLoopback()
}

func isAny(host string) bool { return host == "" || host == "::" }

func isIPv4(host string) bool {
	ip, ok := splitIP(host)
	return ok && ip.Is4()
}

// indexListener finds a listener by the ports it binds and by the certificates it names.
func indexListener(name string, l *lbdv1.Listener) []string {
	var keys []string
	for _, address := range l.GetAddresses() {
		if host, port, err := net.SplitHostPort(address); err == nil {
			keys = append(keys, listenIndex(port)+join(host, name))
		}
	}
	for _, certificate := range append([]string{l.GetTls().GetDefaultCertificate()}, l.GetTls().GetCertificates()...) {
		if certificate != "" && !isLabel(certificate) {
			keys = append(keys, useIndex(Certificates, certificate)+join(string(Listeners), name))
		}
	}
	return keys
}

func normalizeListener(l *lbdv1.Listener) {
	for i, address := range l.GetAddresses() {
		l.Addresses[i] = NormalAddress(address)
	}
	normalizeNetworks(l.GetTrustedProxies())
	normalizeHeaderChanges(l.GetResponseHeaders())
	spellAs(l.GetTls().GetCipherSuites(), cipherSuites)
	spellAs(l.GetTls().GetGroups(), groups)
}
