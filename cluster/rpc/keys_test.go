package rpc

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"sync"
	"testing"
	"time"

	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// testKeys parses and makes real pairs. It seals by digest: nobody opens in these tests, and a key byte that turns up
// anywhere has not come through here.
type testKeys struct {
	fakeSealing
	mu     sync.Mutex
	made   int
	sealed int
	fail   error
}

func (k *testKeys) ParsePEM(chain, key []byte) (KeyPair, error) {
	var pair KeyPair
	for block, rest := pem.Decode(chain); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "CERTIFICATE" {
			pair.Chain = append(pair.Chain, block.Bytes)
		}
	}
	if len(pair.Chain) == 0 {
		return KeyPair{}, &PEMError{Field: "chain", Err: errors.New("no certificate found")}
	}
	leaf, err := x509.ParseCertificate(pair.Chain[0])
	if err != nil {
		return KeyPair{}, &PEMError{Field: "chain", Err: err}
	}
	if len(key) == 0 {
		return pair, nil
	}
	block, _ := pem.Decode(key)
	if block == nil {
		return KeyPair{}, &PEMError{Field: "key", Err: errors.New("no private key found")}
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return KeyPair{}, &PEMError{Field: "key", Err: errors.New("the private key cannot be parsed")}
	}
	if public, ok := leaf.PublicKey.(interface{ Equal(crypto.PublicKey) bool }); !ok || !public.Equal(parsed.(crypto.Signer).Public()) {
		return KeyPair{}, &PEMError{Field: "key", Err: errors.New("the key does not belong to the leaf")}
	}
	pair.Key = block.Bytes
	return pair, nil
}

func (k *testKeys) SelfSigned(hosts []string, _ lbdv1.KeyType) (KeyPair, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.made++
	if k.fail != nil {
		return KeyPair{}, k.fail
	}
	return newPair(hosts, now.Add(-time.Hour), now.Add(90*24*time.Hour))
}

func (k *testKeys) Seal(clusterID, certificate string, publicKeySHA256, key []byte) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.sealed++
	return fmt.Appendf(nil, "sealed %s %s %x %x", clusterID, certificate, publicKeySHA256, sha256.Sum256(key)), nil
}

func (k *testKeys) counts() (made, sealed int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.made, k.sealed
}

// identity is a certificate that signs itself, as an operator holds it.
type identity struct {
	chain, key string
	// secret is the key's bytes as PKCS #8.
	secret []byte
	serial string
}

func newPair(hosts []string, notBefore, notAfter time.Time) (KeyPair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return KeyPair{}, err
	}
	return signPair(key, hosts, notBefore, notAfter)
}

func signPair(key *ecdsa.PrivateKey, hosts []string, notBefore, notAfter time.Time) (KeyPair, error) {
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		return KeyPair{}, err
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: "test"},
		DNSNames:     hosts,
		NotBefore:    notBefore,
		NotAfter:     notAfter,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return KeyPair{}, err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	return KeyPair{Chain: [][]byte{der}, Key: pkcs8}, err
}

func newIdentity(t *testing.T, hosts ...string) identity {
	t.Helper()
	return identityFor(t, now.Add(-time.Hour), now.Add(24*time.Hour), hosts...)
}

func identityFor(t *testing.T, notBefore, notAfter time.Time, hosts ...string) identity {
	t.Helper()
	pair, err := newPair(hosts, notBefore, notAfter)
	if err != nil {
		t.Fatal(err)
	}
	return identityOf(t, pair)
}

// renew is a new certificate for the same key.
func (id identity) renew(t *testing.T, hosts ...string) identity {
	t.Helper()
	key, err := x509.ParsePKCS8PrivateKey(id.secret)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := signPair(key.(*ecdsa.PrivateKey), hosts, now.Add(-time.Minute), now.Add(48*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	return identityOf(t, pair)
}

func identityOf(t *testing.T, pair KeyPair) identity {
	t.Helper()
	leaf, err := x509.ParseCertificate(pair.Chain[0])
	if err != nil {
		t.Fatal(err)
	}
	return identity{
		chain:  chainPEM(pair.Chain),
		key:    string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pair.Key})),
		secret: bytes.Clone(pair.Key),
		serial: fmt.Sprintf("%x", leaf.SerialNumber),
	}
}

// fingerprint is what documents say in the key's place.
func (id identity) fingerprint(t *testing.T) string {
	t.Helper()
	block, _ := pem.Decode([]byte(id.chain))
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("sha256:%x", sha256.Sum256(leaf.RawSubjectPublicKeyInfo))
}

func (k *testKeys) NewTicketKey(clusterID string, epoch int64, sealKey string) (*raftv1.TicketKey, error) {
	return &raftv1.TicketKey{Epoch: epoch, Name: fmt.Appendf(nil, "key %012d", epoch), SealedKey: fmt.Appendf(nil, "%s/ticket %s %d", sealKey, clusterID, epoch)}, k.fail
}

func (k *testKeys) ImportTicketKey(clusterID string, key []byte, sealKey string) (*raftv1.TicketKey, error) {
	if len(key) != 48 && len(key) != 80 {
		return nil, fmt.Errorf("has %d bytes: want 48 or 80", len(key))
	}
	return &raftv1.TicketKey{Name: key[:16], SealedKey: fmt.Appendf(nil, "%s/ticket %s %x", sealKey, clusterID, sha256.Sum256(key))}, nil
}
