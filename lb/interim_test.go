package lb

import (
	"io"
	"strings"
	"testing"

	"lbd/lb/lbtest"
)

// TestContinue is case A25: one 100, the body after it, and the final answer.
func TestContinue(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		b := lbtest.New(t, func(c *lbtest.Conn) {
			for {
				head, err := c.ReadHead()
				if err != nil {
					return
				}
				c.Say("HTTP/1.1 100 Continue\r\n\r\n")
				if _, err := c.ReadBody(head); err != nil {
					return
				}
				c.Say(ok2)
			}
		})
		n := start(t, setup{kind: kind, backends: addrs(b)})
		c := n.dial()
		for range 3 {
			c.say("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n")
			c.expectText("HTTP/1.1 100 Continue\r\nVia: 1.1 lbd\r\n\r\n")
			c.say("body")
			c.expect("POST", 200, "hi")
			n.want(200, OK)
		}
		if b.Accepted() != 1 {
			t.Errorf("%d connections", b.Accepted())
		}
		if r := b.Requests()[0]; r.Body != "body" || len(r.Field("Expect")) != 1 {
			t.Errorf("backend saw %q %q", r.Head, r.Body)
		}
	})
}

// TestContinueRefused, a sibling of A25 and of A28: the final answer comes in place of the 100; the client keeps its body, and the connection ends.
func TestContinueRefused(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		b := lbtest.New(t, func(c *lbtest.Conn) {
			c.ReadHead()
			c.Say("HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")
			c.ReadHead()
		})
		n := start(t, setup{kind: kind, backends: addrs(b)})
		c := n.dial()
		c.say("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n")
		if resp := c.expect("POST", 413, "big"); !resp.Close {
			t.Error("the connection goes on, though the client may or may not send its body")
		}
		c.expectEnd()
		n.want(413, OK)
	})
}

// TestSilentBackend, a sibling of A25: no 100 comes; the client sends its body after a while, and that is passed on.
func TestSilentBackend(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		n := start(t, setup{kind: kind, backends: addrs(lbtest.New(t, lbtest.Echo))})
		c := n.dial()
		c.say("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n")
		c.say("body")
		c.expect("POST", 200, "body")
	})
}

// TestEarlyAnswer is case A28: the backend refuses a large upload half-way. The answer reaches the client although it is still sending.
func TestEarlyAnswer(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		b := lbtest.New(t, func(c *lbtest.Conn) {
			c.ReadHead()
			io.CopyN(io.Discard, c, 100_000)
			c.Say("HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")
			c.ReadHead()
		})
		n := start(t, setup{kind: kind, backends: addrs(b)})
		c := n.dial()
		c.say("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n")
		stop := make(chan struct{})
		go func() {
			defer close(stop)
			piece := strings.Repeat("x", 10_000)
			for {
				if _, err := io.WriteString(c.Conn, piece); err != nil {
					return
				}
			}
		}()
		if resp := c.expect("POST", 413, "big"); !resp.Close {
			t.Error("no close announced")
		}
		<-stop
		n.want(413, OK)
	})
}

// TestBothDirections: an echo that answers while the request goes on, far more than any buffer holds.
func TestBothDirections(t *testing.T) {
	testBothDirections(t, func(c *lbtest.Conn) {
		c.ReadHead()
		c.Say(bothHead)
		io.CopyN(c.Conn, c, bothBytes)
	})
}

// TestAnswerBeforeUpload: the backend takes none of the request's body until it has sent its whole answer. A proxy that waits
// for one of the two at a time stops for ever.
func TestAnswerBeforeUpload(t *testing.T) {
	testBothDirections(t, func(c *lbtest.Conn) {
		c.ReadHead()
		c.Say(bothHead)
		io.CopyN(c.Conn, repeat('x'), bothBytes-1)
		io.CopyN(io.Discard, c, bothBytes)
		c.Say("x")
	})
}

