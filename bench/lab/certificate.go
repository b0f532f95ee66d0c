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
	name := fmt.Sprintf("c%d", i)
	at := func(suffix string) string { return filepath.Join(dir, name+suffix) }
	return certificateFiles{Name: name, Chain: at(".chain.pem"), Key: at(".key.pem"), Bundle: at(".bundle.pem")}
}

// make fills the files with a new certificate and returns its leaf.
func (f certificateFiles) make(host string, useRSA bool) (leaf []byte, err error) {
	chain, key, leaf, err := certificate(host, useRSA)
	if err != nil {
		return nil, fmt.Errorf("make a certificate: %w", err)
	}
	return leaf, errors.Join(
		os.WriteFile(f.Chain, chain, 0o600),
		os.WriteFile(f.Key, key, 0o600),
		os.WriteFile(f.Bundle, append(chain, key...), 0o600),
	)
}

// certificate makes a self-signed one for a host name.
func certificate(host string, useRSA bool) (chain, key, leaf []byte, err error) {
	var private crypto.Signer
	if useRSA {
		private, err = rsa.GenerateKey(rand.Reader, 2048)
	} else {
		private, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	}
	if err != nil {
		return nil, nil, nil, err
	}
	now := time.Now()
	t := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()),
		Subject:      pkix.Name{CommonName: host},
		DNSNames:     []string{host},
		NotBefore:    now.Add(-time.Hour),
		NotAfter:     now.Add(30 * 24 * time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if leaf, err = x509.CreateCertificate(rand.Reader, t, t, private.Public(), private); err != nil {
		return nil, nil, nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, nil, err
	}
	chain = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf})
	return chain, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), leaf, nil
}
