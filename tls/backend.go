package tlsterm

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
)

// BackendConfig is how backends are spoken to, by requests and by health checks: TLS 1.2 or newer, HTTP/1.1 if they ask for ALPN,
// and always verified. One is for all backends of a pool; it is not changed.
//
// ServerName is asked for and verified; where it is empty whoever connects fills in the host that it connects to. Roots are the
// authorities in PEM, nil those of the system. The client's certificate, nil for none, is shown to a backend that demands one,
// whatever authorities that backend names: what it says of another's is plainer than a missing certificate.
func BackendConfig(serverName string, roots []byte, client *Certificate) (*tls.Config, error) {
	config := &tls.Config{
		ServerName: serverName,
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"http/1.1"},
	}
	if roots != nil {
		pool, err := parseRoots(roots)
		if err != nil {
			return nil, fmt.Errorf("authorities: %w", err)
		}
		config.RootCAs = pool
	}
	if client != nil {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &client.served, nil }
	}
	return config, nil
}

// parseRoots reads the certificates of a PEM text and passes over what is not one. One that cannot be parsed is an error: an
// authority that is left out silently is a failed handshake later.
func parseRoots(text []byte) (*x509.CertPool, error) {
	blocks, err := splitPEM(text)
	if err != nil {
		return nil, err
	}
	pool, n := x509.NewCertPool(), 0
	for _, block := range blocks {
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d cannot be parsed: %s", n+1, plain(err))
		}
		pool.AddCert(c)
		n++
	}
	if n == 0 {
		return nil, errors.New("no certificate found (PEM block CERTIFICATE)")
	}
	return pool, nil
}