const (
	bothBytes = 20_000_000
	bothHead  = "HTTP/1.1 200 OK\r\nContent-Length: 20000000\r\n\r\n"
)

func testBothDirections(t *testing.T, script lbtest.Script) {
	onEngines(t, func(t *testing.T, kind string) {
		n := start(t, setup{kind: kind, backends: addrs(lbtest.New(t, script))})
		c := n.dial()
		c.say("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 20000000\r\n\r\n")
		sent := make(chan error, 1)
		go func() {
			_, err := io.Copy(c.Conn, io.LimitReader(repeat('x'), bothBytes))
			sent <- err
		}()
		resp, body, err := c.tryAnswer("POST")
		if err != nil {
			t.Fatalf("after %d bytes: %v", len(body), err)
		}
		if err := <-sent; err != nil || resp.StatusCode != 200 || len(body) != bothBytes || strings.Trim(body, "x") != "" {
			t.Errorf("sent %v, got %d with %d bytes", err, resp.StatusCode, len(body))
		}
		if r := n.want(200, OK); r.RequestBytes != bothBytes || r.ResponseBytes != bothBytes {
			t.Errorf("%d up, %d down", r.RequestBytes, r.ResponseBytes)
		}
	})
}

type repeat byte

func (r repeat) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(r)
	}
	return len(p), nil
}

// TestInterim is case A26: twenty 103s reach the client in order, and none a client of HTTP/1.0.
func TestInterim(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		const hints = "HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n"
		b := lbtest.New(t, lbtest.Answer(strings.Repeat(hints+"\r\n", 20)+ok2))
		n := start(t, setup{kind: kind, backends: addrs(b)})
		c := n.dial()
		for range 2 {
			c.say(get("/"))
			c.expectText(strings.Repeat(hints+"Via: 1.1 lbd\r\n\r\n", 20))
			c.expect("GET", 200, "hi")
		}
		c.say("GET / HTTP/1.0\r\n\r\n")
		c.expect("GET", 200, "hi")
		c.expectEnd()
	})
}

// TestTooManyInterim, a sibling of A26: there is a limit.
func TestTooManyInterim(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		b := lbtest.New(t, lbtest.Answer(strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", interimAnswersMax+1)+ok2))
		n := start(t, setup{kind: kind, backends: addrs(b)})
		c := n.dial()
		c.say("GET / HTTP/1.0\r\n\r\n")
		c.expectStatus(502)
		n.want(502, BackendAborted)
	})
}

// TestStreams is case A33: each piece reaches the client when it comes, without waiting for the next.
func TestStreams(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		next := make(chan struct{})
		b := lbtest.New(t, func(c *lbtest.Conn) {
			c.ReadRequest()
			c.Say("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
			for range 3 {
				<-next
				c.Say("data: x\n\n")
			}
		})
		n := start(t, setup{kind: kind, backends: addrs(b)})
		c := n.dial()
		c.say(get("/"))
		for {
			line, err := c.r.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			if line == "\r\n" {
				break
			}
		}
		for range 3 {
			next <- struct{}{}
			c.expectText("9\r\ndata: x\n\n\r\n")
		}
		c.expectText("0\r\n\r\n")
		n.want(200, OK)
	})
}

func TestTrailers(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		b := lbtest.New(t, lbtest.Answer("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n2\r\nhi\r\n0\r\nX-Sum: 7\r\n\r\n"))
		n := start(t, setup{kind: kind, backends: addrs(b)})
		c := n.dial()
		c.say("GET / HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nConnection: TE\r\n\r\n")
		if resp := c.expect("GET", 200, "hi"); resp.Trailer.Get("X-Sum") != "7" {
			t.Errorf("trailers %v", resp.Trailer)
		}
		c.say(get("/"))
		if resp := c.expect("GET", 200, "hi"); resp.Trailer.Get("X-Sum") != "" {
			t.Error("trailers for a client that takes none")
		}
	})
}
