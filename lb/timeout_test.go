package lb

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"lbd/lb/lbtest"
)

// short is a timeout that a test waits for. Nothing else in these tests takes time, so being slow makes none fail.
const short = 30 * time.Millisecond

// silent reads requests and says nothing.
func silent(c *lbtest.Conn) {
	for {
		if _, err := c.ReadRequest(); err != nil {
			return
		}
	}
}

func TestFirstByteTimeout(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		b := lbtest.New(t, silent)
		n := start(t, setup{kind: kind, backends: addrs(b), forward: RouteTimeouts{FirstByte: short}})
		c := n.dial()
		c.say(get("/"))
		if resp, _ := c.answer("GET"); resp.StatusCode != 504 || resp.Close {
			t.Errorf("%d, close %v", resp.StatusCode, resp.Close)
		}
		if r := n.want(504, BackendTimeout); r.Tries != 1 || r.FirstByte != 0 || r.Total < short {
			t.Errorf("record %+v", r)
		}
		eventually(t, "failure counted", func() bool { return n.backend(0).Failures == 1 && n.backend(0).Idle == 0 })
	})
}

func TestBodyIdleTimeout(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		b := lbtest.New(t, func(c *lbtest.Conn) {
			c.ReadHead()
			c.Say("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
			c.ReadHead()
		})
		n := start(t, setup{kind: kind, backends: addrs(b), forward: RouteTimeouts{BodyIdle: short}})
		c := n.dial()
		c.say(get("/"))
		if _, body, err := c.tryAnswer("GET"); err == nil || body != "half" {
			t.Errorf("%q, %v", body, err)
		}
		n.want(200, BackendTimeout)
		c = n.dial()
		c.say("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf")
		if _, _, err := c.tryAnswer("POST"); err == nil {
			t.Error("whole answer from a backend that sends half")
		}
		n.record()
	})
}

func TestRequestBodyTimeout(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		n := start(t, setup{kind: kind, backends: addrs(lbtest.New(t, silent)), forward: RouteTimeouts{BodyIdle: short}})
		c := n.dial()
		c.say("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf")
		c.expectStatus(408)
		c.expectEnd()
		n.want(408, ClientTimeout)
	})
}

// TestSteadyUpload: the time counts from the last piece, so an upload that takes ten times as long passes.
func TestSteadyUpload(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		const idle = 300 * time.Millisecond
		n := start(t, setup{kind: kind, backends: addrs(lbtest.New(t, lbtest.Echo)), forward: RouteTimeouts{BodyIdle: idle}})
		c := n.dial()
		c.say("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 20\r\n\r\n")
		for range 20 {
			time.Sleep(idle / 10)
			c.say("x")
		}
		c.expect("POST", 200, strings.Repeat("x", 20))
	})
}

func TestHeadTimeout(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		n := start(t, setup{kind: kind, listener: ListenerConfig{Timeouts: Timeouts{RequestHead: short}}})
		c := n.dial()
		c.say("GET / HTTP/1.1\r\nHost:")
		c.expectStatus(408)
		c.expectEnd()
		if r := n.want(408, ClientTimeout); r.Detail != "head" {
			t.Errorf("detail %q", r.Detail)
		}
	})
}

func TestKeepAliveTimeout(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		n := start(t, setup{
			kind: kind, backends: addrs(lbtest.New(t, lbtest.OK("hi"))),
			listener: ListenerConfig{Timeouts: Timeouts{KeepAliveIdle: short}},
		})
		c := n.dial()
		c.expectEnd() // not even a request
		c = n.dial()
		c.say(get("/"))
		c.expect("GET", 200, "hi")
		c.expectEnd()
		n.want(200, OK)
		if len(n.logged) > 0 {
			t.Error("an idle connection's end is in the log")
		}
	})
}

func TestWriteStall(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		ended := make(chan struct{})
		b := lbtest.New(t, func(c *lbtest.Conn) {
			c.ReadHead()
			c.Say("HTTP/1.1 200 OK\r\n\r\n")
			io.Copy(c.Conn, repeat('x'))
			close(ended)
		})
		n := start(t, setup{kind: kind, backends: addrs(b), listener: ListenerConfig{Timeouts: Timeouts{WriteStall: short}}})
		c := n.dial()
		c.say(get("/"))
		<-ended // the backend is let go although the client reads nothing
		n.want(200, ClientTimeout)
	})
}

func TestHandshakeTimeout(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		n := start(t, setup{kind: kind, tls: testTerminator(t), listener: ListenerConfig{Timeouts: Timeouts{Handshake: short}}})
		c := n.dial()
		c.expectEnd()
		if r := n.want(0, ClientTimeout); r.Detail != "handshake" {
			t.Errorf("detail %q", r.Detail)
		}
		c = n.dial()
		c.say(get("/")) // no TLS at all
		c.expectEndAfterAlert()
		n.want(0, BadRequest)
	})
}

func (c *client) expectEndAfterAlert() {
	c.t.Helper()
	if _, err := io.Copy(io.Discard, c.r); err != nil {
		if e, ok := err.(net.Error); ok && e.Timeout() {
			c.t.Error("connection goes on")
		}
	}
}
