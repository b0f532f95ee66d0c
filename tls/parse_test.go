package tlsterm

import (
	"bytes"
	"crypto/ecdh"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"testing"
	"time"

	"lbd/tls/tlstest"
)

func TestParsePEM(t *testing.T) {
	ca := tlstest.NewCA(t)
	ec, rsaPair := ca.ECDSA("a.org"), ca.RSA("a.org")
	combined := append(ec.ChainPEM(), ec.KeyPEM()...)
	comment := func(text []byte) []byte { return append([]byte("subject=CN = a.org\n"), text...) }
	parameters := pem.EncodeToMemory(&pem.Block{Type: "EC PARAMETERS", Bytes: []byte{6, 8, 42, 134, 72, 206, 61, 3, 1, 7}})
	for _, test := range []struct {
		name       string
		chain, key []byte
		want       *tlstest.Pair
	}{
		{"PKCS #8, ECDSA", ec.ChainPEM(), ec.KeyPEM(), ec},
		{"PKCS #8, RSA", rsaPair.ChainPEM(), rsaPair.KeyPEM(), rsaPair},
		{"SEC 1", ec.ChainPEM(), ec.LegacyKeyPEM(), ec},
		{"SEC 1 with parameters, as openssl writes it", ec.ChainPEM(), append(parameters, ec.LegacyKeyPEM()...), ec},
		{"PKCS #1", rsaPair.ChainPEM(), rsaPair.LegacyKeyPEM(), rsaPair},
		{"one combined file", combined, combined, ec},
		{"with comments", comment(ec.ChainPEM()), comment(ec.KeyPEM()), ec},
		{"with byte order marks", append([]byte("\ufeff"), ec.ChainPEM()...), append([]byte("\ufeff"), ec.KeyPEM()...), ec},
		{"CRLF", bytes.ReplaceAll(ec.ChainPEM(), []byte("\n"), []byte("\r\n")), ec.KeyPEM(), ec},
	} {
		m, err := ParsePEM(test.chain, test.key)
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		if !slices.EqualFunc(m.Chain, test.want.Chain, bytes.Equal) {
			t.Errorf("%s: another chain came out", test.name)
		}
		if c, err := NewCertificate("a", m.Chain, m.Key); err != nil || c.Serial() != test.want.Serial() {
			t.Errorf("%s: what came out cannot be served: %v", test.name, err)
		}
	}
	m, err := ParsePEM(ec.ChainPEM(), nil)
	if err != nil || m.Key != nil {
		t.Errorf("chain alone: key %v, %v", m.Key, err)
	}
}

