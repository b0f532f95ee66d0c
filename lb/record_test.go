package lb

import (
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"testing"

	"lbd/lb/lbtest"
)

func TestRecordOfRequest(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		b := lbtest.New(t, lbtest.OK("hello"))
		n := start(t, setup{kind: kind, backends: addrs(b)})
		c := n.dial()
		c.say("GET /a/../b?q=1 HTTP/1.1\r\nHost: A.test:80\r\nUser-Agent: ua/1\r\nReferer: http://r.test/\r\n\r\n")
		c.expect("GET", 200, "hello")
		r := n.want(200, OK)
		for name, pair := range map[string][2]string{
			"target": {string(r.Target), "/a/../b?q=1"}, "path": {string(r.Path), "/b"}, "query": {string(r.Query), "q=1"},
			"host": {string(r.Host), "a.test"}, "user agent": {string(r.UserAgent), "ua/1"}, "referer": {string(r.Referer), "http://r.test/"},
			"line": {string(r.Line), ""}, "backend": {r.Backend, b.Addr().String()},
		} {
			if pair[0] != pair[1] {
				t.Errorf("%s %q, want %q", name, pair[0], pair[1])
			}
		}
		if r.TLS != nil || r.ResponseBytes != 5 || r.Tries != 1 {
			t.Errorf("%+v", r)
		}
		// Nothing stays for the next one.
		c.say(get("/"))
		c.expect("GET", 200, "hello")
		if r := n.want(200, OK); r.UserAgent != nil || r.Referer != nil || r.Query != nil {
			t.Errorf("%q %q %q", r.UserAgent, r.Referer, r.Query)
		}
	})
}

// TestRecordOfRefusal: what was refused can be recognised, and shows nothing of what followed the first line.
func TestRecordOfRefusal(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		long := "GET /" + strings.Repeat("x", 2*refusedLineBytesMax) + " HTTP/1.1 \r\nHost: a\r\n\r\n"
		for _, c := range []struct{ head, line, detail string }{
			{"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "GET / HTTP/1.1", "duplicate_host"},
			{"GET / HTTP/1.1\nAuthorization: Basic c2VjcmV0\r\nHost: a\r\n\r\n", "GET / HTTP/1.1", "bad_line_end"},
			{long, long[:refusedLineBytesMax], "bad_request_line"},
			{"\x16\x03\x01 no HTTP\r\n", "\x16\x03\x01 no HTTP", "bad_method"},
		} {
			n := start(t, setup{kind: kind})
			client := n.dial()
			client.say(c.head)
			client.expectStatus(400)
			r := n.want(400, BadRequest)
			if string(r.Line) != c.line || r.Detail != c.detail || r.Method != nil || r.Target != nil {
				t.Errorf("line %q, detail %q, method %q, target %q; want %q, %q", r.Line, r.Detail, r.Method, r.Target, c.line, c.detail)
			}
		}
	})
}

func TestRecordOfSlowHead(t *testing.T) {
	n := start(t, setup{listener: ListenerConfig{Timeouts: Timeouts{RequestHead: short}}})
	c := n.dial()
	c.say("GET /half HTTP/1.1\r\nHos")
	c.expectStatus(408)
	if r := n.want(408, ClientTimeout); string(r.Line) != "GET /half HTTP/1.1" || r.Detail != "head" {
		t.Errorf("line %q, detail %q", r.Line, r.Detail)
	}
}

// TestRecordOfLimit: a connection that has no place is counted, and written down.
func TestRecordOfLimit(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		n := start(t, setup{kind: kind, listener: ListenerConfig{Limits: Limits{Connections: 1}}})
		n.dial()
		eventually(t, "one connection", func() bool { return n.Stats().Connections == 1 })
		n.dial().expectEnd()
		if r := n.want(0, Limited); r.Detail != "connections" || !r.Client.IsValid() || r.Listener != "main" {
			t.Errorf("%+v", r)
		}
	})
}

func TestTLSFacts(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		b := lbtest.New(t, lbtest.OK("hello"))
		n := start(t, setup{kind: kind, backends: addrs(b), tls: testTerminator(t)})
		cache := tls.NewLRUClientSessionCache(1)
		for _, resumed := range []bool{false, true} {
			c, err := tls.Dial("tcp", n.addr(), &tls.Config{InsecureSkipVerify: true, ServerName: "a.test", ClientSessionCache: cache})
			if err != nil {
				t.Fatal(err)
			}
			client := newClient(t, c)
			for range 2 {
				client.say(get("/"))
				client.expect("GET", 200, "hello")
			}
			first, second := n.want(200, OK), n.want(200, OK)
			if first.TLS != second.TLS {
				t.Error("facts are not the connection's")
			}
			f := *first.TLS
			if f.Version != "1.3" || !strings.HasPrefix(f.Suite, "TLS_") || f.ServerName != "a.test" || f.Resumed != resumed {
				t.Errorf("%+v, want resumed %v", f, resumed)
			}
			client.Close()
		}
	})
}

// toldTerminator refuses, says why and what it had heard.
type toldTerminator struct{}

type toldError struct{ error }

func (toldError) Detail() string { return "no_certificate" }

func (toldTerminator) Handshake(c net.Conn, _ string) (*tls.Conn, error) {
	conn := tls.Server(c, &tls.Config{})
	conn.Handshake() // fails, for want of a certificate
	return conn, toldError{errors.New("none")}
}

func TestRecordOfHandshake(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		n := start(t, setup{kind: kind, tls: toldTerminator{}})
		if _, err := tls.Dial("tcp", n.addr(), &tls.Config{InsecureSkipVerify: true, ServerName: "b.test"}); err == nil {
			t.Fatal("handshake succeeded")
		}
		r := n.want(0, BadRequest)
		if r.Detail != "handshake_no_certificate" || r.TLS == nil || r.TLS.ServerName != "b.test" || r.Method != nil {
			t.Errorf("%+v, TLS %+v", r, r.TLS)
		}
	})
}
