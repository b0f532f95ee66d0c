package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	webSockets = 1000
	webApplies = 200
	webAtOnce  = 50 // connections that are opened at a time
)

// webDocument serves WebSockets on one route; the applies change others.
const webDocument = `
api_version: lbd/v1
owner: dev
pools: [{ name: default, backends: [{ address: "BACKEND" }] }]
routes:
  - { name: default, listeners: [http, https], forward: { pools: [{ pool: default }] } }
  - { name: x, listeners: [http, https], matches: [{ path: { prefix: /x } }], forward: { pools: [{ pool: default }] } }
`

// echoFrames upgrades a request and sends back, byte for byte, what comes: to a balancer a WebSocket's frames are bytes.
func echoFrames(w http.ResponseWriter, r *http.Request) {
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		_, _ = io.WriteString(w, "no upgrade\n") // the client says what it got
		return
	}
	c, rw, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer c.Close()
	_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n")
	_, _ = io.Copy(c, rw)
}

// webSocket is one open connection.
type webSocket struct {
	c net.Conn
	r *bufio.Reader
}

func openWebSocket(address string) (*webSocket, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	c, err := dialURL(u)
	if err != nil {
		return nil, err
	}
	s := &webSocket{c, bufio.NewReaderSize(c, 512)}
	if err := s.upgrade(u.Path); err != nil {
		c.Close()
		return nil, err
	}
	return s, nil
}

func (s *webSocket) upgrade(path string) error {
	if err := s.c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	_, err := fmt.Fprintf(s.c, "GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n", path)
	if err != nil {
		return err
	}
	resp, err := http.ReadResponse(s.r, nil)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusSwitchingProtocols || resp.Header.Get("Sec-WebSocket-Accept") == "" {
		return fmt.Errorf("answered %s", resp.Status)
	}
	return nil
}

// say sends a frame's bytes and wants them back.
func (s *webSocket) say(text string) error {
	if err := s.c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := io.WriteString(s.c, text); err != nil {
		return err
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(s.r, got); err != nil {
		return err
	}
	if string(got) != text {
		return fmt.Errorf("said %q, got %q", text, got)
	}
	return nil
}

// openWebSockets opens all, half of them over TLS, a few at a time.
func openWebSockets(t *testing.T, addresses ...string) []*webSocket {
	all := make([]*webSocket, webSockets)
	each(all, func(i int, _ *webSocket) {
		s, err := openWebSocket(addresses[i%len(addresses)])
		if err != nil {
			t.Errorf("WebSocket %d: %v", i, err)
			return
		}
		all[i] = s
	})
	t.Cleanup(func() {
		for _, s := range all {
			if s != nil {
				s.c.Close()
			}
		}
	})
	if t.Failed() {
		t.FailNow()
	}
	return all
}

// each runs fn for all, webAtOnce at a time.
func each(all []*webSocket, fn func(i int, s *webSocket)) {
	var wg sync.WaitGroup
	for first := range webAtOnce {
		wg.Go(func() {
			for i := first; i < len(all); i += webAtOnce {
				fn(i, all[i])
			}
		})
	}
	wg.Wait()
}

// open returns how many still echo.
func open(t *testing.T, all []*webSocket, text string) int {
	var mu sync.Mutex
	alive := 0
	each(all, func(i int, s *webSocket) {
		err := s.say(fmt.Sprintf("%s %d", text, i))
		mu.Lock()
		defer mu.Unlock()
		if err == nil {
			alive++
		} else if i < 10 {
			t.Logf("WebSocket %d: %v", i, err)
		}
	})
	return alive
}

// TestA48 keeps 1,000 WebSockets on one route, half of them over TLS, through 200 applies to other routes: none is closed. Its
// siblings: nor does a change of their own route and of its pool close one, nor a rotated certificate.
func TestA48(t *testing.T) {
	for _, engine := range engines() {
		t.Run(engine, func(t *testing.T) { testA48(t, engine) })
	}
}

func testA48(t *testing.T, engine string) {
	backend := httptest.NewServer(http.HandlerFunc(echoFrames))
	t.Cleanup(backend.Close)
	address := backend.Listener.Addr().String()
	plain, secure, lbctl := startNodeFor(t, engine, "lbd-plain", webDocument, address)
	all := openWebSockets(t, "http://"+plain+"/x/chat", "https://"+secure+"/x/chat")
	if alive := open(t, all, "before"); alive != webSockets {
		t.Fatalf("%d of %d WebSockets work before anything changed", alive, webSockets)
	}
	apply := func(t *testing.T, document string) {
		t.Helper()
		if err := lbctl("api_version: lbd/v1\nowner: dev\n"+document, "apply", "-f", "-", "--wait"); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("OtherRoutes", func(t *testing.T) {
		for i := range webApplies {
			apply(t, fmt.Sprintf("routes: [{ name: other%d, listeners: [https], hosts: [h%d.example.com], forward: { pools: [{ pool: default }] } }]\n", i%20, i))
		}
		if alive := open(t, all, "others changed"); alive != webSockets {
			t.Errorf("%d of %d WebSockets are left after %d applies", alive, webSockets, webApplies)
		}
	})
	t.Run("SiblingOwnRouteAndPool", func(t *testing.T) {
		for i := range 10 {
			apply(t, fmt.Sprintf("pools: [{ name: default, backends: [{ address: %q, weight: %d }] }]\n"+
				"routes: [{ name: x, listeners: [http, https], matches: [{ path: { prefix: /x } }], forward: { pools: [{ pool: default }], timeouts: { first_byte: %ds } } }]\n",
				address, 1+i%3, 10+i))
		}
		if alive := open(t, all, "own changed"); alive != webSockets {
			t.Errorf("%d of %d WebSockets are left after their route changed", alive, webSockets)
		}
	})
	t.Run("SiblingCertificate", func(t *testing.T) {
		for range 5 {
			if err := lbctl("", "cert", "rotate", "default", "--wait"); err != nil {
				t.Fatal(err)
			}
		}
		if alive := open(t, all, "rotated"); alive != webSockets {
			t.Errorf("%d of %d WebSockets are left after rotations", alive, webSockets)
		}
	})
}
