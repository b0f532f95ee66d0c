package lb

import (
	"crypto/tls"
	"io"
	"net"
	"slices"
	"strings"
	"testing"

	"lbd/lb/lbtest"
)

// answerCase is what a backend answers, and what of it reaches the client.
type answerCase struct {
	name    string
	request string // "GET /" + tail + "\r\n" if empty
	answer  string
	ends    bool // the backend's connection ends with the answer
	// The lines that the client gets, without Date and Via, and all that follows the head.
	fields []string
	body   string
}

const (
	cl2      = "Content-Length: 2\r\n"
	chunked2 = "Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"
	old      = " HTTP/1.0\r\nHost: a.test\r\n"
)

var answerCases = []answerCase{
	{name: "A19 fields of the backend's hop", answer: "200 OK\r\n" + cl2 + "Connection: keep-alive, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\n" +
		"Proxy-Connection: x\r\nProxy-Authenticate: Basic\r\nUpgrade: h2c\r\nX: y\r\n\r\nhi", fields: []string{"X: y", "Content-Length: 2"}, body: "hi"},

	{name: "A27 not modified", answer: "304 Not Modified\r\nETag: \"1\"\r\n\r\n", fields: []string{`ETag: "1"`}},
	{name: "A27 sibling: the length that it would have", answer: "304 Not Modified\r\nContent-Length: 9\r\n\r\n", fields: []string{"Content-Length: 9"}},
	{name: "A27 sibling: chunks announced and not sent", answer: "304 Not Modified\r\nTransfer-Encoding: chunked\r\n\r\n", fields: []string{}},
	{name: "A27 no content", answer: "204 No Content\r\n\r\n", fields: []string{}},
	{name: "A27 sibling: no content, and its length", answer: "204 No Content\r\nContent-Length: 0\r\n\r\n", fields: []string{}},
	{name: "A27 HEAD", request: "HEAD /" + tail + "\r\n", answer: "200 OK\r\nContent-Length: 7\r\n\r\n", fields: []string{"Content-Length: 7"}},
	{name: "A27 sibling: HEAD without a length", request: "HEAD /" + tail + "\r\n", answer: "200 OK\r\n\r\n", fields: []string{}},
	{name: "A27 sibling: HEAD of an error", request: "HEAD /" + tail + "\r\n", answer: "500 Oops\r\nContent-Length: 7\r\n\r\n", fields: []string{"Content-Length: 7"}},

	{name: "A32 chunks to HTTP/1.0", request: "GET /" + old + "\r\n", answer: "200 OK\r\n" + chunked2, fields: []string{"Connection: close"}, body: "hi"},
	{name: "A32 sibling: though it asks to go on", request: "GET /" + old + "Connection: keep-alive\r\n\r\n", answer: "200 OK\r\n" + chunked2,
		fields: []string{"Connection: close"}, body: "hi"},
	{name: "A32 sibling: a length lets it go on", request: "GET /" + old + "Connection: keep-alive\r\n\r\n", answer: "200 OK\r\n" + cl2 + "\r\nhi",
		fields: []string{"Content-Length: 2", "Connection: keep-alive"}, body: "hi"},
	{name: "A32 sibling: trailers are left out", request: "GET /" + old + "\r\n",
		answer: "200 OK\r\nTrailer: X\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nX: y\r\n\r\n", fields: []string{"Connection: close"}, body: "hi"},
	{name: "A32 sibling: it did not ask", request: "GET /" + old + "\r\n", answer: "200 OK\r\n" + cl2 + "\r\nhi",
		fields: []string{"Content-Length: 2", "Connection: close"}, body: "hi"},
	{name: "A32 the other way: what ends with the connection goes on in chunks", answer: "200 OK\r\n\r\nhi", ends: true,
		fields: []string{"Transfer-Encoding: chunked"}, body: "2\r\nhi\r\n0\r\n\r\n"},
}

func TestAnswerCases(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		for _, tc := range answerCases {
			t.Run(tc.name, func(t *testing.T) { tc.run(t, kind) })
		}
	})
}

func (tc *answerCase) run(t *testing.T, kind string) {
	n := start(t, setup{kind: kind, backends: addrs(lbtest.New(t, func(c *lbtest.Conn) {
		for {
			if _, err := c.ReadRequest(); err != nil {
				return
			}
			if c.Say("HTTP/1.1 " + tc.answer); tc.ends {
				return
			}
		}
	}))})
	request := tc.request
	if request == "" {
		request = "GET /" + tail + "\r\n"
	}
	c := n.dial()
	c.say(request)
	c.Conn.(*net.TCPConn).CloseWrite()
	all, err := io.ReadAll(c.r)
	if err != nil {
		t.Fatal(err)
	}
	head, body, _ := strings.Cut(string(all), "\r\n\r\n")
	status, _, _ := strings.Cut(tc.answer, "\r\n")
	if !strings.HasPrefix(head, "HTTP/1.1 "+status+"\r\n") || body != tc.body {
		t.Errorf("got %q", all)
	}
	if fields := foreign(head); !slices.Equal(fields, tc.fields) {
		t.Errorf("fields %q, want %q", fields, tc.fields)
	}
	if r := n.record(); r.Reason != OK {
		t.Errorf("ended %v (%s)", r.Reason, r.Detail)
	}
}

