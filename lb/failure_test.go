package lb

import (
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"lbd/lb/lbtest"
)

const ok2 = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"

func TestNoRoute(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		n := start(t, setup{kind: kind, backends: addrs(lbtest.New(t, lbtest.OK("hi"))), routes: []RouteConfig{
			{Name: "one", Listeners: []string{"main"}, Hosts: []string{"b.test"}, Forward: &Forward{Pools: []WeightedPool{{Pool: "p", Weight: 1}}}},
		}})
		c := n.dial()
		c.say(get("/"))
		resp, body := c.answer("GET")
		r := n.want(404, NoRoute)
		if want := `{"status":404,"error":"no_route","request_id":"` + string(r.RequestID) + "\"}\n"; body != want {
			t.Errorf("body %q, want %q", body, want)
		}
		if resp.Header.Get("X-Request-Id") != string(r.RequestID) || resp.Header.Get("Content-Type") != "application/json" {
			t.Errorf("head %v", resp.Header)
		}
		// The connection lives on: this is nothing that the parser minds. The body is at hand and skipped.
		c.say("POST / HTTP/1.1\r\nHost: a.test\r\nAccept: text/html,*/*\r\nContent-Length: 3\r\n\r\nabc")
		resp, body = c.answer("POST")
		if resp.StatusCode != 404 || !strings.HasPrefix(body, "<!doctype html>") {
			t.Errorf("%d %q", resp.StatusCode, body)
		}
		c.say("HEAD / HTTP/1.1\r\nHost: a.test\r\n\r\nGET / HTTP/1.1\r\nHost: b.test\r\n\r\n")
		c.expect("HEAD", 404, "")
		c.expect("GET", 200, "hi")
	})
}

func TestNoBackend(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		b := lbtest.New(t, lbtest.OK("hi"))
		n := start(t, setup{kind: kind, backends: addrs(b)})
		n.setEligible(b.Addr().String(), false)
		c := n.dial()
		c.say(get("/"))
		resp, _ := c.answer("GET")
		if resp.StatusCode != 503 || resp.Header.Get("Retry-After") == "" {
			t.Errorf("%d %v", resp.StatusCode, resp.Header)
		}
		n.want(503, NoBackend)
		n.setEligible(b.Addr().String(), true)
		c.say(get("/"))
		c.expect("GET", 200, "hi")
	})
}

func TestBadRequest(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		b := lbtest.New(t, lbtest.OK("hi"))
		n := start(t, setup{kind: kind, backends: addrs(b)})
		for _, tc := range []struct {
			say    string
			status int
			detail string
		}{
			{"GET / HTTP/1.1\r\n\r\n", 400, "no_host"},
			{"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400, "length_and_chunked"},
			{"TRACE / HTTP/1.1\r\nHost: a\r\n\r\n", 405, "method_not_allowed"},
			{"GET /a%2Fb HTTP/1.1\r\nHost: a\r\n\r\n", 400, "encoded_slash"},
			{"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n" + get("/"), 400, "bad_chunk_size"},
			{"GET / HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("x", 70_000) + "\r\n\r\n", 431, "head_too_large"},
		} {
			c := n.dial()
			c.say(tc.say)
			if resp, _ := c.answer("GET"); resp.StatusCode != tc.status || !resp.Close {
				t.Errorf("%q: %d, close %v", tc.detail, resp.StatusCode, resp.Close)
			}
			c.expectEnd()
			if r := n.want(tc.status, BadRequest); r.Detail != tc.detail {
				t.Errorf("detail %q, want %q", r.Detail, tc.detail)
			}
		}
		for _, r := range b.Requests() {
			t.Errorf("a backend got %q", r.Head)
		}
	})
}

// TestLateBadChunk: the body turns bad after the head went to the backend.
func TestLateBadChunk(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		head := make(chan struct{})
		b := lbtest.New(t, func(c *lbtest.Conn) {
			c.ReadHead()
			close(head)
			c.ReadHead() // until the connection ends
		})
		n := start(t, setup{kind: kind, backends: addrs(b)})
		c := n.dial()
		c.say("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
		<-head
		c.say("1\r\nab\r\n")
		if resp, _ := c.answer("POST"); resp.StatusCode != 400 {
			t.Errorf("status %d", resp.StatusCode)
		}
		c.expectEnd()
		n.want(400, BadRequest)
	})
}

