//go:build linux

package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	header = "api_version: lbd/v1\nowner: big\n"
	// perDocument is how many certificates or routes one document has.
	perDocument  = 500
	poolDocument = header + "pools: [{ name: one, backends: [{ address: 10.0.0.1:80 }] }]\n"
)

// writeDocuments makes a folder of documents: certificates with keys of their own, and for each name a route.
func writeDocuments(folder string, n int) error {
	if err := os.MkdirAll(filepath.Join(folder, "pem"), 0o700); err != nil {
		return err
	}
	a, err := newAuthority()
	if err != nil {
		return err
	}
	for begin := 0; begin < n; begin += perDocument {
		var certificates, routes strings.Builder
		certificates.WriteString(header + "certificates:\n")
		for i := begin; i < min(begin+perDocument, n); i++ {
			if err := a.issue(folder, filepath.Join("pem", fmt.Sprint("c", i)), i); err != nil {
				return err
			}
			fmt.Fprintf(&certificates, "  - { name: c%d, pem: { chain: { file: pem/c%d.pem }, key: { file: pem/c%d.key } } }\n", i, i, i)
		}
		if err := os.WriteFile(filepath.Join(folder, fmt.Sprintf("certificates-%05d.yaml", begin)), []byte(certificates.String()), 0o600); err != nil {
			return err
		}
		routes.WriteString(header + "routes:\n")
		for i := begin; i < min(begin+perDocument, n); i++ {
			routes.WriteString(route(i, "/"))
		}
		if err := os.WriteFile(routesFile(folder, begin), []byte(routes.String()), 0o600); err != nil {
			return err
		}
	}
	return a.issue(folder, "next", n/3)
}

func routesFile(folder string, i int) string {
	return filepath.Join(folder, fmt.Sprintf("routes-%05d.yaml", i/perDocument*perDocument))
}

func route(i int, prefix string) string {
	return fmt.Sprintf("  - { name: r%d, listeners: [http, https], hosts: [%s], matches: [{ path: { prefix: %s } }], forward: { pools: [{ pool: default }] } }\n", i, host(i), prefix)
}

// changeRoute gives one route another path.
func changeRoute(folder string, i int) error {
	path := routesFile(folder, i)
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return os.WriteFile(path, []byte(strings.Replace(string(text), route(i, "/"), route(i, "/changed"), 1)), 0o600)
}

func host(i int) string { return fmt.Sprintf("h%d.example.test", i) }

// authority signs certificates.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "big"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return &authority{key, cert}, err
}

// issue writes name.pem, a chain of two, and name.key.
func (a *authority) issue(folder, name string, i int) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: serial, DNSNames: []string{host(i)}, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().AddDate(0, 3, 0),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	chain := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})...)
	if err := os.WriteFile(filepath.Join(folder, name+".pem"), chain, 0o600); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, name+".key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600)
}
