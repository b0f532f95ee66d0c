//go:build linux

package backend

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"strings"
	"testing"
)

// startTLS runs a backend for one test and returns its address and how to speak to it.
func startTLS(t *testing.T) (address string, config *tls.Config) {
	t.Helper()
	lender := httptest.NewTLSServer(nil)
	defer lender.Close()
	config = &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "example.com", ClientSessionCache: tls.NewLRUClientSessionCache(1)}
	config.RootCAs.AddCert(lender.Certificate())
	return startWith(t, Config{Certificate: &lender.TLS.Certificates[0]}), config
}

// drips is a connection that sends a few bytes at a time.
type drips struct {
	net.Conn
	step int
}

func (d drips) Write(p []byte) (int, error) {
	for sent := 0; sent < len(p); sent += d.step {
		if n, err := d.Conn.Write(p[sent:min(len(p), sent+d.step)]); err != nil {
			return sent + n, err
		}
	}
	return len(p), nil
}

func TestTLSSizesOnOneConnection(t *testing.T) {
	address, config := startTLS(t)
	for _, step := range []int{1, 7, 1000, 1 << 20} {
		plain, _ := dial(t, address)
		conn := tls.Client(drips{plain, step}, config)
		r := bufio.NewReader(conn)
		for _, size := range []int{0, 1, 1024, 100 << 10, 8 << 20, 3} {
			fmt.Fprintf(conn, "GET /%d HTTP/1.1\r\nHost: x\r\n\r\n", size)
			expect(t, r, size)
		}
		if s := conn.ConnectionState(); s.Version != tls.VersionTLS13 || s.DidResume != (step > 1) {
			t.Errorf("step %d: version %x, resumed %v", step, s.Version, s.DidResume)
		}
		if step == 1 && conn.ConnectionState().CipherSuite != tls.TLS_AES_128_GCM_SHA256 {
			t.Error("cipher", tls.CipherSuiteName(conn.ConnectionState().CipherSuite))
		}
	}
}

// TestTLSPipelined: several records in one read, a request over several of them, and answers that the socket does not take at once.
func TestTLSPipelined(t *testing.T) {
	address, config := startTLS(t)
	plain, _ := dial(t, address)
	conn := tls.Client(plain, config)
	body := strings.Repeat("GET /1 HTTP/1.1\r\n\r\n", 40000/19+1)[:40000]
	go func() {
		for _, request := range []string{"GET /20000000 HTTP/1.1\r\n\r\nGE", "T /2000000 HTTP/1.1\r\n\r\n", "POST /7 HTTP/1.1\r\ncontent-length: 40000\r\n\r\n" + body, "GET /5 HTTP/1.1\r\nConnection: close\r\n\r\n"} {
			if _, err := io.WriteString(conn, request); err != nil {
				t.Error(err)
			}
		}
	}()
	r := bufio.NewReader(conn)
	for _, size := range []int{20000000, 2000000, 7, 5} {
		expect(t, r, size)
	}
	if n, err := r.Read(make([]byte, 1)); err == nil {
		t.Error("the connection went on:", n)
	}
}

// TestTLSTrouble: clients that go away in the middle of a handshake, speak something else, or an older version; others are served.
func TestTLSTrouble(t *testing.T) {
	address, config := startTLS(t)
	for _, first := range []string{"", "\x16", "\x16\x03\x01\x01\x00\x01", "GET /1 HTTP/1.1\r\n\r\n"} {
		conn, _ := dial(t, address)
		io.WriteString(conn, first)
		conn.Close()
	}
	conn, r := dial(t, address)
	io.WriteString(conn, "GET /1 HTTP/1.1\r\n\r\n")
	if answer, err := io.ReadAll(r); err != nil || bytes.HasPrefix(answer, []byte("HTTP")) {
		t.Errorf("an answer in the clear: %q, %v", answer, err)
	}
	plain, _ := dial(t, address)
	old := config.Clone()
	old.MaxVersion = tls.VersionTLS12
	if err := tls.Client(plain, old).Handshake(); err == nil || !strings.Contains(err.Error(), "protocol version") {
		t.Errorf("TLS 1.2: %v", err)
	}
	unfinished, _ := dial(t, address) // still there when the server ends
	io.WriteString(unfinished, "\x16\x03\x01")
	plain, _ = dial(t, address)
	good := tls.Client(plain, config)
	fmt.Fprintf(good, "GET /10 HTTP/1.1\r\n\r\n")
	expect(t, bufio.NewReader(good), 10)
}
