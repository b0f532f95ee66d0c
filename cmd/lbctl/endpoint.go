package main

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"syscall"

	"lbd/cmd/lbctl/document"
)

// endpoint is where a node answers: its control port or its socket.
type endpoint struct {
	text             string // as it is shown
	network, address string
}

func (e endpoint) isSocket() bool { return e.network == "unix" }

// parseEndpoint reads HOST:PORT or unix:PATH.
func parseEndpoint(text string) (endpoint, error) {
	text = strings.TrimSpace(text)
	if path, ok := strings.CutPrefix(text, "unix:"); ok && path != "" {
		return endpoint{text, "unix", path}, nil
	}
	host, port, err := net.SplitHostPort(text)
	n, portErr := strconv.ParseUint(port, 10, 16)
	if err != nil || portErr != nil || host == "" || n == 0 {
		return endpoint{}, fail(exitUsage, "an endpoint is HOST:PORT or unix:PATH, not %q", text)
	}
	return endpoint{text, "tcp", text}, nil
}

// dial connects to the node at an endpoint. Over the network the node has proven then that it is of the cluster, and the client's
// certificate, if there is one, has gone to it after that.
func (r *reach) dial(ctx context.Context, e endpoint) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, e.network, e.address)
	if err != nil {
		return nil, dialCause(err)
	}
	if e.isSocket() {
		return conn, nil // the socket's file mode and the caller's user are the credentials
	}
	secure := tls.Client(conn, r.tlsConfig(e))
	err = secure.HandshakeContext(ctx)
	if err == nil && secure.ConnectionState().NegotiatedProtocol != alpn {
		err = errors.New("it speaks TLS, but is no control port")
	}
	if err != nil {
		conn.Close()
		return nil, dialCause(err)
	}
	return secure, nil
}

// alpn is what a control port speaks.
const alpn = "h2"

func (r *reach) tlsConfig(e endpoint) *tls.Config {
	host, _, _ := net.SplitHostPort(e.address)
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		NextProtos:         []string{alpn},
		ServerName:         host,
		InsecureSkipVerify: true, // VerifyConnection is what judges
		VerifyConnection:   func(s tls.ConnectionState) error { return r.authority.verify(s.PeerCertificates, host) },
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if r.certificate == nil {
				return &tls.Certificate{}, nil
			}
			return r.certificate, nil
		},
	}
}

// dialCause is the system's word for why nothing came of a connection.
func dialCause(err error) error {
	var no syscall.Errno
	var op *net.OpError
	switch {
	case errors.As(err, &no):
		return no
	case errors.Is(err, context.DeadlineExceeded):
		return errors.New("no answer in time")
	case errors.As(err, &op) && op.Op == "dial":
		return op.Err
	}
	return err
}

// authority is by what a node is known to be of the cluster.
type authority struct {
	// pin is "sha256:<hex>" of the authority's certificate; empty: roots count.
	pin   string
	roots *x509.CertPool
	from  string // who says so
}

// authorityBytesMax bounds a file of certificates.
const authorityBytesMax = 1 << 20

// parseAuthority reads "sha256:<hex>" or the path of a file in PEM.
func parseAuthority(text, from string) (*authority, error) {
	if digits, ok := strings.CutPrefix(text, pinPrefix); ok {
		sum, err := hex.DecodeString(digits)
		if err != nil || len(sum) != sha256.Size {
			return nil, fail(exitUsage, "the certificate authority in %s is no pin: want %s and 64 hexadecimal digits", from, pinPrefix)
		}
		return &authority{pin: pinPrefix + hex.EncodeToString(sum), from: from}, nil
	}
	pem, err := document.ReadFile(text, authorityBytesMax)
	if err != nil {
		return nil, fail(exitUsage, "read the certificate authority in %s: %w", from, err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fail(exitUsage, "read the certificate authority in %s: %s has no certificate in PEM", from, text)
	}
	return &authority{roots: roots, from: from}, nil
}

const pinPrefix = "sha256:"

func pinOf(c *x509.Certificate) string {
	sum := sha256.Sum256(c.Raw)
	return pinPrefix + hex.EncodeToString(sum[:])
}

// strangerError is a node that has not proven to be of the cluster.
type strangerError struct{ why string }

func (e *strangerError) Error() string { return e.why }

// verify judges what a node shows. A pinned authority signs the nodes of one cluster and nothing else, and any of them is as good:
// by what name it was called does not matter. One from a file may sign others too: there the host has to be in the certificate.
func (a *authority) verify(chain []*x509.Certificate, host string) error {
	if len(chain) == 0 {
		return &strangerError{"it shows no certificate"}
	}
	options := x509.VerifyOptions{Roots: a.roots, Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	if a.pin != "" {
		options.Roots = x509.NewCertPool()
	} else {
		options.DNSName = host
	}
	pinned := a.pin == ""
	for _, c := range chain[1:] {
		options.Intermediates.AddCert(c)
		if a.pin != "" && pinOf(c) == a.pin {
			options.Roots.AddCert(c)
			pinned = true
		}
	}
	if !pinned {
		return &strangerError{fmt.Sprintf("its certificate authority is %s, not %s as %s says", pinOf(chain[len(chain)-1]), a.pin, a.from)}
	}
	if _, err := chain[0].Verify(options); err != nil {
		return &strangerError{fmt.Sprintf("its certificate does not hold: %s", strings.TrimPrefix(err.Error(), "x509: "))}
	}
	return nil
}
