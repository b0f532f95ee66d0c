package lb

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"lbd/lb/lbtest"
)

const (
	// stall is the listener's write stall in these tests, and tick how often a slow client reads: it is served as long as it
	// acknowledges something in each stall.
	stall = 200 * time.Millisecond
	tick  = 10 * time.Millisecond
)

// dialNarrow connects a client whose kernel takes little ahead of it, so that what it reads is what it acknowledges.
func (n *node) dialNarrow() *client {
	n.t.Helper()
	dialer := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
		var failed error
		err := raw.Control(func(fd uintptr) {
			failed = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 8<<10)
		})
		if err == nil {
			err = failed
		}
		return err
	}}
	c, err := dialer.Dial("tcp", n.addr())
	if err != nil {
		n.t.Fatal(err)
	}
	return newClient(n.t, c)
}

// endless answers one request with bytes for as long as they are taken, and then says so.
func endless(ended chan<- struct{}) lbtest.Script {
	return func(c *lbtest.Conn) {
		c.ReadHead()
		c.Say("HTTP/1.1 200 OK\r\n\r\n")
		io.Copy(c.Conn, repeat('x'))
		close(ended)
	}
}

// TestSlowReader: a client that reads 100 kB/s is served although the kernel, whose buffers are full of answer, takes nothing
// for far longer than the stall's time; and it is ended once it reads nothing.
func TestSlowReader(t *testing.T) {
	for _, over := range []string{"plain", "tls"} {
		t.Run(over, func(t *testing.T) {
			onEngines(t, func(t *testing.T, kind string) { testSlowReader(t, kind, over == "tls") })
		})
	}
}

func testSlowReader(t *testing.T, kind string, overTLS bool) {
	ended := make(chan struct{})
	cfg := setup{kind: kind, backends: addrs(lbtest.New(t, endless(ended))), listener: ListenerConfig{Timeouts: Timeouts{WriteStall: stall}}}
	if overTLS {
		cfg.tls = testTerminator(t)
	}
	n := start(t, cfg)
	c := n.dialNarrow()
	from := c.Conn
	if overTLS {
		from = tls.Client(c.Conn, &tls.Config{InsecureSkipVerify: true})
	}
	if _, err := io.WriteString(from, get("/")); err != nil {
		t.Fatal(err)
	}
	var piece [2 << 10]byte
	for end := time.Now().Add(4 * stall); time.Now().Before(end); {
		if _, err := io.ReadFull(paced{from}, piece[:]); err != nil {
			t.Fatalf("a client that reads was ended: %v", err)
		}
	}
	<-ended
	if r := n.want(200, ClientTimeout); r.Detail != "write_stall" {
		t.Errorf("detail %q", r.Detail)
	}
	if _, err := io.Copy(io.Discard, from); err == nil {
		t.Error("a cut answer has ended in order")
	}
}

// TestSlowReaderGetsItAll: a client that is slow while our buffers and the kernel's fill, and then reads as fast as it can, gets every
// byte, with a length and in chunks, and a second answer on the same connection.
func TestSlowReaderGetsItAll(t *testing.T) {
	body := strings.Repeat("0123456789abcdef-", 100_000)
	answers := map[string]string{
		"length": fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body),
		"chunks": fmt.Sprintf("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(body), body),
	}
	for name, answer := range answers {
		for _, over := range []string{"plain", "tls"} {
			t.Run(name+" "+over, func(t *testing.T) {
				onEngines(t, func(t *testing.T, kind string) {
					cfg := setup{kind: kind, backends: addrs(lbtest.New(t, lbtest.Answer(answer)))}
					if over == "tls" {
						cfg.tls = testTerminator(t)
					}
					n := start(t, cfg)
					c := n.dialNarrow()
					if over == "tls" {
						c.Conn = tls.Client(c.Conn, &tls.Config{InsecureSkipVerify: true})
					}
					for range 2 {
						c.say(get("/"))
						c.r = bufio.NewReader(io.MultiReader(io.LimitReader(paced{c.Conn}, 20_000), c.Conn))
						c.expect("GET", 200, body)
						n.want(200, OK)
					}
				})
			})
		}
	}
}

// TestSlowReaderGetsTheEnd: the last answer of a connection over TLS, which a client is slow to read, comes whole, and its farewell behind it.
func TestSlowReaderGetsTheEnd(t *testing.T) {
	body := strings.Repeat("0123456789abcdef-", 100_000)
	onEngines(t, func(t *testing.T, kind string) {
		n := start(t, setup{kind: kind, backends: addrs(lbtest.New(t, lbtest.OK(body))), tls: testTerminator(t)})
		c := n.dialNarrow()
		c.Conn = tls.Client(c.Conn, &tls.Config{InsecureSkipVerify: true})
		c.say("GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n")
		c.r = bufio.NewReader(io.MultiReader(io.LimitReader(paced{c.Conn}, 20_000), c.Conn))
		c.expect("GET", 200, body)
		if rest, err := io.ReadAll(c.r); len(rest) > 0 || err != nil {
			t.Errorf("behind the answer %q, %v", rest, err)
		}
		n.want(200, OK)
	})
}

