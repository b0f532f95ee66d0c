package health

import (
	"cmp"
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	tlsterm "lbd/tls"
	"lbd/tls/tlstest"
)

// backendTLS is a real HTTPS server, changed before it starts.
func backendTLS(t *testing.T, p *tlstest.Pair, handler http.HandlerFunc, change func(*tls.Config)) (address string) {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: p.Chain, PrivateKey: p.Key}}}
	if change != nil {
		change(server.TLS)
	}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

func backendConfig(t *testing.T, serverName string, roots []byte, client *tlstest.Pair) *TLS {
	t.Helper()
	var shown *tlsterm.Certificate
	if client != nil {
		var err error
		if shown, err = tlsterm.NewCertificate("client", client.Chain, client.KeyPKCS8); err != nil {
			t.Fatal(err)
		}
	}
	config, err := tlsterm.BackendConfig(serverName, roots, shown)
	if err != nil {
		t.Fatal(err)
	}
	return &TLS{Config: config}
}

func askTLS(t *testing.T, c Check) error {
	t.Helper()
	c.Timeout, c.Interval = cmp.Or(c.Timeout, 5*time.Second), time.Minute
	a := asker{dial: (&net.Dialer{}).DialContext, explainTLS: tlsterm.ExplainBackendError}
	return a.ask(t.Context(), c.complete())
}

// TestHTTPS is case A45: an HTTPS check asks as requests do, with their server name, Host, authorities and client certificate.
func TestHTTPS(t *testing.T) {
	ca, clients := tlstest.NewCA(t), tlstest.NewCA(t)
	client := clients.Issue(tlstest.Leaf{CommonName: "lbd", ForClients: true})
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		seen := make(chan *http.Request, 1)
		address := backendTLS(t, ca.ECDSA("api.internal"), func(w http.ResponseWriter, r *http.Request) { seen <- r }, func(c *tls.Config) {
			c.MaxVersion, c.ClientAuth, c.ClientCAs = version, tls.RequireAndVerifyClientCert, clients.Pool()
		})
		check := Check{Address: address, HTTP: &HTTP{Host: "shop.example.com"}, TLS: backendConfig(t, "api.internal", ca.RootPEM(), client)}
		for range 3 {
			if err := askTLS(t, check); err != nil {
				t.Fatalf("%x: %v", version, err)
			}
			r := <-seen
			if r.Host != "shop.example.com" || r.TLS.ServerName != "api.internal" || r.TLS.NegotiatedProtocol != "http/1.1" ||
				r.TLS.PeerCertificates[0].Subject.CommonName != "lbd" || r.TLS.DidResume {
				t.Errorf("%x: Host %s, %+v", version, r.Host, r.TLS)
			}
		}
		check.TLS = backendConfig(t, "api.internal", ca.RootPEM(), nil)
		if err := askTLS(t, check); !strings.HasPrefix(text(err), "TLS: the backend ") || !strings.Contains(text(err), "client certificate") {
			t.Errorf("%x: without its client certificate: %v", version, err)
		}
	}
}

// TestTLSCheck has each way in which a check ends that is a handshake, and what an operator reads.
func TestTLSCheck(t *testing.T) {
	ca, stranger := tlstest.NewCA(t), tlstest.NewCA(t)
	expired := ca.Expired("a.org")
	nothing := func(http.ResponseWriter, *http.Request) {}
	good := backendTLS(t, ca.ECDSA("a.org", "127.0.0.1"), nothing, nil)
	trusted := backendConfig(t, "a.org", ca.RootPEM(), nil)
	plain := httptest.NewServer(http.HandlerFunc(nothing))
	defer plain.Close()
	demanding := func(version uint16) string {
		return backendTLS(t, ca.ECDSA("a.org"), nothing, func(c *tls.Config) { c.MaxVersion, c.ClientAuth = version, tls.RequireAnyClientCert })
	}
	for _, test := range []struct {
		name    string
		address string
		tls     *TLS
		want    string
		timeout time.Duration // default 5s
	}{
		{"good", good, trusted, "", 0},
		{"server name from the address", good, backendConfig(t, "", ca.RootPEM(), nil), "", 0},
		{"another authority", good, backendConfig(t, "a.org", stranger.RootPEM(), nil), `TLS: the backend's certificate leads to the authority "CN=lbd test root"`, 0},
		{"the system's authorities", good, backendConfig(t, "a.org", nil, nil), `TLS: the backend's certificate leads to the authority "CN=lbd test root"`, 0},
		{"another name", good, backendConfig(t, "b.org", ca.RootPEM(), nil), "TLS: the backend's certificate is for a.org, 127.0.0.1, not for b.org", 0},
		{"expired", backendTLS(t, expired, nothing, nil), trusted, "TLS: the backend's certificate (a.org) expired at " + expired.Leaf.NotAfter.UTC().Format(time.RFC3339), 0},
		{"not TLS", plain.Listener.Addr().String(), trusted, `TLS: the backend does not speak TLS: it answered "HTTP/"`, 0},
		{"wants a client certificate, 1.3", demanding(tls.VersionTLS13), trusted, "TLS: the backend demands a client certificate: name one in the pool's tls.client_certificate", 0},
		{"wants a client certificate, 1.2", demanding(tls.VersionTLS12), trusted, "TLS: the backend finds nothing in common, or wants a client certificate: handshake failure", 0},
		{"closes", peer(t, func(c net.Conn) { _, _ = c.Read(make([]byte, 4096)) }), trusted, "connection closed in the TLS handshake", 0},
		{"silent", peer(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }), trusted, "timeout after 300ms in the TLS handshake", 300 * time.Millisecond},
	} {
		err := askTLS(t, Check{Address: test.address, TLS: test.tls, Timeout: test.timeout})
		if got := text(err); test.want == "" && got != "" || !strings.HasPrefix(got, test.want) {
			t.Errorf("%s:\ngot  %s\nwant %s", test.name, got, test.want)
		}
	}
}

// peer is a TCP server with one connection at a time.
func peer(t *testing.T, serve func(net.Conn)) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serve(c)
			_ = c.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return l.Addr().String()
}

// TestCheckOfTheWrongKind: in the clear to a backend that speaks TLS.
func TestCheckOfTheWrongKind(t *testing.T) {
	ca := tlstest.NewCA(t)
	address := backendTLS(t, ca.ECDSA("a.org"), func(http.ResponseWriter, *http.Request) {}, nil)
	if err := askTLS(t, Check{Address: address, HTTP: &HTTP{}}); text(err) != "status 400, want 2xx, 3xx" {
		t.Error(err)
	}
	if err := askTLS(t, Check{Address: address}); err != nil {
		t.Errorf("TCP: %v", err)
	}
}