// TestStaleConnection: the backend closes idle connections without a word. A request whose connection dies before an answer
// goes out again on a fresh one if that is safe.
func TestStaleConnection(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		// Each connection serves one request, keeps silent about it, and dies at the next request without reading it.
		b := lbtest.New(t, func(c *lbtest.Conn) {
			c.ReadRequest()
			c.Say(ok2)
			if c.Index()%2 == 0 {
				c.ReadHead()
				c.Reset()
				return
			}
			c.ReadHead()
		})
		n := start(t, setup{kind: kind, backends: addrs(b)})
		c := n.dial()
		c.say(get("/"))
		c.expect("GET", 200, "hi")
		c.say(get("/"))
		c.expect("GET", 200, "hi")
		n.want(200, OK)
		if r := n.want(200, OK); r.Reused || r.Tries != 1 {
			t.Errorf("reused %v, tries %d", r.Reused, r.Tries)
		}
		if s := n.Stats(); s.Retries != 0 || s.Pools[0].Backends[0].Failures != 0 {
			t.Errorf("a stale connection counts: %+v", s)
		}
	})
}

func TestStaleConnectionNotForPost(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		b := lbtest.New(t, func(c *lbtest.Conn) {
			c.ReadRequest()
			c.Say(ok2)
			c.ReadHead()
			c.Reset()
		})
		n := start(t, setup{kind: kind, backends: addrs(b)})
		c := n.dial()
		c.say(get("/"))
		c.expect("GET", 200, "hi")
		c.say(post("/", "x"))
		if resp, _ := c.answer("POST"); resp.StatusCode != 502 {
			t.Errorf("status %d", resp.StatusCode)
		}
		n.want(200, OK)
		n.want(502, BackendAborted)
		if b.Accepted() != 1 {
			t.Errorf("%d connections: the request was sent twice", b.Accepted())
		}
	})
}

// TestBackendClosesIdle: an idle connection that the backend has closed is noticed before it is used.
func TestBackendClosesIdle(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		b := lbtest.New(t, func(c *lbtest.Conn) {
			c.ReadRequest()
			c.Say(ok2)
		})
		n := start(t, setup{kind: kind, backends: addrs(b)})
		c := n.dial()
		for range 3 {
			c.say(post("/", "x")) // not even idempotent
			c.expect("POST", 200, "hi")
			n.want(200, OK)
			eventually(t, "idle connection dropped", func() bool { return n.backend(0).Idle == 0 })
		}
	})
}

// TestSurplus: bytes behind an answer never become the next one.
func TestSurplus(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		b := lbtest.New(t, func(c *lbtest.Conn) {
			for {
				if _, err := c.ReadRequest(); err != nil {
					return
				}
				c.Say(ok2 + "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison")
			}
		})
		n := start(t, setup{kind: kind, backends: addrs(b)})
		c := n.dial()
		for range 3 {
			c.say(get("/"))
			c.expect("GET", 200, "hi")
		}
		if b.Accepted() != 3 {
			t.Errorf("%d connections, want 3", b.Accepted())
		}
	})
}

func TestConnectFailureGoesElsewhere(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		b := lbtest.New(t, lbtest.Echo)
		n := start(t, setup{kind: kind, backends: []netip.AddrPort{lbtest.Closed(t), b.Addr()}})
		c := n.dial()
		retried := 0
		for range 4 {
			c.say(post("/", "x")) // any method: nothing was sent
			c.expect("POST", 200, "x")
			if r := n.want(200, OK); r.Tries == 2 {
				retried++
			}
		}
		if s := n.Stats(); retried == 0 || s.Retries != int64(retried) || s.Pools[0].Backends[0].Failures != int64(retried) {
			t.Errorf("%d retried, stats %+v", retried, s)
		}
	})
}

func TestConnectFailureEverywhere(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		n := start(t, setup{kind: kind, backends: []netip.AddrPort{lbtest.Closed(t), lbtest.Closed(t), lbtest.Closed(t)}})
		c := n.dial()
		c.say(get("/"))
		if resp, _ := c.answer("GET"); resp.StatusCode != 502 || resp.Close {
			t.Errorf("%d, close %v", resp.StatusCode, resp.Close)
		}
		if r := n.want(502, ConnectFailed); r.Tries != 2 {
			t.Errorf("%d tries", r.Tries)
		}
	})
}

