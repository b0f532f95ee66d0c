package tlsterm

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"lbd/tls/tlstest"
)

// askBackend makes one TLS connection to a backend with the given settings, sends a byte and reads one. The backend answers it.
func askBackend(t *testing.T, server *tls.Config, config *tls.Config) error {
	t.Helper()
	return askPeer(t, config, func(c net.Conn) {
		conn := tls.Server(c, server)
		if _, err := conn.Read(make([]byte, 1)); err == nil {
			_, _ = conn.Write([]byte("y"))
		}
	})
}

func askPeer(t *testing.T, config *tls.Config, peer func(net.Conn)) error {
	t.Helper()
	near, far := loopback(t)
	defer near.Close()
	_ = near.SetDeadline(time.Now().Add(10 * time.Second))
	_ = far.SetDeadline(time.Now().Add(10 * time.Second))
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer far.Close()
		peer(far)
	}()
	conn := tls.Client(near, config)
	err := conn.Handshake()
	if err == nil {
		if _, err = conn.Write([]byte("x")); err == nil {
			_, err = conn.Read(make([]byte, 1))
		}
	}
	_ = near.Close()
	<-done
	return err
}

// backendConfig is BackendConfig for settings that are right.
func backendConfig(t *testing.T, serverName string, roots []byte, client *Certificate) *tls.Config {
	t.Helper()
	config, err := BackendConfig(serverName, roots, client)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

func serving(p *tlstest.Pair) *tls.Config {
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: p.Chain, PrivateKey: p.Key}}}
}

// TestBackendConfig: a backend is verified by the bundle's authorities and the name, in both versions, and gets to see the client's
// certificate if it wants one.
func TestBackendConfig(t *testing.T) {
	ca, clients := tlstest.NewCA(t), tlstest.NewCA(t)
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		server := serving(ca.ECDSA("api.internal", "10.0.0.1"))
		server.MaxVersion = version
		server.NextProtos = []string{"h2", "http/1.1"}
		for _, name := range []string{"api.internal", "10.0.0.1"} {
			if err := askBackend(t, server, backendConfig(t, name, ca.RootPEM(), nil)); err != nil {
				t.Errorf("%x: %v", version, err)
			}
		}
		server.ClientAuth, server.ClientCAs = tls.RequireAndVerifyClientCert, clients.Pool()
		for _, pair := range []*tlstest.Pair{
			clients.Issue(tlstest.Leaf{CommonName: "lbd", ForClients: true}),
			clients.Issue(tlstest.Leaf{CommonName: "lbd", ForClients: true, RSA: true}),
		} {
			m, err := ParsePEM(pair.ChainPEM(), pair.KeyPEM())
			if err != nil {
				t.Fatalf("a certificate for clients, which needs no host: %v", err)
			}
			c, err := NewCertificate("lbd", m.Chain, m.Key)
			if err != nil {
				t.Fatal(err)
			}
			if err := askBackend(t, server, backendConfig(t, "api.internal", ca.RootPEM(), c)); err != nil {
				t.Errorf("%x: with a client certificate: %v", version, err)
			}
		}
	}
	bundle := bytes.Join([][]byte{[]byte("# two\n"), clients.RootPEM(), ca.RootPEM()}, nil)
	if err := askBackend(t, serving(ca.ECDSA("a")), backendConfig(t, "a", bundle, nil)); err != nil {
		t.Errorf("the second of two authorities: %v", err)
	}
	if config := backendConfig(t, "a", nil, nil); config.RootCAs != nil || config.InsecureSkipVerify {
		t.Error("without a bundle the system's authorities count")
	}
}

