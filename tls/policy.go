package tlsterm

import (
	"cmp"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Policy is what one listener offers. It is not changed once it has been handed over.
type Policy struct {
	// MinVersion and MaxVersion are tls.VersionTLS12 or tls.VersionTLS13; 0 is 1.2 for the least and 1.3 for the most.
	MinVersion, MaxVersion uint16
	// DefaultCertificate is the name of the certificate for clients that send no server name or one that no certificate
	// has. If there is none of that name such a client is refused (alert unrecognized_name, RFC 6066 section 3).
	DefaultCertificate string
	// StrictSNI refuses such clients always: DefaultCertificate counts for nothing.
	StrictSNI bool
	// Certificates are the names of those that are served; nil is all. The default is served in any case.
	Certificates map[string]bool
	// CipherSuites are those offered in TLS 1.2, in no order; none is the six with forward secrecy and authenticated encryption.
	// Those of TLS 1.3 are not to be chosen.
	CipherSuites []uint16
	// NoTickets has none issued and none accepted, in either version.
	NoTickets bool
	// ClientPolicy is a digest of what is demanded of clients; a ticket is good for the same alone. Zero: nothing is.
	ClientPolicy [sha256.Size]byte
	// Groups are the key exchange groups, in no order; none is X25519MLKEM768, SecP256r1MLKEM768, X25519, P256 and P384.
	Groups []tls.CurveID
}

// cipherSuites are the suites of TLS 1.2 that can be offered. All have forward secrecy; the first suitesByDefault have
// authenticated encryption too, the others are for who has old clients and asks.
var cipherSuites = []uint16{
	tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
	tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
	tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
	tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
	tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
	tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
	tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA,
	tls.TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA,
	tls.TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA,
	tls.TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA,
}

const suitesByDefault = 6

// group is a key exchange group and what is to be known of it.
type group struct {
	name      string
	id        tls.CurveID
	byDefault bool
	tls12     bool // exists in TLS 1.2
}

// groups are all that can be offered. The largest of each kind cost the most and gain the least: they are for who asks.
var groups = []group{
	{"X25519MLKEM768", tls.X25519MLKEM768, true, false},
	{"SecP256r1MLKEM768", tls.SecP256r1MLKEM768, true, false},
	{"SecP384r1MLKEM1024", tls.SecP384r1MLKEM1024, false, false},
	{"X25519", tls.X25519, true, true},
	{"P256", tls.CurveP256, true, true},
	{"P384", tls.CurveP384, true, true},
	{"P521", tls.CurveP521, false, true},
}

// ParseCipherSuite finds a suite of TLS 1.2 by its IANA name, in any case. One that cannot be offered is an error that says why.
func ParseCipherSuite(name string) (uint16, error) {
	for _, suite := range slices.Concat(tls.CipherSuites(), tls.InsecureCipherSuites()) {
		switch {
		case !strings.EqualFold(suite.Name, name):
		case slices.Contains(cipherSuites, suite.ID):
			return suite.ID, nil
		case !slices.Contains(suite.SupportedVersions, tls.VersionTLS12):
			return 0, fmt.Errorf("cipher suite %s is one of TLS 1.3, which are not to be chosen", suite.Name)
		default:
			return 0, fmt.Errorf("cipher suite %s is not safe: want one of %s", suite.Name, suiteNames())
		}
	}
	return 0, fmt.Errorf("no cipher suite %q: want one of %s", name, suiteNames())
}

// ParseGroup finds a key exchange group by its name, in any case.
func ParseGroup(name string) (tls.CurveID, error) {
	names := make([]string, 0, len(groups))
	for _, g := range groups {
		if strings.EqualFold(g.name, name) {
			return g.id, nil
		}
		names = append(names, g.name)
	}
	return 0, fmt.Errorf("no group %q: want one of %s", name, strings.Join(names, ", "))
}

// everyGroup is for a client that can do all that a listener may offer.
func everyGroup() []tls.CurveID {
	ids := make([]tls.CurveID, 0, len(groups))
	for _, g := range groups {
		ids = append(ids, g.id)
	}
	return ids
}

func suiteNames() string {
	names := make([]string, 0, len(cipherSuites))
	for _, id := range cipherSuites {
		names = append(names, tls.CipherSuiteName(id))
	}
	return strings.Join(names, ", ")
}

// complete fills in defaults and refuses what cannot or should not be offered.
func (p Policy) complete() (Policy, error) {
	p.MinVersion = cmp.Or(p.MinVersion, tls.VersionTLS12)
	p.MaxVersion = cmp.Or(p.MaxVersion, tls.VersionTLS13)
	if p.MinVersion < tls.VersionTLS12 || p.MaxVersion > tls.VersionTLS13 || p.MaxVersion < p.MinVersion {
		return p, fmt.Errorf("cannot offer %s to %s: TLS 1.2 and 1.3 are safe to offer, the maximum not below the minimum",
			tls.VersionName(p.MinVersion), tls.VersionName(p.MaxVersion))
	}
	if p.StrictSNI {
		p.DefaultCertificate = ""
	}
	if len(p.CipherSuites) == 0 {
		p.CipherSuites = cipherSuites[:suitesByDefault]
	}
	for _, id := range p.CipherSuites {
		if !slices.Contains(cipherSuites, id) {
			return p, fmt.Errorf("cannot offer cipher suite %s: want some of %s", tls.CipherSuiteName(id), suiteNames())
		}
	}
	if len(p.Groups) == 0 {
		for _, g := range groups {
			if g.byDefault {
				p.Groups = append(p.Groups, g.id)
			}
		}
	}
	return p, p.checkGroups()
}

// checkGroups refuses groups that are unknown or leave the highest version without any.
func (p *Policy) checkGroups() error {
	for _, id := range p.Groups {
		if !slices.ContainsFunc(groups, func(g group) bool { return g.id == id }) {
			return fmt.Errorf("cannot offer group %s", id)
		}
	}
	if p.MaxVersion == tls.VersionTLS12 && !p.hasGroupTLS12() {
		return errors.New("none of the groups exists in TLS 1.2, the maximum: add X25519 or P256")
	}
	return nil
}

func (p *Policy) hasGroupTLS12() bool {
	return slices.ContainsFunc(groups, func(g group) bool { return g.tls12 && slices.Contains(p.Groups, g.id) })
}

// configure writes what crypto/tls has to know into a listener's config.
func (p *Policy) configure(c *tls.Config) {
	c.MinVersion, c.MaxVersion = p.MinVersion, p.MaxVersion
	c.CipherSuites, c.CurvePreferences = p.CipherSuites, p.Groups
}

// configuresLike reports whether two policies are the same to crypto/tls.
func (p *Policy) configuresLike(other *Policy) bool {
	return p.MinVersion == other.MinVersion && p.MaxVersion == other.MaxVersion &&
		slices.Equal(p.CipherSuites, other.CipherSuites) && slices.Equal(p.Groups, other.Groups)
}

// serves reports whether a certificate is one of the listener's.
func (p *Policy) serves(c *Certificate) bool {
	return p.Certificates == nil || p.Certificates[c.name] || c.name == p.DefaultCertificate
}
