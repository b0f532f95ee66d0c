package tlsterm

import (
	"cmp"
	"crypto/tls"
	"iter"
	"slices"
	"strings"
	"time"
)

// Set is every certificate of a node, indexed for the handshake. It never changes: a new one replaces it.
type Set struct {
	sorted []*Certificate // by name
	// Both are keyed by normalised host, a wildcard by what follows "*.". Each list is in serving order.
	exact, wildcard map[string][]*Certificate
	byName          map[string]*Certificate
}

// NewSet indexes certificates. Names are unique. The order of the argument decides nothing.
func NewSet(certificates []*Certificate) *Set {
	s := &Set{
		sorted:   slices.Clone(certificates),
		exact:    make(map[string][]*Certificate, len(certificates)),
		wildcard: make(map[string][]*Certificate),
		byName:   make(map[string]*Certificate, len(certificates)),
	}
	slices.SortFunc(s.sorted, func(a, b *Certificate) int { return strings.Compare(a.name, b.name) })
	for _, c := range s.sorted {
		s.byName[c.name] = c
		for _, host := range c.hosts {
			if suffix, ok := strings.CutPrefix(host, "*."); ok {
				s.wildcard[suffix] = insert(s.wildcard[suffix], c)
			} else {
				s.exact[host] = insert(s.exact[host], c)
			}
		}
	}
	return s
}

// insert keeps a host's certificates in serving order. A leaf that spells one name twice is listed once.
func insert(list []*Certificate, c *Certificate) []*Certificate {
	at, found := slices.BinarySearchFunc(list, c, servingOrder)
	if found {
		return list
	}
	return slices.Insert(list, at, c)
}

// servingOrder puts ECDSA first (its signature costs us a thirtieth of RSA's), then the newest; names break ties, so that
// every node serves the same one.
func servingOrder(a, b *Certificate) int {
	return cmp.Or(
		cmp.Compare(a.kind, b.kind),
		b.leaf.NotBefore.Compare(a.leaf.NotBefore),
		strings.Compare(a.name, b.name),
	)
}

// All lists the certificates by name.
func (s *Set) All() iter.Seq[*Certificate] { return slices.Values(s.sorted) }

// Get finds a certificate by its resource's name, or nil.
func (s *Set) Get(name string) *Certificate { return s.byName[name] }

// forHello chooses a certificate among the policy's: exact host before wildcard (one label) before the listener's default; of a
// host's certificates the first in serving order that the client can verify and whose dates are good. If none is both, one
// with bad dates that it can verify, then the first there is: the client's own words about it say more than our refusal. Nil if
// nothing names the host and there is no default.
func (s *Set) forHello(hello *tls.ClientHelloInfo, p *Policy, now time.Time) *Certificate {
	host := normalHost(hello.ServerName)
	exact := s.exact[host]
	if len(exact) == 1 && p.serves(exact[0]) && exact[0].usable(hello) && exact[0].validAt(now) {
		return exact[0]
	}
	if c := p.choose(exact, s.wildcard[parent(host)], hello, now); c != nil {
		return c
	}
	return s.byName[p.DefaultCertificate]
}

// choose picks from an exact host's certificates, then its wildcard's; nil if the policy serves none of them.
func (p *Policy) choose(exact, wildcard []*Certificate, hello *tls.ClientHelloInfo, now time.Time) *Certificate {
	var first, stale *Certificate
	for _, list := range [...][]*Certificate{exact, wildcard} {
		for _, c := range list {
			if !p.serves(c) {
				continue
			}
			if first == nil {
				first = c
			}
			if !c.usable(hello) {
				continue
			}
			if c.validAt(now) {
				return c
			}
			if stale == nil {
				stale = c
			}
		}
	}
	return cmp.Or(stale, first)
}

// knows reports whether there is any certificate for a server name: one that names it, or a default.
func (s *Set) knows(serverName string, p *Policy) bool {
	host := normalHost(serverName)
	return s.byName[p.DefaultCertificate] != nil ||
		slices.ContainsFunc(s.exact[host], p.serves) || slices.ContainsFunc(s.wildcard[parent(host)], p.serves)
}

// usable reports whether the client can verify a signature by the certificate's key. The name is taken out: it is
// matched already, by our rule.
func (c *Certificate) usable(hello *tls.ClientHelloInfo) bool {
	nameless := *hello
	nameless.ServerName = ""
	return nameless.SupportsCertificate(&c.served) == nil
}

// parent is host without its first label, or "", which no wildcard has.
func parent(host string) string {
	_, rest, _ := strings.Cut(host, ".")
	return rest
}