func TestBackendConfigRefuses(t *testing.T) {
	root := tlstest.NewCA(t).RootPEM()
	for name, test := range map[string]struct {
		roots []byte
		want  string
	}{
		"empty":      {[]byte{}, "authorities: no certificate found (PEM block CERTIFICATE)"},
		"no PEM":     {[]byte("hello"), "authorities: no certificate found (PEM block CERTIFICATE)"},
		"a key":      {tlstest.NewCA(t).ECDSA("a").KeyPEM(), "authorities: no certificate found (PEM block CERTIFICATE)"},
		"cut short":  {append(root[:len(root):len(root)], root[:100]...), "authorities: PEM block 2 (CERTIFICATE) is damaged or cut short"},
		"of garbage": {append(root[:len(root):len(root)], pemOf("CERTIFICATE", []byte{1})...), "authorities: certificate 2 cannot be parsed: malformed certificate"},
	} {
		if _, err := BackendConfig("a", test.roots, nil); text(err) != test.want {
			t.Errorf("%s: %v, want %s", name, err, test.want)
		}
	}
}

// TestExplainBackendError has every way in which a TLS connection to a backend fails, and what an operator reads.
func TestExplainBackendError(t *testing.T) {
	ca, stranger := tlstest.NewCA(t), tlstest.NewCA(t)
	lapsed, next := ca.Expired("a.org"), ca.NotYetValid("a.org")
	chain, key, err := SelfSigned([]string{"a.org"}, ECDSAP256, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	self, err := x509.ParsePKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	with := func(p *tlstest.Pair, change func(*tls.Config)) *tls.Config {
		c := serving(p)
		change(c)
		return c
	}
	demanding := func(version uint16) *tls.Config {
		return with(ca.ECDSA("a.org"), func(c *tls.Config) {
			c.MaxVersion, c.ClientAuth, c.ClientCAs = version, tls.RequireAndVerifyClientCert, ca.Pool()
		})
	}
	many := ca.ECDSA("1.org", "2.org", "3.org", "4.org", "5.org", "6.org", "7.org")
	alone := ca.ECDSA("a.org")
	alone.Chain = alone.Chain[:1]
	for _, test := range []struct {
		name   string
		server *tls.Config
		client *tlstest.Pair
		want   string
	}{
		{"good", serving(ca.ECDSA("a.org")), nil, ""},
		{"another authority", serving(stranger.ECDSA("a.org")), nil,
			`the backend's certificate leads to the authority "CN=lbd test root", which is not trusted: name it in the pool's tls.trust_bundle, or have the backend send its intermediates`},
		{"without its intermediate", serving(alone), nil,
			`the backend's certificate leads to the authority "CN=lbd test intermediate", which is not trusted: name it in the pool's tls.trust_bundle, or have the backend send its intermediates`},
		{"self-signed", &tls.Config{Certificates: []tls.Certificate{{Certificate: chain, PrivateKey: self}}}, nil,
			"the backend's certificate (lbd self-signed) signs itself and is not trusted: name it in the pool's tls.trust_bundle"},
		{"another name", serving(ca.ECDSA("b.org", "*.b.org", "10.0.0.1")), nil, "the backend's certificate is for b.org, *.b.org, 10.0.0.1, not for a.org"},
		{"many names", serving(many), nil, "the backend's certificate is for 1.org, 2.org, 3.org, 4.org, 5.org and 2 more, not for a.org"},
		{"no name", serving(ca.Issue(tlstest.Leaf{CommonName: "a.org"})), nil,
			`the backend's certificate is for no host at all (only the common name "a.org", which counts for nothing), not for a.org`},
		{"expired", serving(lapsed), nil, "the backend's certificate (a.org) expired at " + lapsed.Leaf.NotAfter.UTC().Format(time.RFC3339)},
		{"not yet valid", serving(next), nil, "the backend's certificate (a.org) is not valid before " + next.Leaf.NotBefore.UTC().Format(time.RFC3339)},
		{"for clients", serving(ca.Issue(tlstest.Leaf{Hosts: []string{"a.org"}, ForClients: true})), nil,
			"the backend's certificate (a.org) is not for servers (extended key usage)"},
		{"wants a client certificate, 1.3", demanding(tls.VersionTLS13), nil,
			"the backend demands a client certificate: name one in the pool's tls.client_certificate"},
		{"wants a client certificate, 1.2", demanding(tls.VersionTLS12), nil,
			"the backend finds nothing in common, or wants a client certificate: handshake failure"},
		{"wants another client certificate", demanding(tls.VersionTLS13), stranger.Issue(tlstest.Leaf{CommonName: "x", ForClients: true}),
			"the backend refuses the client certificate, or wants one: unknown certificate authority"},
		{"an expired client certificate", demanding(tls.VersionTLS13), ca.Issue(tlstest.Leaf{
			CommonName: "x", ForClients: true, NotBefore: time.Now().Add(-9 * time.Hour), NotAfter: time.Now().Add(-8 * time.Hour)}),
			"the backend refuses the client certificate, or wants one: expired certificate"},
		{"old versions", with(ca.ECDSA("a.org"), func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS10, tls.VersionTLS11 }), nil,
			"the backend speaks neither TLS 1.2 nor 1.3"},
		{"another ALPN", with(ca.ECDSA("a.org"), func(c *tls.Config) { c.NextProtos = []string{"smtp"} }), nil,
			"the backend does not offer http/1.1 (ALPN)"},
		{"no suite in common", with(ca.RSA("a.org"), func(c *tls.Config) {
			c.MaxVersion, c.CipherSuites = tls.VersionTLS12, []uint16{tls.TLS_RSA_WITH_AES_128_GCM_SHA256}
		}), nil, "the backend finds nothing in common, or wants a client certificate: handshake failure"},
		{"its own trouble", &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return nil, errors.New("x") }}, nil,
			"the backend ended the handshake: internal error"},
		{"nothing for this name", &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return nil, nil }}, nil,
			"the backend has no certificate for the server name that is asked for: see the pool's tls.server_name"},
	} {
		var shown *Certificate
		if test.client != nil {
			shown = certificate(t, "client", test.client)
		}
		err := askBackend(t, test.server, backendConfig(t, "a.org", ca.RootPEM(), shown))
		if got := ExplainBackendError(err); got != test.want {
			t.Errorf("%s: (%v)\ngot  %s\nwant %s", test.name, err, got, test.want)
		}
	}
	for _, test := range []struct {
		name string
		peer func(net.Conn)
		want string
	}{
		{"plain HTTP", func(c net.Conn) {
			_, _ = c.Read(make([]byte, 4096))
			_, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
		}, `the backend does not speak TLS: it answered "HTTP/"`},
		{"closes", func(c net.Conn) { _, _ = c.Read(make([]byte, 4096)) }, "the backend closed the connection in the TLS handshake"},
		{"resets", func(c net.Conn) { _ = c.(*net.TCPConn).SetLinger(0) }, "the backend closed the connection in the TLS handshake"},
	} {
		err := askPeer(t, backendConfig(t, "a.org", ca.RootPEM(), nil), test.peer)
		if got := ExplainBackendError(fmt.Errorf("wrapped: %w", err)); got != test.want {
			t.Errorf("%s: (%v)\ngot  %s\nwant %s", test.name, err, got, test.want)
		}
	}
	if got := ExplainBackendError(os.ErrDeadlineExceeded); got != "timeout in the TLS handshake" {
		t.Errorf("timeout: %s", got)
	}
	if got := ExplainBackendError(errors.New("tls: server selected an odd thing")); got != "server selected an odd thing" {
		t.Errorf("anything else: %s", got)
	}
	if got := ExplainBackendError(nil); got != "" {
		t.Errorf("no error: %s", got)
	}
	// What crypto/tls hides behind no type of its own is read from its text; were it reworded, the lines above would fail.
	if got := explainUnknown(nil); !strings.Contains(got, "signed by an authority that is not trusted") {
		t.Errorf("nothing known: %s", got)
	}
}
