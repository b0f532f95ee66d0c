package state

import (
	"net"
	"strings"

	lbdv1 "lbd/proto/lbd/v1"
)

func checkListener(c *checker, l *lbdv1.Listener) {
	c.checkCount("addresses", "address", len(l.GetAddresses()), addressesMax)
	for i, address := range l.GetAddresses() {
		c.checkListenAddress(itemPath("addresses", i), address, l.GetAddresses()[:i])
	}
	switch l.GetProtocol() {
	case lbdv1.Protocol_PROTOCOL_UNSPECIFIED:
		c.errorf("protocol", "is required: `HTTP` or `HTTPS`")
	case lbdv1.Protocol_PROTOCOL_HTTP:
		if l.GetTls() != nil {
			c.errorf("tls", "`tls` is only for protocol HTTPS")
		}
	case lbdv1.Protocol_PROTOCOL_HTTPS:
		c.checkListenerTLS(l.GetTls())
	default:
		c.errorf("protocol", "unknown protocol %d (HTTP, HTTPS)", l.GetProtocol())
	}
	c.checkListenerTimeouts(l)
	c.checkListenerLimits(l.GetLimits())
	c.checkTrustedProxies(l.GetTrustedProxies())
	if l.GetHealthPath() != "" {
		c.checkTarget("health_path", l.GetHealthPath())
	}
}

func (c *checker) checkListenerTimeouts(l *lbdv1.Listener) {
	t := l.GetTimeouts()
	c.checkLength("timeouts.handshake", t.GetHandshake())
	c.checkLength("timeouts.request_head", t.GetRequestHead())
	c.checkLength("timeouts.keep_alive_idle", t.GetKeepAliveIdle())
	c.checkLength("timeouts.write_stall", t.GetWriteStall())
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

func (c *checker) checkTrustedProxies(networks []string) {
	if n := len(networks); n > trustedProxiesMax {
		c.errorf("trusted_proxies", "are %d: at most %d", n, trustedProxiesMax)
	}
	c.checkDistinct("trusted_proxies", networks)
	for i, network := range networks {
		path := itemPath("trusted_proxies", i)
		switch p, err := ParseNetwork(network); {
		case err != nil:
			c.errorf(path, "`%s` is no network: write `10.0.0.0/8`, `2001:db8::/32` or one address", network)
		case p != p.Masked():
			c.errorf(path, "`%s` has bits set behind its prefix: write `%s`", network, p.Masked())
		}
	}
}

// checkCount checks that a list has at least one element and at most limit.
func (c *checker) checkCount(path, one string, n, limit int) {
	switch {
	case n == 0:
		c.errorf(path, "is required: at least one %s", one)
	case n > limit:
		c.errorf(path, "are %d: at most %d", n, limit)
	}
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

func checkTLSVersion(c *checker, path string, v lbdv1.TlsVersion) {
	if _, known := lbdv1.TlsVersion_name[int32(v)]; !known {
		c.errorf(path, "unknown version %d (TLS12, TLS13)", v)
	}
}

func (c *checker) checkListenerTLS(t *lbdv1.ListenerTls) {
	checkTLSVersion(c, "tls.min_version", t.GetMinVersion())
	checkTLSVersion(c, "tls.max_version", t.GetMaxVersion())
	lowest, highest := t.GetMinVersion(), t.GetMaxVersion()
	if lowest == 0 {
		lowest = lbdv1.TlsVersion_TLS_VERSION_TLS12
	}
	if highest != 0 && highest < lowest {
		c.errorf("tls.max_version", "must not be below min_version (%s)", strings.TrimPrefix(lowest.String(), "TLS_VERSION_"))
	}
	if name := t.GetDefaultCertificate(); name != "" {
		c.refer("tls.default_certificate", Certificates, name)
	}
}
