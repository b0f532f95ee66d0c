package tlsterm

import (
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"strings"
	"testing"
	"time"

	"lbd/tls/tlstest"
)

func TestNewCertificate(t *testing.T) {
	ca := tlstest.NewCA(t)
	pair := ca.ECDSA("Shop.Example.com.", "*.example.com")
	c := certificate(t, "shop", pair)
	if c.Name() != "shop" || c.Serial() != pair.Serial() || !c.NotAfter().Equal(pair.Leaf.NotAfter) {
		t.Errorf("name %q, serial %q, not after %s", c.Name(), c.Serial(), c.NotAfter())
	}
	if got := strings.Join(c.hosts, " "); got != "shop.example.com *.example.com" {
		t.Errorf("hosts %q", got)
	}
}

func TestNewCertificateRefuses(t *testing.T) {
	ca := tlstest.NewCA(t)
	good, other := ca.ECDSA("a.example.com"), ca.ECDSA("a.example.com")
	rsaPair := ca.RSA("a.example.com")
	nameless := ca.Issue(tlstest.Leaf{CommonName: "a.example.com"})
	for _, test := range []struct {
		name  string
		chain [][]byte
		key   []byte
		want  string
	}{
		{"no chain", nil, good.KeyPKCS8, "the chain is empty"},
		{"no certificate", [][]byte{{1, 2, 3}}, good.KeyPKCS8, "parse leaf"},
		{"no key", good.Chain, nil, "parse key"},
		{"another's key", good.Chain, other.KeyPKCS8, "the key does not belong to the leaf certificate"},
		{"another kind of key", good.Chain, rsaPair.KeyPKCS8, "the key does not belong to the leaf certificate"},
		{"no hosts", nameless.Chain, nameless.KeyPKCS8, "clients ignore the common name"},
	} {
		_, err := NewCertificate("a", test.chain, test.key)
		if err == nil || !strings.HasPrefix(err.Error(), "certificate a: ") || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", test.name, err, test.want)
		}
	}
}

func TestKindOf(t *testing.T) {
	p224, _ := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	p521, _ := ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	ed, _, _ := ed25519.GenerateKey(rand.Reader)
	modulus := func(bits uint) *rsa.PublicKey {
		return &rsa.PublicKey{N: new(big.Int).SetBit(new(big.Int), int(bits)-1, 1), E: 65537}
	}
	for _, test := range []struct {
		public any
		kind   keyKind
		want   string
	}{
		{p521.Public(), kindECDSA, ""},
		{ed, kindEd25519, ""},
		{modulus(2048), kindRSA, ""},
		{modulus(8192), kindRSA, ""},
		{p224.Public(), 0, "a key on curve P-224 cannot be served: use P-256, P-384 or P-521"},
		{modulus(1024), 0, "an RSA key of 1024 bits cannot be served: 2048 to 8192"},
		{modulus(16384), 0, "an RSA key of 16384 bits cannot be served: 2048 to 8192"},
		{"no key", 0, "a key of type string cannot be served: use ECDSA, RSA or Ed25519"},
	} {
		kind, err := kindOf(test.public)
		if kind != test.kind || text(err) != test.want {
			t.Errorf("got %d, %v, want %d, %q", kind, err, test.kind, test.want)
		}
	}
}

// TestNewCertificateKeys: a key that cannot sign, and one that no client accepts.
func TestNewCertificateKeys(t *testing.T) {
	key, _ := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "x"}, DNSNames: []string{"x"}, NotAfter: time.Now()}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, _ := x509.MarshalPKCS8PrivateKey(key)
	if _, err := NewCertificate("x", [][]byte{der}, pkcs8); err == nil || !strings.Contains(err.Error(), "P-224") {
		t.Errorf("got %v", err)
	}
	x25519, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, _ = x509.MarshalPKCS8PrivateKey(x25519)
	if _, err := NewCertificate("x", [][]byte{der}, pkcs8); err == nil || !strings.Contains(err.Error(), "cannot sign") {
		t.Errorf("got %v", err)
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
