package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	lbdv1 "lbd/proto/lbd/v1"
)

// fakeIdentity is what a fakeNode answers about who calls.
type fakeIdentity struct {
	createToken func(*lbdv1.CreateTokenRequest) (*lbdv1.CreateTokenResponse, error)
	listTokens  func() (*lbdv1.ListTokensResponse, error)
	revokeToken func(*lbdv1.RevokeTokenRequest) (*lbdv1.RevokeTokenResponse, error)
	whoAmI      func(login) (*lbdv1.WhoAmIResponse, error)
	audit       func(*lbdv1.ListAuditRequest, grpc.ServerStreamingServer[lbdv1.ListAuditResponse]) error
}

// login is what a call came with.
type login struct {
	authorization []string
	// The common name of the client's certificate.
	certificate string
}

type fakeAuth struct {
	lbdv1.UnimplementedAuthServiceServer
	node *fakeNode
}

func (f *fakeAuth) CreateToken(_ context.Context, r *lbdv1.CreateTokenRequest) (*lbdv1.CreateTokenResponse, error) {
	f.node.note(r)
	return f.node.createToken(r)
}

func (f *fakeAuth) ListTokens(context.Context, *lbdv1.ListTokensRequest) (*lbdv1.ListTokensResponse, error) {
	return f.node.listTokens()
}

func (f *fakeAuth) RevokeToken(_ context.Context, r *lbdv1.RevokeTokenRequest) (*lbdv1.RevokeTokenResponse, error) {
	f.node.note(r)
	return f.node.revokeToken(r)
}

func (f *fakeAuth) WhoAmI(ctx context.Context, r *lbdv1.WhoAmIRequest) (*lbdv1.WhoAmIResponse, error) {
	f.node.note(r)
	in := login{authorization: metadata.ValueFromIncomingContext(ctx, "authorization")}
	p, _ := peer.FromContext(ctx)
	if info, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(info.State.PeerCertificates) > 0 {
		in.certificate = info.State.PeerCertificates[0].Subject.CommonName
	}
	return f.node.whoAmI(in)
}

func (f *fakeAuth) ListAudit(r *lbdv1.ListAuditRequest, stream grpc.ServerStreamingServer[lbdv1.ListAuditResponse]) error {
	f.node.note(r)
	return f.node.audit(r, stream)
}

// cluster is an authority, which signs what nodes show.
type cluster struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{key: key}
	c.certificate = c.sign(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: "lbd cluster"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, &key.PublicKey)
	return c
}

// sign makes a certificate that is valid now, unless the template says otherwise.
func (c *cluster) sign(t *testing.T, template *x509.Certificate, public *ecdsa.PublicKey) *x509.Certificate {
	t.Helper()
	template.SerialNumber = big.NewInt(1)
	if template.NotAfter.IsZero() {
		template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	}
	parent := c.certificate
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, c.key)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

// leaf is a certificate with its key and, behind it, the authority's.
func (c *cluster) leaf(t *testing.T, template *x509.Certificate) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{c.sign(t, template, &key.PublicKey).Raw, c.certificate.Raw}, PrivateKey: key}
}

// node is what a node shows that may be called by 127.0.0.1.
func (c *cluster) node(t *testing.T) tls.Certificate {
	t.Helper()
	return c.leaf(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: "lbd node"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
}

// person writes a client certificate and its key.
func (c *cluster) person(t *testing.T, name string) (certificate, key string) {
	t.Helper()
	pair := c.leaf(t, &x509.Certificate{Subject: pkix.Name{CommonName: name}})
	der, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return writePEM(t, "CERTIFICATE", pair.Certificate[0]), writePEM(t, "PRIVATE KEY", der)
}

func (c *cluster) pin() string { return pinOf(c.certificate) }

// file writes the authority in PEM.
func (c *cluster) file(t *testing.T) string {
	t.Helper()
	return writePEM(t, "CERTIFICATE", c.certificate.Raw)
}

func writePEM(t *testing.T, kind string, der []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file.pem")
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// port serves as a control port does and returns its address.
func (f *fakeNode) port(t *testing.T, shown tls.Certificate) string {
	t.Helper()
	config := &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{shown}, ClientAuth: tls.RequestClientCert}
	return f.serve(t, "tcp", "127.0.0.1:0", grpc.Creds(credentials.NewTLS(config))).String()
}
