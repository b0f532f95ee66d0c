package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

const (
	slowClients = 100 // of each kind
	fairReaders = 10
)

// slowDocument gives slow clients a second, and readers three. The whole, with a thousand connections and longer times, is bench/slow.
const slowDocument = `
api_version: lbd/v1
owner: dev
listeners:
  - { name: https, addresses: ["127.0.0.1:8443"], protocol: HTTPS, tls: { default_certificate: default }, timeouts: { request_head: 1s, write_stall: 3s } }
pools: [{ name: default, backends: [{ address: "BACKEND" }] }]
routes: [{ name: default, listeners: [https], forward: { pools: [{ pool: default }], timeouts: { body_idle: 1s } } }]
`

// slowKinds are what a slow client says before it does nothing more.
var slowKinds = map[string]string{
	"head": "GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow",
	"body": "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nslow",
	"read": "GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n",
}

// TestSlowClients lets a hundred slow heads, bodies and readers each at a node, over TLS: all of them are ended, while others
// are answered and fair slow readers are served.
func TestSlowClients(t *testing.T) {
	for _, engine := range engines() {
		t.Run(engine, func(t *testing.T) { testSlowClients(t, engine) })
	}
}

func testSlowClients(t *testing.T, engine string) {
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // a body that stops is lbd's to judge
		if r.URL.Path != "/large" {
			_, _ = io.WriteString(w, "quick\n")
			return
		}
		for piece := make([]byte, 16<<10); ; {
			if _, err := w.Write(piece); err != nil {
				return
			}
		}
	}))
	t.Cleanup(backend.Close)
	_, https, _ := startNodeFor(t, engine, "lbd-plain", slowDocument, backend.Listener.Addr().String())
	var slow, steady sync.WaitGroup
	var ended atomic.Int64
	for kind, text := range slowKinds {
		for range slowClients {
			slow.Go(func() {
				if err := beSlow(https, text); err != nil {
					t.Errorf("slow %s: %v", kind, err)
					return
				}
				ended.Add(1)
			})
		}
	}
	quit := make(chan struct{})
	for range fairReaders {
		steady.Go(func() {
			if err := readSlowly(https, quit); err != nil {
				t.Errorf("a fair slow reader: %v", err)
			}
		})
	}
	steady.Go(func() {
		if err := askOn(https, quit); err != nil {
			t.Errorf("another client: %v", err)
		}
	})
	slow.Wait()
	close(quit)
	steady.Wait()
	if n := ended.Load(); n != slowClients*int64(len(slowKinds)) {
		t.Errorf("%d slow clients were ended", n)
	}
}

// dialNarrow opens a TLS connection whose kernel takes little ahead of its program.
func dialNarrow(address string) (*tls.Conn, error) {
	d := &net.Dialer{Timeout: patience, Control: func(_, _ string, raw syscall.RawConn) error {
		var failed error
		if err := raw.Control(func(fd uintptr) {
			failed = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4<<10)
		}); err != nil {
			return err
		}
		return failed
	}}
	return tls.DialWithDialer(d, "tcp", address, &tls.Config{InsecureSkipVerify: true, ServerName: "localhost"})
}

// beSlow says its text and returns nil once the node has ended the connection. What a slow reader is sent lies in buffers: that
// the connection has been reset is seen without reading it, by a write that fails.
func beSlow(address, text string) error {
	c, err := dialNarrow(address)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := io.WriteString(c, text); err != nil {
		return err
	}
	if text != slowKinds["read"] {
		if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		_, err := io.Copy(io.Discard, c)
		if e, ok := err.(net.Error); ok && e.Timeout() {
			return err
		}
		return nil
	}
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if _, err := c.NetConn().Write([]byte{0}); err != nil {
			return nil
		}
	}
	return fmt.Errorf("still open after %v", patience)
}

// readSlowly reads 10 kB/s of an endless answer until quit.
func readSlowly(address string, quit <-chan struct{}) error {
	c, err := dialNarrow(address)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := io.WriteString(c, slowKinds["read"]); err != nil {
		return err
	}
	for piece := make([]byte, 1000); ; {
		if _, err := io.ReadFull(c.NetConn(), piece); err != nil {
			return err
		}
		select {
		case <-quit:
			return nil
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// askOn makes one request after the other on one connection until quit.
func askOn(address string, quit <-chan struct{}) error {
	h, err := hold("https://" + address + "/")
	if err != nil {
		return err
	}
	defer h.c.Close()
	for {
		if body, err := h.get(); err != nil || string(body) != "quick\n" {
			return fmt.Errorf("got %q, %v", body, err)
		}
		select {
		case <-quit:
			return nil
		case <-time.After(10 * time.Millisecond):
		}
	}
}
