//go:build linux

package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"time"
)

// certificateFiles are where a certificate and its key are, for proxies that want them apart and for those that want them together.
type certificateFiles struct{ Name, Chain, Key, Bundle string }

// filesFor names the files of host i's own certificate.
func filesFor(dir string, i int) certificateFiles {
	return filesNamed(dir, fmt.Sprintf("c%d", i))
}

func filesNamed(dir, name string) certificateFiles {
	at := func(suffix string) string { return filepath.Join(dir, name+suffix) }
	return certificateFiles{Name: name, Chain: at(".chain.pem"), Key: at(".key.pem"), Bundle: at(".bundle.pem")}
}

// make fills the files with a new certificate and returns its leaf.
func (f certificateFiles) make(host string, useRSA bool) (leaf []byte, err error) {
	c, err := selfSigned(host, useRSA)
	if err != nil {
		return nil, fmt.Errorf("make a certificate: %w", err)
	}
	return c.leaf, f.write(c)
}

func (f certificateFiles) write(c *certificate) error {
	key, err := x509.MarshalPKCS8PrivateKey(c.key)
	if err != nil {
		return err
	}
	chainPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.leaf})
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})
	return errors.Join(
		os.WriteFile(f.Chain, chainPEM, 0o600),
		os.WriteFile(f.Key, keyPEM, 0o600),
		os.WriteFile(f.Bundle, append(chainPEM, keyPEM...), 0o600),
	)
}

// certificate is one with its key.
type certificate struct {
	leaf []byte // DER
	key  crypto.Signer
}

func selfSigned(host string, useRSA bool) (c *certificate, err error) {
	c = &certificate{}
	if useRSA {
		c.key, err = rsa.GenerateKey(rand.Reader, 2048)
	} else {
		c.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	}
	if err != nil {
		return nil, err
	}
	t := unsigned(host)
	c.leaf, err = x509.CreateCertificate(rand.Reader, t, t, c.key.Public(), c.key)
	return c, err
}

// unsigned is what certificates say.
func unsigned(host string) *x509.Certificate {
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()),
		Subject:      pkix.Name{CommonName: host},
		DNSNames:     []string{host},
		NotBefore:    now.Add(-time.Hour),
		NotAfter:     now.Add(30 * 24 * time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
}

// backendName is in the certificate of encrypted backends.
const backendName = "backend.bench.test"

// backendCA is the file with the certificate of the CA that has signed that of the backends.
func backendCA(dir string) string { return filepath.Join(dir, "backend-ca.pem") }

// makeBackendCertificate writes a new CA's certificate, and one that it has signed, with key, for the backends.
func makeBackendCertificate(dir string) (files certificateFiles, err error) {
	files = filesNamed(dir, "backend")
	var keys [2]*ecdsa.PrivateKey
	for i := range keys {
		if keys[i], err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
			return files, err
		}
	}
	ca := unsigned("bench CA")
	ca.DNSNames, ca.ExtKeyUsage = nil, nil
	ca.IsCA, ca.BasicConstraintsValid, ca.KeyUsage = true, true, x509.KeyUsageCertSign
	signer, err := x509.CreateCertificate(rand.Reader, ca, ca, keys[0].Public(), keys[0])
	if err != nil {
		return files, err
	}
	leaf, err := x509.CreateCertificate(rand.Reader, unsigned(backendName), ca, keys[1].Public(), keys[0])
	if err != nil {
		return files, err
	}
	return files, errors.Join(
		os.WriteFile(backendCA(dir), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signer}), 0o600),
		files.write(&certificate{leaf: leaf, key: keys[1]}),
	)
}