func TestParsePEMRefuses(t *testing.T) {
	ca, otherCA := tlstest.NewCA(t), tlstest.NewCA(t)
	p, other := ca.ECDSA("a.org"), otherCA.ECDSA("b.org")
	rsaPair, otherRSA := ca.RSA("a.org"), ca.Issue(tlstest.Leaf{Hosts: []string{"a.org"}, RSA: true, OtherKey: true})
	nameless := ca.Issue(tlstest.Leaf{CommonName: "a.org"})
	block := func(kind string, der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}) }
	leaf, issuer := block("CERTIFICATE", p.Chain[0]), block("CERTIFICATE", p.Chain[1])
	wrongIssuer := block("CERTIFICATE", other.Chain[1])
	legacyEncrypted := pem.EncodeToMemory(&pem.Block{
		Type: "RSA PRIVATE KEY", Bytes: []byte{1, 2, 3},
		Headers: map[string]string{"Proc-Type": "4,ENCRYPTED", "DEK-Info": "AES-256-CBC,00"},
	})
	x25519, _ := ecdh.X25519().GenerateKey(rand.Reader)
	x25519DER, _ := x509.MarshalPKCS8PrivateKey(x25519)
	join := func(texts ...[]byte) []byte { return bytes.Join(texts, nil) }
	for _, test := range []struct {
		name       string
		chain, key []byte
		want       string
	}{
		{"nothing", nil, p.KeyPEM(), "chain: is empty"},
		{"an empty line", []byte("\n"), p.KeyPEM(), "chain: is empty"},
		{"an empty key", p.ChainPEM(), []byte("\r\n"), "key: is empty"},
		{"no PEM", []byte("hello"), p.KeyPEM(), "chain: no certificate found (PEM block CERTIFICATE)"},
		{"a key for a chain", p.KeyPEM(), p.KeyPEM(), "chain: no certificate found (PEM block CERTIFICATE), only PRIVATE KEY"},
		{"a request for a chain", block("CERTIFICATE REQUEST", []byte{1}), p.KeyPEM(), "chain: no certificate found (PEM block CERTIFICATE), only CERTIFICATE REQUEST"},
		{"garbage in a block", join(leaf, block("CERTIFICATE", []byte{1, 2})), p.KeyPEM(), "chain: certificate 2 cannot be parsed: malformed certificate"},
		{"cut short", leaf[:len(leaf)-40], p.KeyPEM(), "chain: PEM block 1 (CERTIFICATE) is damaged or cut short"},
		{"second one cut short", join(leaf, issuer[:300]), p.KeyPEM(), "chain: PEM block 2 (CERTIFICATE) is damaged or cut short"},
		{"first one damaged", join(leaf[:100], []byte("!"), leaf[100:], issuer), p.KeyPEM(), "chain: PEM block 1 (CERTIFICATE) is damaged or cut short"},
		{"a leaf behind junk", join([]byte("junk"), p.ChainPEM()), p.KeyPEM(), "chain: PEM block 1 (CERTIFICATE) does not begin a line: put a line break before its -----BEGIN"},
		{"an issuer behind a space", join(leaf, []byte(" "), issuer), p.KeyPEM(), "chain: PEM block 2 (CERTIFICATE) does not begin a line: put a line break before its -----BEGIN"},
		{"no line break between", join(bytes.TrimSpace(leaf), issuer), p.KeyPEM(), "chain: PEM block 1 (CERTIFICATE), or one after it, ends in the line in which the next begins: put a line break between them"},
		{"of a type that is not quoted", []byte("-----BEGIN secret\n"), p.KeyPEM(), "chain: PEM block 1 is damaged or cut short"},
		{"too large", make([]byte, pemBytesMax+1), p.KeyPEM(), "chain: 262145 bytes of PEM, at most 262144"},
		{"too long", bytes.Repeat(leaf, 11), p.KeyPEM(), "chain: more than 10 certificates"},
		{"issuer first", p.ReversedChainPEM(), p.KeyPEM(), "chain: the key belongs to certificate 2 (a.org): the leaf comes first, then each one's issuer"},
		{"issuer first, no key", p.ReversedChainPEM(), nil, "chain: certificate 2 (a.org) has not signed certificate 1 (lbd test intermediate): the leaf comes first, then each one's issuer"},
		{"another's issuer", join(leaf, wrongIssuer), p.KeyPEM(), "chain: certificate 2 (lbd test intermediate) has not signed certificate 1 (a.org): the leaf comes first, then each one's issuer"},
		{"leaf twice", join(leaf, leaf, issuer), p.KeyPEM(), "chain: certificate 2 is the same as certificate 1 (a.org)"},
		{"no hosts", nameless.ChainPEM(), nameless.KeyPEM(), "chain: the leaf has no DNS name and no IP address (subject alternative name); clients ignore the common name"},
		{"another's key", p.ChainPEM(), other.KeyPEM(), "key: the key does not belong to the leaf certificate (a.org)"},
		{"another RSA key", rsaPair.ChainPEM(), otherRSA.KeyPEM(), "key: the key does not belong to the leaf certificate (a.org)"},
		{"a certificate for a key", p.ChainPEM(), leaf, "key: no private key found (PEM block PRIVATE KEY, EC PRIVATE KEY or RSA PRIVATE KEY)"},
		{"two keys", p.ChainPEM(), join(p.KeyPEM(), p.KeyPEM()), "key: 2 private keys, want one"},
		{"key cut short", p.ChainPEM(), p.KeyPEM()[:100], "key: PEM block 1 (PRIVATE KEY) is damaged or cut short"},
		{"key of garbage", p.ChainPEM(), block("PRIVATE KEY", []byte("secret garbage")), "key: the private key cannot be parsed: it is damaged or of an unknown kind"},
		{"encrypted PKCS #8", p.ChainPEM(), block("ENCRYPTED PRIVATE KEY", []byte{1}), "key: the key is encrypted and lbd has no passphrase for it: remove it with `openssl pkey -in KEY -out PLAIN`"},
		{"encrypted PKCS #1", p.ChainPEM(), legacyEncrypted, "key: the key is encrypted and lbd has no passphrase for it: remove it with `openssl pkey -in KEY -out PLAIN`"},
		{"OpenSSH", p.ChainPEM(), block("OPENSSH PRIVATE KEY", []byte{1}), "key: a key of the form OPENSSH PRIVATE KEY is not for TLS: want PKCS #8, PKCS #1 or SEC 1"},
		{"a key that cannot sign", p.ChainPEM(), block("PRIVATE KEY", x25519DER), "key: a key of type *ecdh.PrivateKey cannot sign"},
	} {
		_, err := ParsePEM(test.chain, test.key)
		var content *ContentError
		if !errors.As(err, &content) || err.Error() != test.want {
			t.Errorf("%s:\ngot  %v\nwant %s", test.name, err, test.want)
		}
	}
}