// TestA20UnaskedUpgrade, a sibling of A20: a backend that switches to what was not asked for gets no tunnel.
func TestA20UnaskedUpgrade(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		for _, answer := range []string{
			"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
			"HTTP/1.1 101 Switching Protocols\r\n\r\n",
		} {
			n := start(t, setup{kind: kind, backends: addrs(lbtest.New(t, lbtest.Answer(answer)))})
			c := n.dial()
			c.say("GET /" + tail + "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: websocket, h2c\r\nHTTP2-Settings: AAMA\r\n\r\n")
			c.expectStatus(502)
			if r := n.want(502, BackendAborted); r.Detail != "unexpected_upgrade" {
				t.Errorf("detail %q", r.Detail)
			}
		}
	})
}

// TestA25NoContinueForOld, a sibling of A25: an HTTP/1.0 client never gets a 100, nor does its backend get its Expect.
func TestA25NoContinueForOld(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		b := lbtest.New(t, func(c *lbtest.Conn) {
			head, _ := c.ReadHead()
			c.Say("HTTP/1.1 100 Continue\r\n\r\n")
			c.ReadBody(head)
			c.Say(ok2)
		})
		n := start(t, setup{kind: kind, backends: addrs(b)})
		c := n.dial()
		c.say("POST /" + old + "Content-Length: 4\r\nExpect: 100-continue\r\n\r\nbody")
		c.expectText("HTTP/1.1 200 OK\r\n")
		if got := b.Requests()[0]; got.Body != "body" || len(got.Field("Expect")) != 0 {
			t.Errorf("the backend got %+v", got)
		}
		n.want(200, OK)
	})
}

// TestA26BeforeContinue, a sibling of A26: hints and a 100 keep their order, and the body flows after the 100.
func TestA26BeforeContinue(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		n := start(t, setup{kind: kind, backends: addrs(lbtest.New(t, func(c *lbtest.Conn) {
			head, _ := c.ReadHead()
			c.Say("HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n")
			c.ReadBody(head)
			c.Say("HTTP/1.1 103 Early Hints\r\n\r\n" + ok2)
		}))})
		c := n.dial()
		c.say("POST /" + tail + "Content-Length: 4\r\nExpect: 100-continue\r\n\r\n")
		c.expectText("HTTP/1.1 103 Early Hints\r\nVia: 1.1 lbd\r\n\r\nHTTP/1.1 100 Continue\r\nVia: 1.1 lbd\r\n\r\n")
		c.say("body")
		c.expectText("HTTP/1.1 103 Early Hints\r\nVia: 1.1 lbd\r\n\r\n")
		c.expect("POST", 200, "hi")
		n.want(200, OK)
	})
}

// TestA28AnswerAndReset, a sibling of A28: a backend that refuses an upload and closes at once, with the upload's bytes unread,
// resets its connection. Its answer was whole and reaches the client.
func TestA28AnswerAndReset(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		n := start(t, setup{kind: kind, backends: addrs(lbtest.New(t, func(c *lbtest.Conn) {
			c.ReadHead()
			io.CopyN(io.Discard, c, 100_000)
			c.Say("HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")
		}))})
		c := n.dial()
		c.say("POST /" + tail + "Content-Length: 400000\r\n\r\n" + strings.Repeat("x", 200_000))
		if resp := c.expect("POST", 413, "big"); !resp.Close {
			t.Error("no close announced")
		}
		n.want(413, OK)
	})
}

// TestA29Siblings: an answer that is cut short behind its head alone, and one in the middle of a chunk's size.
func TestA29Siblings(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		for _, answer := range []string{
			"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n",
			"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n1",
		} {
			n := start(t, setup{kind: kind, backends: addrs(lbtest.New(t, func(c *lbtest.Conn) { c.ReadRequest(); c.Say(answer) }))})
			c := n.dial()
			c.say(get("/"))
			if resp, body, err := c.tryAnswer("GET"); err == nil {
				t.Errorf("%q seems whole: %d %q", answer, resp.StatusCode, body)
			}
			n.want(200, BackendTruncated)
		}
	})
}

// TestA33Siblings: a stream's head comes before its first event, and each event when it is there, in chunks as in none, also
// to HTTP/1.0 and over TLS.
func TestA33Siblings(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		for _, stream := range []struct {
			request string
			tls     bool
			first   string // as the client gets it
		}{
			{"GET /" + tail + "\r\n", false, "9\r\ndata: x\n\n\r\n"},
			{"GET /" + tail + "\r\n", true, "9\r\ndata: x\n\n\r\n"},
			{"GET /" + old + "\r\n", false, "data: x\n\n"},
		} {
			next := make(chan struct{})
			cfg := setup{kind: kind, backends: addrs(lbtest.New(t, func(c *lbtest.Conn) {
				c.ReadRequest()
				c.Say("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
				for range next {
					c.Say("9\r\ndata: x\n\n\r\n")
				}
				c.Say("0\r\n\r\n")
			}))}
			if stream.tls {
				cfg.tls = testTerminator(t)
			}
			n := start(t, cfg)
			c := n.dial()
			if stream.tls {
				c = newClient(t, tls.Client(c.Conn, &tls.Config{InsecureSkipVerify: true}))
			}
			c.say(stream.request)
			for line := ""; line != "\r\n"; {
				var err error
				if line, err = c.r.ReadString('\n'); err != nil {
					t.Fatal(err)
				}
			}
			for range 3 {
				next <- struct{}{}
				c.expectText(stream.first)
			}
			close(next)
			n.want(200, OK)
		}
	})
}
