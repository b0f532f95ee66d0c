package tlsterm

import (
	"crypto/tls"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"
)

// Use says who sees a certificate.
type Use struct {
	// Listeners are the names of those on which some client is shown it now, sorted. None: nobody sees it.
	Listeners []string
	// ShadowedBy has each of its hosts for which no client on any listener is shown it, since another certificate of that host
	// is: with the other one's name.
	ShadowedBy map[string]string
}

// Use of a certificate, by its resource's name, on all listeners as they are now.
func (t *Terminator) Use(name string) Use {
	set, now := t.certificates.Current(), t.certificates.now()
	c, use := set.Get(name), Use{}
	if c == nil {
		return use
	}
	listeners, seen := *t.listeners.Load(), map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(listeners)) {
		policy, shown := listeners[name].policy.Load(), false
		for host := range c.serverNames() {
			if set.seenIn(c, host, policy, now) != 0 {
				seen[host], shown = true, true
			}
		}
		if shown {
			use.Listeners = append(use.Listeners, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(listeners)) {
		set.shadows(c, listeners[name].policy.Load(), now, seen, &use)
	}
	return use
}

// shadows adds the hosts of c that a listener serves with another certificate, but for those by which c is seen.
func (s *Set) shadows(c *Certificate, p *Policy, now time.Time, seen map[string]bool, use *Use) {
	if !p.serves(c) {
		return
	}
	for _, host := range c.hosts {
		serverName := serverNameOf(host)
		if seen[serverName] || use.ShadowedBy[host] != "" {
			continue
		}
		other := s.forHello(helloOf(serverName, schemesByKind[c.kind], p.MaxVersion, p), p, now)
		if other == nil || other == c {
			continue
		}
		if use.ShadowedBy == nil {
			use.ShadowedBy = map[string]string{}
		}
		use.ShadowedBy[host] = other.name
	}
}

// Choice is what a client is shown, and why.
type Choice struct {
	Certificate *Certificate // nil: the handshake is refused
	Reason      string
}

// Choose is the choice on a listener as it is now; see Set.Choose.
func (t *Terminator) Choose(listener, serverName string, rsaOnly bool) (Choice, error) {
	l, err := t.listener(listener)
	if err != nil {
		return Choice{}, err
	}
	return t.certificates.Current().choice(serverName, rsaOnly, l.policy.Load(), t.certificates.now()), nil
}

// Choose says what a client of the highest version is shown that sends a server name (an address or "": it sends none), and
// can verify RSA alone or every kind of key. An error is a policy that cannot be offered.
func (s *Set) Choose(serverName string, rsaOnly bool, policy Policy, now time.Time) (Choice, error) {
	policy, err := policy.complete()
	if err != nil {
		return Choice{}, err
	}
	return s.choice(serverName, rsaOnly, &policy, now), nil
}

func (s *Set) choice(serverName string, rsaOnly bool, p *Policy, now time.Time) Choice {
	if isIP(strings.Trim(serverName, "[]")) {
		serverName = ""
	}
	schemes := slices.Concat(schemesByKind[:]...)
	if rsaOnly {
		schemes = schemesByKind[kindRSA]
	}
	hello := helloOf(serverName, schemes, p.MaxVersion, p)
	c := s.forHello(hello, p, now)
	why := s.reason(c, normalHost(serverName), p)
	switch {
	case c == nil:
	case !c.usable(hello):
		why += "; the client cannot verify its key"
	case now.After(c.leaf.NotAfter):
		why += "; it expired at " + c.leaf.NotAfter.UTC().Format(time.RFC3339)
	case !c.validAt(now):
		why += "; it is not valid before " + c.leaf.NotBefore.UTC().Format(time.RFC3339)
	}
	return Choice{Certificate: c, Reason: why}
}

// reason says by which rule c was chosen for host.
func (s *Set) reason(c *Certificate, host string, p *Policy) string {
	wildcard := "*." + parent(host)
	switch {
	case c != nil && slices.Contains(s.exact[host], c):
		return "exact host " + host + p.rank(s.exact[host])
	case c != nil && slices.Contains(s.wildcard[parent(host)], c):
		return "wildcard " + wildcard + p.rank(s.wildcard[parent(host)])
	}
	lack := "no certificate of this listener names " + host
	if host == "" {
		lack = "the client sends no server name"
	}
	switch {
	case c != nil:
		return "default certificate: " + lack
	case p.StrictSNI:
		return "unrecognized_name: " + lack + ", and strict_sni is on"
	}
	return "unrecognized_name: " + lack + ", and there is no default certificate"
}

// rank reminds of the order where a host has several certificates.
func (p *Policy) rank(list []*Certificate) string {
	n := 0
	for _, c := range list {
		if p.serves(c) {
			n++
		}
	}
	if n < 2 {
		return ""
	}
	return fmt.Sprintf(", of %d: what the client can verify and is valid, ECDSA first, then the newest", n)
}

// seenIn finds a version in which a client that asks for host, and can verify c's kind of key alone, is shown c; 0 if there is
// none.
func (s *Set) seenIn(c *Certificate, host string, p *Policy, now time.Time) uint16 {
	for version := p.MaxVersion; version >= p.MinVersion; version-- {
		hello := helloOf(host, schemesByKind[c.kind], version, p)
		if c.usable(hello) && s.forHello(hello, p, now) == c {
			return version
		}
	}
	return 0
}

// helloOf is what a client says that speaks one version, can do all that a policy offers and verifies some schemes. In TLS 1.2
// crypto/tls looks among the client's groups for the curve of an ECDSA key too.
func helloOf(host string, schemes []tls.SignatureScheme, version uint16, p *Policy) *tls.ClientHelloInfo {
	curves := p.Groups
	if p.hasGroupTLS12() {
		curves = everyGroup()
	}
	return &tls.ClientHelloInfo{
		ServerName:        host,
		SupportedVersions: []uint16{version},
		SignatureSchemes:  schemes,
		CipherSuites:      p.CipherSuites,
		SupportedCurves:   curves,
		SupportedPoints:   []uint8{0}, // uncompressed (RFC 8422, section 5.1.2)
	}
}

// anyLabel stands for the star of a wildcard.
const anyLabel = "lbd-proof"

// serverNameOf is a name that a client can ask for to see what a host of a certificate leads to.
func serverNameOf(host string) string {
	if suffix, ok := strings.CutPrefix(host, "*."); ok {
		return anyLabel + "." + suffix
	}
	return host
}

// serverNames are all by which a client may be shown c: one for each of its hosts, and none.
func (c *Certificate) serverNames() iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, host := range c.hosts {
			if !isIP(host) && !yield(serverNameOf(host)) {
				return
			}
		}
		yield("")
	}
}