// TestResetBeforeAnswer: on a fresh connection, an idempotent request goes to another backend and a POST does not.
func TestResetBeforeAnswer(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		bad := lbtest.New(t, func(c *lbtest.Conn) { c.ReadRequest(); c.Reset() })
		good := lbtest.New(t, lbtest.OK("hi"))
		n := start(t, setup{kind: kind, backends: addrs(bad, good)})
		c := n.dial()
		for range 4 {
			c.say("PUT / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 3\r\n\r\nabc")
			c.expect("PUT", 200, "hi")
			n.want(200, OK)
		}
		bodies := 0
		for _, r := range good.Requests() {
			if r.Body == "abc" {
				bodies++
			}
		}
		if bodies != 4 || len(bad.Requests()) == 0 {
			t.Errorf("%d whole bodies at the good, %d requests at the bad", bodies, len(bad.Requests()))
		}
		n.setEligible(good.Addr().String(), false)
		c.say(post("/", "x"))
		if resp, _ := c.answer("POST"); resp.StatusCode != 502 {
			t.Errorf("status %d", resp.StatusCode)
		}
		n.want(502, BackendAborted)
	})
}

func TestRetryBudget(t *testing.T) {
	p := newPool(&PoolConfig{Name: "p"})
	for i := range retryBudgetMin {
		if !p.beginRetry(retryBudgetPercent, false) {
			t.Fatalf("retry %d refused", i)
		}
	}
	if p.beginRetry(retryBudgetPercent, false) {
		t.Error("a pool without traffic takes more retries than the floor")
	}
	p.endRetry()
	if !p.beginRetry(retryBudgetPercent, false) {
		t.Error("a place given back is not taken")
	}
	b := &Backend{}
	b.load.InFlight.Store(50)
	p.members = []*member{{backend: b, weight: 1}}
	for i := retryBudgetMin; i < 10; i++ {
		if !p.beginRetry(retryBudgetPercent, false) {
			t.Fatalf("retry %d of 50 requests refused", i)
		}
	}
	if p.beginRetry(retryBudgetPercent, false) {
		t.Error("more than a fifth")
	}
}

// TestTruncated is case A29.
func TestTruncated(t *testing.T) {
	for name, answer := range map[string]string{
		"length": "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
		"chunks": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
	} {
		onEngines(t, func(t *testing.T, kind string) {
			b := lbtest.New(t, func(c *lbtest.Conn) { c.ReadRequest(); c.Say(answer) })
			n := start(t, setup{kind: kind, backends: addrs(b)})
			c := n.dial()
			c.say(get("/"))
			if _, body, err := c.tryAnswer("GET"); err == nil || body != "half" {
				t.Errorf("%s: %q, %v: the client cannot tell", name, body, err)
			}
			n.want(200, BackendTruncated)
			eventually(t, "failure counted", func() bool { return n.backend(0).Failures == 1 })
		})
	}
}

func TestBadAnswer(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		for answer, detail := range map[string]string{
			"ICY 200 OK\r\n\r\n":   "bad_status_line",
			"HTTP/1.1 200 OK\r\nC": "answer_head",
			"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n":                     "duplicate_content_length",
			"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n": "unexpected_upgrade",
		} {
			b := lbtest.New(t, func(c *lbtest.Conn) { c.ReadRequest(); c.Say(answer) })
			n := start(t, setup{kind: kind, backends: addrs(b)})
			c := n.dial()
			c.say(get("/"))
			if resp, _ := c.answer("GET"); resp.StatusCode != 502 {
				t.Errorf("%q: status %d", answer, resp.StatusCode)
			}
			if r := n.want(502, BackendAborted); r.Detail != detail {
				t.Errorf("%q: detail %q", answer, r.Detail)
			}
		}
	})
}

func TestClientAborts(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		inBody, gone := make(chan struct{}), make(chan error, 1)
		b := lbtest.New(t, func(c *lbtest.Conn) {
			c.ReadHead()
			close(inBody)
			_, err := c.ReadHead()
			gone <- err
		})
		n := start(t, setup{kind: kind, backends: addrs(b)})
		c := n.dial()
		c.say("GET / HT")
		c.Close()
		if r := n.want(0, ClientAborted); r.Detail != "head" {
			t.Errorf("detail %q", r.Detail)
		}
		c = n.dial()
		c.say("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf")
		<-inBody
		c.Close()
		if err := <-gone; err == nil {
			t.Error("the backend's connection lives on")
		}
		if r := n.record(); r.Reason != ClientAborted || r.Detail != "body" {
			t.Errorf("ended %s %s", r.Reason, r.Detail)
		}
	})
}

// TestHalfClose: a client that ends its side after the request still gets its answer.
func TestHalfClose(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		n := start(t, setup{kind: kind, backends: addrs(lbtest.New(t, lbtest.OK("hi")))})
		c := n.dial()
		c.say(get("/"))
		c.Conn.(interface{ CloseWrite() error }).CloseWrite()
		c.expect("GET", 200, "hi")
		c.expectEnd()
		n.want(200, OK)
	})
}

