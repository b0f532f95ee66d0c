// Package tlstest makes throw-away certificates for tests: an authority, an intermediate, and leaves of every shape that a
// balancer meets. Keys are made once a process, since an RSA key costs a hundred milliseconds and proves nothing by being
// fresh.
package tlstest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// CA is an authority with an intermediate that signs its leaves.
type CA struct {
	tb           testing.TB
	root         *x509.Certificate
	intermediate *x509.Certificate
	key          crypto.Signer // of the intermediate
}

// Leaf says what certificate to make. The zero value but for Hosts is an ECDSA certificate that is valid now.
type Leaf struct {
	Hosts               []string // DNS names, wildcards and IP addresses
	CommonName          string   // beside the hosts
	RSA                 bool
	NotBefore, NotAfter time.Time // default: an hour ago, and a day after NotBefore
	// SharedKey uses one ECDSA key for all such leaves of the process: fast, for certificates by the thousand.
	SharedKey bool
	// OtherKey uses the second of the process's two RSA keys.
	OtherKey bool
	// Key is used in place of all of these.
	Key crypto.Signer
	// ForClients makes a certificate that says that it is for clients and says nothing of servers.
	ForClients bool
}

// Pair is a certificate with its key, in every form that our packages take.
type Pair struct {
	Chain    [][]byte // DER: leaf, intermediate
	KeyPKCS8 []byte
	Leaf     *x509.Certificate
	Key      crypto.Signer
}

// serial gives each certificate of the process its own number.
var serial atomic.Int64

// The process's keys. A test of a wrong RSA key needs a second one.
var (
	sharedECDSA = sync.OnceValue(newECDSA)
	sharedRSA   = sync.OnceValue(newRSA)
	otherRSA    = sync.OnceValue(newRSA)
)

// NewCA makes an authority that reports failures to tb.
func NewCA(tb testing.TB) *CA {
	tb.Helper()
	rootKey, key := newECDSA(), newECDSA()
	root := authority("lbd test root", 1)
	rootDER := sign(tb, root, root, rootKey.Public(), rootKey)
	root = parse(tb, rootDER)
	intermediate := parse(tb, sign(tb, authority("lbd test intermediate", 0), root, key.Public(), rootKey))
	return &CA{tb: tb, root: root, intermediate: intermediate, key: key}
}

// Issue makes a certificate.
func (ca *CA) Issue(l Leaf) *Pair {
	ca.tb.Helper()
	if l.NotBefore.IsZero() {
		l.NotBefore = time.Now().Add(-time.Hour)
	}
	if l.NotAfter.IsZero() {
		l.NotAfter = l.NotBefore.Add(24 * time.Hour)
	}
	key := l.key()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(0x1000 + serial.Add(1)),
		Subject:      pkix.Name{CommonName: l.CommonName},
		NotBefore:    l.NotBefore,
		NotAfter:     l.NotAfter,
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if l.ForClients {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	}
	for _, host := range l.Hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	der := sign(ca.tb, template, ca.intermediate, key.Public(), ca.key)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		ca.tb.Fatal(err)
	}
	return &Pair{
		Chain:    [][]byte{der, ca.intermediate.Raw},
		KeyPKCS8: pkcs8,
		Leaf:     parse(ca.tb, der),
		Key:      key,
	}
}

// ECDSA makes a P-256 certificate for hosts that is valid now.
func (ca *CA) ECDSA(hosts ...string) *Pair {
	ca.tb.Helper()
	return ca.Issue(Leaf{Hosts: hosts})
}

// RSA makes an RSA-2048 certificate for hosts that is valid now.
func (ca *CA) RSA(hosts ...string) *Pair {
	ca.tb.Helper()
	return ca.Issue(Leaf{Hosts: hosts, RSA: true})
}

// Expired makes a certificate that ended an hour ago.
func (ca *CA) Expired(hosts ...string) *Pair {
	ca.tb.Helper()
	return ca.Issue(Leaf{Hosts: hosts, NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(-time.Hour)})
}

// NotYetValid makes a certificate that begins in an hour.
func (ca *CA) NotYetValid(hosts ...string) *Pair {
	ca.tb.Helper()
	return ca.Issue(Leaf{Hosts: hosts, NotBefore: time.Now().Add(time.Hour)})
}

// Pool trusts the root alone, as a client does.
func (ca *CA) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(ca.root)
	return pool
}

// RootPEM is the root, as a trust bundle names it.
func (ca *CA) RootPEM() []byte { return encode("CERTIFICATE", ca.root.Raw) }

// ChainPEM is the chain, leaf first.
func (p *Pair) ChainPEM() []byte {
	var text []byte
	for _, der := range p.Chain {
		text = append(text, encode("CERTIFICATE", der)...)
	}
	return text
}

// ReversedChainPEM is the chain in the wrong order: the issuer first.
func (p *Pair) ReversedChainPEM() []byte {
	return append(encode("CERTIFICATE", p.Chain[1]), encode("CERTIFICATE", p.Chain[0])...)
}

// KeyPEM is the key in PKCS #8.
func (p *Pair) KeyPEM() []byte { return encode("PRIVATE KEY", p.KeyPKCS8) }

// LegacyKeyPEM is the key in the older form of its kind: PKCS #1 for RSA, SEC 1 for ECDSA.
func (p *Pair) LegacyKeyPEM() []byte {
	switch key := p.Key.(type) {
	case *rsa.PrivateKey:
		return encode("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(key))
	case *ecdsa.PrivateKey:
		if der, err := x509.MarshalECPrivateKey(key); err == nil {
			return encode("EC PRIVATE KEY", der)
		}
	}
	return nil
}

// Serial is the leaf's serial number as status and proof write it.
func (p *Pair) Serial() string { return p.Leaf.SerialNumber.Text(16) }

func (l Leaf) key() crypto.Signer {
	switch {
	case l.Key != nil:
		return l.Key
	case l.RSA && l.OtherKey:
		return otherRSA()
	case l.RSA:
		return sharedRSA()
	case l.SharedKey:
		return sharedECDSA()
	}
	return newECDSA()
}

func authority(name string, pathLen int) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber:          big.NewInt(0x1000 + serial.Add(1)),
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             time.Now().Add(-1000 * time.Hour),
		NotAfter:              time.Now().Add(1000 * time.Hour),
		KeyUsage:              x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLen:            pathLen,
		MaxPathLenZero:        pathLen == 0,
	}
}

func sign(tb testing.TB, template, parent *x509.Certificate, public crypto.PublicKey, key crypto.Signer) []byte {
	tb.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		tb.Fatal(err)
	}
	return der
}

func parse(tb testing.TB, der []byte) *x509.Certificate {
	tb.Helper()
	c, err := x509.ParseCertificate(der)
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func newECDSA() crypto.Signer {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	return key
}

func newRSA() crypto.Signer {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return key
}
