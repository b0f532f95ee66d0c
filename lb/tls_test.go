package lb

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"math/big"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"lbd/lb/lbtest"
)

func testTerminator(t *testing.T) Terminator {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"a.test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, leaf, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return onlyTLS{&tls.Config{
		Certificates:                []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		DynamicRecordSizingDisabled: true,
	}}
}

func (n *node) dialTLS(version uint16) *client {
	n.t.Helper()
	c, err := tls.Dial("tcp", n.addr(), &tls.Config{InsecureSkipVerify: true, ServerName: "a.test", MaxVersion: version})
	if err != nil {
		n.t.Fatal(err)
	}
	return newClient(n.t, c)
}

func TestTLS(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		b := lbtest.New(t, lbtest.Echo)
		n := start(t, setup{kind: kind, backends: addrs(b), tls: testTerminator(t)})
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			c := n.dialTLS(version)
			for _, size := range []int{0, 10, 20_000, 2 << 20} {
				body := strings.Repeat("x", size)
				c.say(get("/"))
				c.expect("GET", 200, "")
				go io.WriteString(c.Conn, post("/", body))
				c.expect("POST", 200, body)
			}
			// Many requests in one record: the second is in no socket.
			c.say(strings.Repeat(get("/"), 10))
			for range 10 {
				c.expect("GET", 200, "")
			}
			c.Close()
		}
		if r := n.want(200, OK); r.TLS == nil {
			t.Error("no TLS facts in the record")
		}
		if got := b.Requests()[0].Field("X-Forwarded-Proto"); got[0] != "https" {
			t.Errorf("scheme %q", got)
		}
	})
}

// TestTLSTruncated, a sibling of A29: over TLS an answer that is cut short must not end in a close_notify. A TLS 1.2 alert is seen by its
// record type.
func TestTLSTruncated(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		for _, whole := range []bool{true, false} {
			b := lbtest.New(t, func(c *lbtest.Conn) {
				c.ReadHead()
				c.Say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n")
				if whole {
					c.Say("0\r\n\r\n")
				}
			})
			n := start(t, setup{kind: kind, backends: addrs(b), tls: testTerminator(t)})
			raw := &tapped{Conn: n.dial().Conn}
			c := newClient(t, tls.Client(raw, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12}))
			c.say("GET / HTTP/1.0\r\n\r\n") // gets a body that ends with the connection
			if all, err := io.ReadAll(c.r); err != nil || !strings.HasSuffix(string(all), "half") {
				t.Fatalf("%q, %v", all, err)
			}
			if alert := raw.lastRecord() == 21; alert != whole {
				t.Errorf("whole %v, close_notify %v", whole, alert)
			}
		}
	})
}

// tapped keeps what was read.
type tapped struct {
	net.Conn
	seen []byte
}

func (c *tapped) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.seen = append(c.seen, p[:n]...)
	return n, err
}

// lastRecord returns the type of the last TLS record.
func (c *tapped) lastRecord() (kind byte) {
	for rest := c.seen; len(rest) >= 5; {
		kind = rest[0]
		rest = rest[min(len(rest), 5+int(rest[3])<<8+int(rest[4])):]
	}
	return kind
}

// TestTLSTunnel: a large echo both ways over one tls.Conn, and half-close.
func TestTLSTunnel(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		const size = 4 << 20
		b := lbtest.New(t, func(c *lbtest.Conn) {
			c.ReadHead()
			c.Say(switched)
			io.Copy(c.Conn, c)
			c.Say("last")
		})
		n := start(t, setup{kind: kind, backends: addrs(b), tls: testTerminator(t)})
		c := n.dialTLS(tls.VersionTLS13)
		c.say(upgrade)
		if resp, err := http.ReadResponse(c.r, nil); err != nil || resp.StatusCode != 101 {
			t.Fatalf("%v %v", resp, err)
		}
		go func() {
			io.Copy(c.Conn, io.LimitReader(repeat('x'), size))
			c.Conn.(*tls.Conn).CloseWrite()
		}()
		all, err := io.ReadAll(c.r)
		if err != nil || len(all) != size+4 || !strings.HasSuffix(string(all), "xlast") {
			t.Errorf("%d bytes, %v", len(all), err)
		}
		n.want(101, OK)
	})
}

// TestTLSClient: a real client, with its own idea of connections.
func TestTLSClient(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		n := start(t, setup{kind: kind, backends: addrs(lbtest.New(t, lbtest.Echo)), tls: testTerminator(t)})
		transport := &http.Transport{
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		}
		defer transport.CloseIdleConnections()
		client := &http.Client{Transport: transport, Timeout: patience}
		for range 10 {
			resp, err := client.Post("https://"+n.addr()+"/", "text/plain", strings.NewReader("hello"))
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil || string(body) != "hello" {
				t.Fatalf("%q, %v", body, err)
			}
		}
		if s := n.Stats().Listeners[0]; s.Accepted != 1 {
			t.Errorf("%d connections for 10 requests", s.Accepted)
		}
	})
}
