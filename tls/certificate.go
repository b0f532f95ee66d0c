// Package tlsterm ends TLS for the data plane: certificates by server name behind one pointer, a policy per listener, and
// a handshake whose expensive part can leave the caller's loop.
//
// It knows nothing of HTTP, pools or the control plane. Names, times and keys come in as arguments.
package tlsterm

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"
)

// Certificate is one certificate ready to serve: a chain, its parsed leaf and its private key. It never changes.
type Certificate struct {
	name   string
	leaf   *x509.Certificate
	kind   keyKind
	hosts  []string
	served tls.Certificate
}

// keyKind is the kind of a leaf's key, in the order in which we prefer to serve it.
type keyKind uint8

const (
	kindECDSA keyKind = iota
	kindEd25519
	kindRSA
	keyKinds
)

// NewCertificate makes a servable certificate from DER: chain is leaf first, key is PKCS #8 (RFC 5208). It refuses a key
// that does not belong to the leaf and a leaf that names no host. It does not judge validity or the chain's order: what
// is stored has passed ParsePEM, and an expired certificate is still better than none.
func NewCertificate(name string, chain [][]byte, key []byte) (*Certificate, error) {
	if len(chain) == 0 {
		return nil, fmt.Errorf("certificate %s: the chain is empty", name)
	}
	leaf, err := x509.ParseCertificate(chain[0])
	if err != nil {
		return nil, fmt.Errorf("certificate %s: parse leaf: %w", name, err)
	}
	signer, err := parsePKCS8(key)
	if err != nil {
		return nil, fmt.Errorf("certificate %s: %w", name, err)
	}
	if err := matchKey(leaf, signer); err != nil {
		return nil, fmt.Errorf("certificate %s: %w", name, err)
	}
	hosts, err := leafHosts(leaf)
	if err != nil {
		return nil, fmt.Errorf("certificate %s: %w", name, err)
	}
	kind, err := kindOf(signer.Public())
	if err != nil {
		return nil, fmt.Errorf("certificate %s: %w", name, err)
	}
	return &Certificate{
		name:   name,
		leaf:   leaf,
		kind:   kind,
		hosts:  hosts,
		served: tls.Certificate{Certificate: chain, PrivateKey: signer, Leaf: leaf},
	}, nil
}

// Name is the resource's name.
func (c *Certificate) Name() string { return c.name }

// Hosts are the leaf's DNS names, lower case, wildcards as "*.example.com". The caller must not change them.
func (c *Certificate) Hosts() []string { return c.hosts }

// KeyType is the kind and size of the leaf's key: "ECDSA_P256", "RSA_2048", "ED25519".
func (c *Certificate) KeyType() string {
	switch public := c.leaf.PublicKey.(type) {
	case *ecdsa.PublicKey:
		return "ECDSA_" + strings.ReplaceAll(public.Curve.Params().Name, "-", "")
	case *rsa.PublicKey:
		return fmt.Sprintf("RSA_%d", public.N.BitLen())
	}
	return "ED25519"
}

// Serial is the leaf's serial number in lower-case hexadecimal without separators.
func (c *Certificate) Serial() string { return serialOf(c.leaf) }

// NotAfter is the last moment at which the leaf is valid.
func (c *Certificate) NotAfter() time.Time { return c.leaf.NotAfter }

// validAt reports whether a client whose clock shows now accepts the leaf's dates.
func (c *Certificate) validAt(now time.Time) bool {
	return !now.Before(c.leaf.NotBefore) && !now.After(c.leaf.NotAfter)
}

// serialOf writes a serial number as every answer of ours shows it.
func serialOf(leaf *x509.Certificate) string { return fmt.Sprintf("%x", leaf.SerialNumber) }

// parsePKCS8 reads a private key that can sign in TLS.
func parsePKCS8(der []byte) (crypto.Signer, error) {
	key, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, fmt.Errorf("parse key: %w", err)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("a key of type %T cannot sign", key)
	}
	return signer, nil
}

// errKeyMismatch is what an operator reads who has paired the wrong two files.
var errKeyMismatch = errors.New("the key does not belong to the leaf certificate")

func matchKey(leaf *x509.Certificate, key crypto.Signer) error {
	public, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !public.Equal(leaf.PublicKey) {
		return errKeyMismatch
	}
	return nil
}

// kindOf sorts a public key and refuses what clients would refuse.
func kindOf(public crypto.PublicKey) (keyKind, error) {
	switch public := public.(type) {
	case *ecdsa.PublicKey:
		if curve := public.Curve.Params(); curve.BitSize < 256 {
			return 0, fmt.Errorf("a key on curve %s cannot be served: use P-256, P-384 or P-521", curve.Name)
		}
		return kindECDSA, nil
	case ed25519.PublicKey:
		return kindEd25519, nil
	case *rsa.PublicKey:
		if bits := public.N.BitLen(); bits < rsaBitsMin || bits > rsaBitsMax {
			return 0, fmt.Errorf("an RSA key of %d bits cannot be served: %d to %d", bits, rsaBitsMin, rsaBitsMax)
		}
		return kindRSA, nil
	}
	return 0, fmt.Errorf("a key of type %T cannot be served: use ECDSA, RSA or Ed25519", public)
}

// leafHosts lists the leaf's DNS names, normalised. A leaf with IP addresses alone has none of them, but is good as a
// listener's default: a client that dials an address sends no server name. One that is for clients alone needs no name either:
// it is shown to backends. The common name counts for nothing (RFC 9525, section 2).
func leafHosts(leaf *x509.Certificate) ([]string, error) {
	if len(leaf.DNSNames) == 0 && len(leaf.IPAddresses) == 0 && !clientOnly(leaf) {
		return nil, errors.New("the leaf has no DNS name and no IP address (subject alternative name); clients ignore the common name")
	}
	hosts := make([]string, 0, len(leaf.DNSNames))
	for _, host := range leaf.DNSNames {
		hosts = append(hosts, normalHost(host))
	}
	return hosts, nil
}

// clientOnly reports whether a leaf says that it is for clients and says nothing of servers (RFC 5280, section 4.2.1.12).
func clientOnly(leaf *x509.Certificate) bool {
	return slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageClientAuth) &&
		!slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageServerAuth) && !slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageAny)
}

// normalHost is a server name as the set is keyed: lower case, without the root's dot. It allocates only if it changes
// something.
func normalHost(host string) string {
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// isIP reports whether host is an address, which is never sent as a server name (RFC 6066, section 3).
func isIP(host string) bool { return net.ParseIP(host) != nil }