func TestWeightsAndEligibility(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		a, b, c := lbtest.New(t, lbtest.OK("a")), lbtest.New(t, lbtest.OK("b")), lbtest.New(t, lbtest.OK("c"))
		pool := PoolConfig{Backends: []BackendConfig{
			{Key: "a", Name: "a", Address: a.Addr(), Weight: 2},
			{Key: "b", Name: "b", Address: b.Addr(), Weight: 1},
			{Key: "c", Name: "c", Address: c.Addr(), Weight: 0},
			{Key: "d", Name: "unresolved", Weight: 1},
		}}
		n := start(t, setup{kind: kind, pool: pool})
		conn := n.dial()
		ask := func(times int) map[string]int {
			got := map[string]int{}
			for range times {
				conn.say(get("/"))
				_, body := conn.answer("GET")
				got[body]++
			}
			return got
		}
		if got := ask(30); got["a"] != 20 || got["b"] != 10 {
			t.Errorf("shares %v, want a 20, b 10", got)
		}
		n.setEligible("a", false)
		n.setEligible("no such", false)
		if got := ask(3); got["b"] != 3 {
			t.Errorf("without a: %v", got)
		}
		// A new pool with the same keys knows what the old one knew.
		reused := n.backend(1).Reused
		n.serve(setup{pool: pool})
		if got := ask(3); got["b"] != 3 {
			t.Errorf("after a change, without a: %v", got)
		}
		if got := n.backend(1); got.Reused != reused+3 || got.NewConnections != 1 {
			t.Errorf("connections and counters were not kept: %+v", got)
		}
		n.setEligible("a", true)
		if got := ask(3); got["a"] != 2 || got["b"] != 1 {
			t.Errorf("with a again: %v", got)
		}
	})
}

// TestBackendMoves is case A39: its name resolves to another address; connections to the old one are not used again.
func TestBackendMoves(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		a, b := lbtest.New(t, lbtest.OK("old")), lbtest.New(t, lbtest.OK("new"))
		at := func(address netip.AddrPort) setup {
			return setup{kind: kind, pool: PoolConfig{Backends: []BackendConfig{{Key: "k", Name: "k", Address: address, Weight: 1}}}}
		}
		n := start(t, at(a.Addr()))
		c := n.dial()
		c.say(get("/"))
		c.expect("GET", 200, "old")
		n.serve(at(b.Addr()))
		c.say(get("/"))
		c.expect("GET", 200, "new")
	})
}

func TestIdleExpires(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		var closed atomic.Int32
		script := func(answer string) lbtest.Script {
			return func(c *lbtest.Conn) {
				lbtest.Answer(answer)(c)
				closed.Add(1)
			}
		}
		b := lbtest.New(t, script(ok2))
		n := start(t, setup{kind: kind, backends: addrs(b), pool: PoolConfig{IdleTimeout: 30 * time.Millisecond}})
		c := n.dial()
		c.say(get("/"))
		c.expect("GET", 200, "hi")
		eventually(t, "idle connection closed by its time", func() bool { return closed.Load() == 1 && n.backend(0).Idle == 0 })

		// One that the backend keeps for a second is not kept by us at all.
		short := lbtest.New(t, script("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nKeep-Alive: timeout=1\r\n\r\nhi"))
		n = start(t, setup{kind: kind, backends: addrs(short)})
		c = n.dial()
		c.say(get("/"))
		c.expect("GET", 200, "hi")
		eventually(t, "closed before the backend does", func() bool { return closed.Load() == 2 })
	})
}

func TestIdleIsBounded(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		release := make(chan struct{})
		b := lbtest.New(t, func(c *lbtest.Conn) {
			if _, err := c.ReadRequest(); err != nil {
				return
			}
			<-release
			c.Say(ok2)
			c.ReadHead()
		})
		n := start(t, setup{kind: kind, backends: addrs(b), pool: PoolConfig{IdlePerBackend: 2}})
		var clients []*client
		for range 5 {
			c := n.dial()
			c.say(get("/"))
			clients = append(clients, c)
		}
		eventually(t, "five at the backend", func() bool { return len(b.Requests()) == 5 })
		if n.inFlight() != 5 {
			t.Errorf("%d in flight", n.inFlight())
		}
		close(release)
		for _, c := range clients {
			c.expect("GET", 200, "hi")
		}
		eventually(t, "two idle", func() bool { return n.inFlight() == 0 && n.backend(0).Idle == 2 })
	})
}