// TestParsePEMWeakKey: what no client accepts is refused by the chain, and by the key where there is one.
func TestParsePEMWeakKey(t *testing.T) {
	chain, key := weakRSA(t)
	if _, err := ParsePEM(chain, key); text(err) != "key: an RSA key of 1024 bits cannot be served: 2048 to 8192" {
		t.Errorf("with key: %v", err)
	}
	if _, err := ParsePEM(chain, nil); text(err) != "chain: an RSA key of 1024 bits cannot be served: 2048 to 8192" {
		t.Errorf("without key: %v", err)
	}
}

func TestSubject(t *testing.T) {
	ca := tlstest.NewCA(t)
	address := ca.ECDSA("10.0.0.1")
	for _, test := range []struct {
		leaf *x509.Certificate
		want string
	}{
		{ca.Issue(tlstest.Leaf{Hosts: []string{"a.org"}, CommonName: "A"}).Leaf, "A"},
		{ca.ECDSA("a.org").Leaf, "a.org"},
		{address.Leaf, "serial " + address.Serial()},
	} {
		if got := subject(test.leaf); got != test.want {
			t.Errorf("got %q, want %q", got, test.want)
		}
	}
}

func TestSelfSigned(t *testing.T) {
	now := time.Now()
	hosts := []string{"LocalHost", "*.example.com", "127.0.0.1", "::1"}
	for _, keyType := range []KeyType{ECDSAP256, RSA2048} {
		chain, key, err := SelfSigned(hosts, keyType, now)
		if err != nil {
			t.Fatal(err)
		}
		c := mustServe(t, chain, key)
		term := terminator(t, Policy{DefaultCertificate: "default"}, c)
		roots := x509.NewCertPool()
		roots.AddCert(c.leaf)
		for _, host := range []string{"localhost", "shop.example.com", "127.0.0.1", "::1"} {
			mustDial(t, term, client(roots, host))
		}
		if got := c.leaf.NotAfter.Sub(c.leaf.NotBefore); got != 397*24*time.Hour {
			t.Errorf("valid for %s", got)
		}
		if c.leaf.NotBefore.After(now.Add(-59 * time.Minute)) {
			t.Errorf("valid from %s", c.leaf.NotBefore)
		}
		again, _, err := SelfSigned(hosts, keyType, now)
		if err != nil || mustParse(t, again[0]).SerialNumber.Cmp(c.leaf.SerialNumber) == 0 {
			t.Errorf("two certificates of one serial, %v", err)
		}
	}
	for _, test := range []struct {
		hosts   []string
		keyType KeyType
		want    string
	}{
		{nil, ECDSAP256, "make self-signed certificate: 0 hosts, want 1 to 100"},
		{make([]string, 101), ECDSAP256, "make self-signed certificate: 101 hosts, want 1 to 100"},
		{[]string{"a"}, 7, "make key: unknown key type"},
		{[]string{"bücher.example"}, ECDSAP256, "make self-signed certificate: x509: \"bücher.example\" cannot be encoded as an IA5String"},
	} {
		if _, _, err := SelfSigned(test.hosts, test.keyType, now); text(err) != test.want {
			t.Errorf("%d hosts: got %v, want %s", len(test.hosts), err, test.want)
		}
	}
}

func mustServe(t *testing.T, chain [][]byte, key []byte) *Certificate {
	t.Helper()
	c, err := NewCertificate("default", chain, key)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func mustParse(t *testing.T, der []byte) *x509.Certificate {
	t.Helper()
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// FuzzParsePEM: no text makes it panic, and what it takes can be served.
func FuzzParsePEM(f *testing.F) {
	ca := tlstest.NewCA(f)
	p := ca.ECDSA("a.org")
	f.Add(p.ChainPEM(), p.KeyPEM())
	f.Add(p.ReversedChainPEM(), p.LegacyKeyPEM())
	f.Add(append(p.ChainPEM(), p.KeyPEM()...), []byte(nil))
	f.Fuzz(func(t *testing.T, chain, key []byte) {
		m, err := ParsePEM(chain, key)
		if err != nil || m.Key == nil {
			return
		}
		if _, err := NewCertificate("a", m.Chain, m.Key); err != nil {
			t.Error(fmt.Errorf("parsed, but not servable: %w", err))
		}
	})
}

// weakRSA is a certificate with an RSA key of 1024 bits.
func weakRSA(t *testing.T) (chain, key []byte) {
	t.Helper()
	k, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"weak"}, NotAfter: time.Now()}
	der, err := x509.CreateCertificate(rand.Reader, template, template, k.Public(), k)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(k)})
}