// TestStallWhileParked: an answer that the kernel has taken whole does not let a client that reads none of it hold the
// kernel's memory for the keep-alive time.
func TestStallWhileParked(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		body := strings.Repeat("x", 60_000)
		n := start(t, setup{
			kind: kind, backends: addrs(lbtest.New(t, lbtest.OK(body))), listener: ListenerConfig{Timeouts: Timeouts{WriteStall: stall}},
		})
		reads, idle := n.dial(), n.dial()
		for _, c := range []*client{reads, idle} {
			c.say(get("/"))
			c.expect("GET", 200, body)
			n.want(200, OK)
		}
		c := n.dialNarrow()
		c.say(get("/"))
		n.want(200, OK)
		began := time.Now()
		eventually(t, "the one that does not read is gone", func() bool { return n.Stats().Connections == 2 })
		if took := time.Since(began); took < stall {
			t.Errorf("given up after %v", took)
		}
		reads.say(get("/"))
		reads.expect("GET", 200, body) // the others live on
		idle.say(get("/"))
		idle.expect("GET", 200, body)
	})
}

// TestParkedSlowReader: the same answer, read slowly, is read to its end, and the connection is then as good as any other.
func TestParkedSlowReader(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		body := strings.Repeat("x", 60_000)
		n := start(t, setup{
			kind: kind, backends: addrs(lbtest.New(t, lbtest.OK(body))), listener: ListenerConfig{Timeouts: Timeouts{WriteStall: stall}},
		})
		c := n.dialNarrow()
		c.r = bufio.NewReaderSize(paced{c.Conn}, 1<<10)
		for range 2 {
			c.say(get("/"))
			n.want(200, OK) // the kernel has all of it
			c.expect("GET", 200, body)
			c.r = bufio.NewReader(c.Conn)
		}
	})
}

// TestParkedSlowReaderOfMany: answers to pipelined requests wait for a slow client together, so what it owes at the first look is
// more than the last of them.
func TestParkedSlowReaderOfMany(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		const many = 5
		body := strings.Repeat("x", 20_000)
		n := start(t, setup{
			kind: kind, backends: addrs(lbtest.New(t, lbtest.OK(body))), listener: ListenerConfig{Timeouts: Timeouts{WriteStall: stall}},
		})
		c := n.dialNarrow()
		c.say(strings.Repeat(get("/"), many))
		for range many {
			n.want(200, OK) // the kernel has all of it
		}
		c.r = bufio.NewReaderSize(paced{c.Conn}, 1<<10)
		for range many {
			c.expect("GET", 200, body)
		}
	})
}

// paced reads at most 1 KiB in each tick.
type paced struct{ net.Conn }

func (p paced) Read(b []byte) (int, error) {
	time.Sleep(tick)
	return p.Conn.Read(b[:min(len(b), 1<<10)])
}

// waiting is a backend that has a request and never answers; gone gets a token when its connection has ended.
func waiting(asked, gone chan<- struct{}) lbtest.Script {
	return func(c *lbtest.Conn) {
		c.ReadHead()
		asked <- struct{}{}
		io.Copy(io.Discard, c)
		gone <- struct{}{}
	}
}

// TestClientGoneWhileWaiting: a client that resets its connection is not waited for, nor is its backend kept busy.
func TestClientGoneWhileWaiting(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		asked, gone := make(chan struct{}, 1), make(chan struct{}, 1)
		n := start(t, setup{kind: kind, backends: addrs(lbtest.New(t, waiting(asked, gone)))})
		for _, request := range []string{get("/"), post("/", "body"), strings.Replace(get("/"), "GET", "HEAD", 1)} {
			c := n.dial()
			c.say(request)
			<-asked
			c.Conn.(*net.TCPConn).SetLinger(0)
			c.Close()
			<-gone
			if r := n.record(); r.Reason != ClientAborted || r.Detail != "gone" {
				t.Errorf("ended %s %s", r.Reason, r.Detail)
			}
		}
		if f := n.backend(0).Failures; f != 0 {
			t.Errorf("the backend is blamed %d times", f)
		}
	})
}

// TestClientGoneOverTLS is the same through TLS, whose own goodbye the client does not say.
func TestClientGoneOverTLS(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		asked, gone := make(chan struct{}, 1), make(chan struct{}, 1)
		n := start(t, setup{kind: kind, tls: testTerminator(t), backends: addrs(lbtest.New(t, waiting(asked, gone)))})
		c := n.dialTLS(tls.VersionTLS13)
		c.say(get("/"))
		<-asked
		raw := c.Conn.(*tls.Conn).NetConn().(*net.TCPConn)
		raw.SetLinger(0)
		raw.Close()
		<-gone
		if r := n.record(); r.Reason != ClientAborted || r.Detail != "gone" {
			t.Errorf("ended %s %s", r.Reason, r.Detail)
		}
	})
}

// TestHalfCloseWhileWaiting: a client's FIN while the backend thinks is no abort, for HTTP/1.1, for 1.0 and with a body.
func TestHalfCloseWhileWaiting(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		asked, answer := make(chan struct{}), make(chan struct{})
		b := lbtest.New(t, func(c *lbtest.Conn) {
			for {
				if _, err := c.ReadRequest(); err != nil {
					return
				}
				asked <- struct{}{}
				<-answer
				c.Say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
			}
		})
		n := start(t, setup{kind: kind, backends: addrs(b)})
		for _, request := range []string{get("/"), "GET / HTTP/1.0\r\nHost: a.test\r\n\r\n", post("/", "body")} {
			c := n.dial()
			c.say(request)
			<-asked
			c.Conn.(*net.TCPConn).CloseWrite()
			answer <- struct{}{}
			c.expect("GET", 200, "hi")
			c.expectEnd()
			n.want(200, OK)
		}
	})
}
