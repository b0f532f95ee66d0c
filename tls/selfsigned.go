package tlsterm

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"time"
)

// KeyType is the kind of key that SelfSigned makes.
type KeyType uint8

// The kinds.
const (
	ECDSAP256 KeyType = iota
	RSA2048
)

// SelfSigned makes a certificate that signs itself, valid from an hour before now for 397 days, and its key: chain in DER,
// key in PKCS #8. Hosts are 1 to 100 DNS names (wildcards allowed) and IP addresses. It reads the system's randomness, so
// it is for whoever proposes a certificate, never for one who applies it.
func SelfSigned(hosts []string, keyType KeyType, now time.Time) (chain [][]byte, key []byte, err error) {
	if len(hosts) == 0 || len(hosts) > selfSignedHostsMax {
		return nil, nil, fmt.Errorf("make self-signed certificate: %d hosts, want 1 to %d", len(hosts), selfSignedHostsMax)
	}
	signer, err := newKey(keyType)
	if err != nil {
		return nil, nil, fmt.Errorf("make key: %w", err)
	}
	template := selfSignedTemplate(hosts, now)
	leaf, err := x509.CreateCertificate(rand.Reader, template, template, signer.Public(), signer)
	if err != nil {
		return nil, nil, fmt.Errorf("make self-signed certificate: %w", err)
	}
	key, err = x509.MarshalPKCS8PrivateKey(signer)
	if err != nil {
		return nil, nil, fmt.Errorf("encode key: %w", err)
	}
	return [][]byte{leaf}, key, nil
}

func newKey(keyType KeyType) (crypto.Signer, error) {
	switch keyType {
	case ECDSAP256:
		return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case RSA2048:
		return rsa.GenerateKey(rand.Reader, 2048)
	}
	return nil, errors.New("unknown key type")
}

func selfSignedTemplate(hosts []string, now time.Time) *x509.Certificate {
	template := &x509.Certificate{
		SerialNumber:          newSerial(),
		Subject:               pkix.Name{CommonName: "lbd self-signed"},
		NotBefore:             now.Add(-selfSignedBackdate),
		NotAfter:              now.Add(selfSignedLifetime - selfSignedBackdate),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, normalHost(host))
		}
	}
	return template
}

// newSerial is 127 random bits: positive, never zero in practice, and far under the 20 octets of RFC 5280, section 4.1.2.2.
func newSerial() *big.Int {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[0] &= 0x7f
	return new(big.Int).SetBytes(b[:])
}
