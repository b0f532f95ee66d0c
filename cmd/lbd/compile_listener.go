package main

import (
	"cmp"
	"crypto/tls"
	"net/netip"
	"slices"
	"strings"
	"time"

	"lbd/cluster/state"
	"lbd/lb"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
	tlsterm "lbd/tls"
)

type listener struct {
	revision  int64
	config    lb.ListenerConfig
	policy    tlsterm.Policy // without the names that selectors lead to: certificates change on their own
	selectors []string       // certificates by name or label; none: all
	err       error          // why it could not be bound when that was tried last
}

func (l listener) key() state.Key { return state.Key{Kind: state.Listeners, Name: l.config.Name} }

func compileListener(s *raftv1.StoredResource, override string) (listener, error) {
	l := s.GetResource().GetListener()
	c := listener{
		revision:  s.GetResource().GetRevision(),
		config:    listenerConfig(l),
		selectors: l.GetTls().GetCertificates(),
		policy: tlsterm.Policy{
			MinVersion:         tlsVersion(l.GetTls().GetMinVersion()),
			MaxVersion:         tlsVersion(l.GetTls().GetMaxVersion()),
			DefaultCertificate: cmp.Or(l.GetTls().GetDefaultCertificate(), "default"),
			StrictSNI:          l.GetTls().GetStrictSni(),
		},
	}
	for _, name := range l.GetTls().GetCipherSuites() {
		suite, err := tlsterm.ParseCipherSuite(name)
		if err != nil {
			return c, err
		}
		c.policy.CipherSuites = append(c.policy.CipherSuites, suite)
	}
	for _, name := range l.GetTls().GetGroups() {
		group, err := tlsterm.ParseGroup(name)
		if err != nil {
			return c, err
		}
		c.policy.Groups = append(c.policy.Groups, group)
	}
	if override != "" {
		c.config.Addresses = []string{override}
	}
	return c, nil
}

func listenerConfig(l *lbdv1.Listener) lb.ListenerConfig {
	t, limits := l.GetTimeouts(), l.GetLimits()
	return lb.ListenerConfig{
		Name:      l.GetName(),
		Addresses: l.GetAddresses(),
		TLS:       l.GetProtocol() == lbdv1.Protocol_PROTOCOL_HTTPS,
		Timeouts: lb.Timeouts{
			Handshake:     t.GetHandshake().AsDuration(),
			RequestHead:   t.GetRequestHead().AsDuration(),
			KeepAliveIdle: t.GetKeepAliveIdle().AsDuration(),
			WriteStall:    t.GetWriteStall().AsDuration(),
		},
		Limits: lb.Limits{
			Connections:   int(limits.GetConnections()),
			Requests:      int(limits.GetRequestsPerConnection()),
			ConnectionAge: timeout(limits.GetConnectionAge()),
			HeadBytes:     int(limits.GetHeadBytes()),
			Fields:        int(limits.GetFields()),
		},
		Trusted:     networks(l.GetTrustedProxies()),
		Forwarded:   l.GetForwarded(),
		Underscores: l.GetAllowUnderscores(),
		HealthPath:  l.GetHealthPath(),
		DeferAccept: l.GetDeferAccept(),

		ResponseHeaders: compileHeaderChanges(l.GetResponseHeaders()),
	}
}

// timeout is 0 where the document leaves the default.
func timeout(t *lbdv1.Timeout) time.Duration {
	if t.GetDisabled() {
		return lb.Off
	}
	return t.GetDuration().AsDuration()
}

// networks are what Validate has let pass.
func networks(texts []string) []netip.Prefix {
	var all []netip.Prefix
	for _, text := range texts {
		if p, err := state.ParseNetwork(text); err == nil {
			all = append(all, p)
		}
	}
	return all
}

// places are where the listeners are, in order; a port that the kernel chooses is none.
func (c *compiled) places() []netip.AddrPort {
	var all []netip.AddrPort
	for _, l := range c.listeners {
		all = append(all, l.places()...)
	}
	slices.SortFunc(all, netip.AddrPort.Compare)
	return all
}

// places are where a listener is.
func (l listener) places() []netip.AddrPort { return listenPlaces(l.config.Addresses) }

func listenPlaces(addresses []string) []netip.AddrPort {
	var all []netip.AddrPort
	for _, address := range addresses {
		if strings.HasPrefix(address, ":") {
			address = "[::]" + address
		}
		if p, err := netip.ParseAddrPort(address); err == nil && p.Port() != 0 {
			all = append(all, unzoned(p))
		}
	}
	return all
}

func tlsVersion(v lbdv1.TlsVersion) uint16 {
	switch v {
	case lbdv1.TlsVersion_TLS_VERSION_TLS12:
		return tls.VersionTLS12
	case lbdv1.TlsVersion_TLS_VERSION_TLS13:
		return tls.VersionTLS13
	}
	return 0
}

// offered is a listener's policy with the names of the certificates that its selectors lead to now.
func (c *compiled) offered(l listener) tlsterm.Policy {
	policy := l.policy
	if len(l.selectors) == 0 {
		return policy
	}
	policy.Certificates = map[string]bool{}
	for name, cert := range c.certificates {
		for _, selector := range l.selectors {
			if selector == name || hasLabel(cert.labels, selector) {
				policy.Certificates[name] = true
			}
		}
	}
	return policy
}

func hasLabel(labels map[string]string, selector string) bool {
	key, value, is := strings.Cut(selector, "=")
	have, ok := labels[key]
	return is && ok && have == value
}
