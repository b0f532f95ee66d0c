package lb

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"lbd/lb/lbtest"
	"lbd/lb/loop"
)

func TestRequestsPerConnection(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		b := lbtest.New(t, lbtest.OK("hi"))
		n := start(t, setup{kind: kind, backends: addrs(b), listener: ListenerConfig{Limits: Limits{Requests: 3}}})
		for range 2 {
			c := n.dial()
			// All at once: what is behind the last answer is not answered, and does not destroy it.
			c.say(strings.Repeat(get("/"), 5))
			for i := range 3 {
				if resp := c.expect("GET", 200, "hi"); resp.Close != (i == 2) {
					t.Errorf("answer %d: close %v", i+1, resp.Close)
				}
			}
			c.expectEnd()
		}
		if got := len(b.Requests()); got != 6 {
			t.Errorf("%d requests reached the backend, want 6", got)
		}
		// Answers of our own count, too, and an open connection takes the limit from a new form.
		if err := n.Listen(ListenerConfig{Name: "main", Addresses: []string{"127.0.0.1:0"}, HealthPath: "/ready"}); err != nil {
			t.Fatal(err)
		}
		c := n.dial()
		c.say(get("/ready") + get("/ready"))
		c.expect("GET", 200, "ready\n")
		c.expect("GET", 200, "ready\n")
		if err := n.Listen(ListenerConfig{Name: "main", Addresses: []string{"127.0.0.1:0"}, HealthPath: "/ready", Limits: Limits{Requests: 3}}); err != nil {
			t.Fatal(err)
		}
		c.say(get("/ready"))
		if resp := c.expect("GET", 200, "ready\n"); !resp.Close {
			t.Error("the third answer is not the last")
		}
		c.expectEnd()
	})
}

func TestConnectionAge(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		reached, release := make(chan struct{}), make(chan struct{})
		b := lbtest.New(t, func(c *lbtest.Conn) {
			for {
				if _, err := c.ReadRequest(); err != nil {
					return
				}
				reached <- struct{}{}
				<-release
				c.Say(ok2)
			}
		})
		const age = 100 * time.Millisecond
		n := start(t, setup{kind: kind, backends: addrs(b), listener: ListenerConfig{Limits: Limits{ConnectionAge: age}}})
		began := time.Now()
		c := n.dial()
		c.expectEnd() // idle, and then too old
		if took := time.Since(began); took < age {
			t.Errorf("closed after %v", took)
		}
		c = n.dial()
		c.say(get("/"))
		<-reached
		time.Sleep(2 * age) // the request that it is at may end
		close(release)
		if resp := c.expect("GET", 200, "hi"); !resp.Close {
			t.Error("an old connection is kept")
		}
		c.expectEnd()
	})
}

func TestHealthPath(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		b := lbtest.New(t, lbtest.OK("backend"))
		n := start(t, setup{kind: kind, backends: addrs(b), listener: ListenerConfig{HealthPath: "/ready"}})
		c := n.dial()
		c.say(get("/ready"))
		c.expect("GET", 200, "ready\n")
		if r := n.want(200, OK); r.Route != "" {
			t.Errorf("route %q", r.Route)
		}
		c.say("HEAD /x/../ready?from=lb HTTP/1.1\r\nHost: other\r\n\r\n")
		c.expect("HEAD", 200, "")
		c.say(get("/ready/") + get("/ready2"))
		c.expect("GET", 200, "backend")
		c.expect("GET", 200, "backend")
		for range 3 {
			n.want(200, OK)
		}
		// A request that is on its way as the drain begins hears of it.
		late := n.dial()
		late.say("GET /ready HTTP/1.1\r\n")
		eventually(t, "both are connected", func() bool { return n.Stats().Connections == 2 && busy(n) == 1 })
		done := n.drain()
		late.say("Host: a\r\n\r\n")
		if resp := late.expect("GET", 503, "draining\n"); !resp.Close {
			t.Error("a leaving listener keeps a connection")
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// busy counts the connections that are not parked.
func busy(n *node) (count int) {
	for _, some := range askLoops(n.Server, func(t *loop.Task) (infos []ConnectionInfo) {
		n.shards[t.Loop()].clients.visit(t, func(cc *clientConn) bool {
			if cc.next == nil {
				infos = append(infos, cc.info())
			}
			return true
		})
		return infos
	}) {
		count += len(some)
	}
	return count
}

// limited is a setup whose one route takes bodies of 10 bytes.
func limited(kind string, backends ...*lbtest.Backend) setup {
	return setup{kind: kind, backends: addrs(backends...), routes: []RouteConfig{
		{Name: "all", Listeners: []string{"main"}, Forward: &Forward{Pools: []WeightedPool{{Pool: "p", Weight: 1}}}, BodyBytesMax: 10},
		{Name: "own", Listeners: []string{"main"}, Matches: []Match{{Prefix: "/own"}}, Respond: &Respond{Status: 200, Body: "own"}, BodyBytesMax: 10},
		{Name: "free", Listeners: []string{"main"}, Matches: []Match{{Prefix: "/free"}}, Forward: &Forward{Pools: []WeightedPool{{Pool: "p", Weight: 1}}}},
	}}
}

func TestBodySize(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		b := lbtest.New(t, lbtest.Echo)
		n := start(t, limited(kind, b))
		c := n.dial()
		c.say(post("/", "0123456789"))
		c.expect("POST", 200, "0123456789")
		c.say(post("/free", "0123456789a"))
		c.expect("POST", 200, "0123456789a")
		n.want(200, OK)
		n.want(200, OK)
		for _, path := range []string{"/", "/own"} {
			// The length says it: no backend hears of it, and as all of the body is at hand the connection lives.
			c.say(post(path, "0123456789a"))
			if resp, _ := c.answer("POST"); resp.StatusCode != 413 || resp.Close {
				t.Errorf("%s: %d, close %v", path, resp.StatusCode, resp.Close)
			}
			if r := n.want(413, Limited); r.Detail != "body_size" || r.Tries != 0 {
				t.Errorf("%s: %q after %d tries", path, r.Detail, r.Tries)
			}
		}
		// The client that asks first is spared the upload.
		c.say("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\nExpect: 100-continue\r\n\r\n")
		c.expectStatus(413)
		c.expectEnd()
		n.want(413, Limited)
		if got := len(b.Requests()); got != 2 {
			t.Errorf("%d requests reached the backend, want 2", got)
		}
	})
}

// TestBodySizeWhileStreaming: without a length the limit is met on the way; the backend sees that the body is cut.
func TestBodySizeWhileStreaming(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		cut := make(chan error, 4)
		head := make(chan struct{}, 4)
		b := lbtest.New(t, func(c *lbtest.Conn) {
			h, err := c.ReadHead()
			if err != nil {
				return
			}
			head <- struct{}{}
			_, err = c.ReadBody(h)
			cut <- err
		})
		n := start(t, limited(kind, b))
		for _, rest := range []string{"6\r\n56789a\r\n", "6\r\n56789a\r\n0\r\n\r\n", "fffff\r\n" + strings.Repeat("x", 100_000)} {
			c := n.dial()
			c.say("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n01234\r\n")
			<-head
			c.say(rest)
			resp, _ := c.answer("POST")
			whole := strings.HasSuffix(rest, "0\r\n\r\n") // then it is clear where the next request begins
			if resp.StatusCode != 413 || resp.Close == whole {
				t.Errorf("%d, close %v", resp.StatusCode, resp.Close)
			}
			if !whole {
				c.expectEnd()
			}
			if r := n.want(413, Limited); r.Detail != "body_size" {
				t.Errorf("detail %q", r.Detail)
			}
			if err := <-cut; err == nil {
				t.Error("the backend took the cut body for whole")
			}
		}
		// All in the first packet: the backend gets nothing of it.
		c := n.dial()
		c.say("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nb\r\n0123456789a\r\n0\r\n\r\n")
		c.expectStatus(413)
		n.want(413, Limited)
		if len(head) > 0 {
			t.Error("a head was sent before the limit was seen")
		}
	})
}

func TestEncodedSlash(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		b := lbtest.New(t, lbtest.OK("hi"))
		n := start(t, setup{kind: kind, backends: addrs(b), routes: []RouteConfig{
			{Name: "strict", Listeners: []string{"main"}, Forward: &Forward{Pools: []WeightedPool{{Pool: "p", Weight: 1}}}},
			{Name: "loose", Listeners: []string{"main"}, Matches: []Match{{Prefix: "/files"}}, Forward: &Forward{Pools: []WeightedPool{{Pool: "p", Weight: 1}}}, EncodedSlash: true},
		}})
		c := n.dial()
		c.say(get("/files/a%2fb%5c"))
		c.expect("GET", 200, "hi")
		n.want(200, OK)
		if line := b.Requests()[0].Line(); line != "GET /files/a%2Fb%5C HTTP/1.1" {
			t.Errorf("backend saw %q", line)
		}
		// What only looks like that prefix is the other route's.
		for _, path := range []string{"/other%2Fb", "/files%2Fa", "/x/%2e%2e/y%2Fz"} {
			c := n.dial()
			c.say(get(path))
			c.expectStatus(400)
			c.expectEnd()
			if r := n.want(400, BadRequest); r.Detail != "encoded_slash" || r.Route != "strict" {
				t.Errorf("%s: %q on route %q", path, r.Detail, r.Route)
			}
		}
	})
}

// TestTrustedProxies: what a peer says about its client counts if the listener trusts it, and is gone if not.
func TestTrustedProxies(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		b := lbtest.New(t, lbtest.OK("hi"))
		n := start(t, setup{kind: kind, backends: addrs(b)})
		id := "edge-7f3a/2"
		ask := "GET / HTTP/1.1\r\nHost: a.test\r\nX-Forwarded-For: 192.0.2.1\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: shop.test\r\n" +
			"X-Forwarded-Port: 443\r\nForwarded: for=192.0.2.1\r\nX-Request-Id: " + id + "\r\n\r\n"
		port := n.addr()[strings.LastIndexByte(n.addr(), ':')+1:]
		c := n.dial()
		for _, tc := range []struct {
			name    string
			trusted []string
			forward bool
			want    map[string]string
		}{
			{"nobody", nil, false, map[string]string{"For": "127.0.0.1", "Proto": "http", "Host": "a.test", "Port": port}},
			{"others", []string{"10.0.0.0/8", "::1/128"}, true, map[string]string{
				"For": "127.0.0.1", "Proto": "http", "Host": "a.test", "Port": port, "Forwarded": `for=127.0.0.1;host="a.test";proto=http`,
			}},
			{"us", []string{"10.0.0.0/8", "127.0.0.0/8"}, true, map[string]string{
				"For": "192.0.2.1, 127.0.0.1", "Proto": "https, http", "Host": "shop.test, a.test", "Port": "443, " + port,
				"Forwarded": `for=192.0.2.1, for=127.0.0.1;host="a.test";proto=http`,
			}},
			{"us, not forwarded", []string{"127.0.0.1/32"}, false, map[string]string{
				"For": "192.0.2.1, 127.0.0.1", "Proto": "https, http", "Host": "shop.test, a.test", "Port": "443, " + port, "Forwarded": "for=192.0.2.1",
			}},
		} {
			l := ListenerConfig{Name: "main", Addresses: []string{"127.0.0.1:0"}, Forwarded: tc.forward}
			for _, p := range tc.trusted {
				l.Trusted = append(l.Trusted, netip.MustParsePrefix(p))
			}
			if err := n.Listen(l); err != nil {
				t.Fatal(err)
			}
			c.say(ask) // on the same connection: it follows the listener's form
			resp := c.expect("GET", 200, "hi")
			all := b.Requests()
			last := all[len(all)-1]
			for _, name := range []string{"For", "Proto", "Host", "Port", "Forwarded"} {
				field := name
				if name != "Forwarded" {
					field = "X-Forwarded-" + name
				}
				if got := strings.Join(last.Field(field), " | "); got != tc.want[name] {
					t.Errorf("%s: %s: %q, want %q", tc.name, field, got, tc.want[name])
				}
			}
			kept := tc.name[:2] == "us"
			r := n.want(200, OK)
			if got := last.Field("X-Request-Id"); len(got) != 1 || (got[0] == id) != kept || got[0] != string(r.RequestID) {
				t.Errorf("%s: request id %q, record %q (answer %v)", tc.name, got, r.RequestID, resp.Header)
			}
		}
		// Even a trusted peer's id must be one that a log can hold.
		for _, bad := range []string{"", `a"b`, "a b", "<script>", strings.Repeat("x", 129), "a\tb", "\xff"} {
			c.say("GET / HTTP/1.1\r\nHost: a\r\nX-Request-Id: " + bad + "\r\n\r\n")
			c.expect("GET", 200, "hi")
			if r := n.want(200, OK); string(r.RequestID) == bad || len(r.RequestID) != 32 {
				t.Errorf("id %q is kept as %q", bad, r.RequestID)
			}
		}
	})
}

// TestRequestTime: a request ends in time whatever it waits for, retries included, and leaves its connection usable where an
// answer can still be given.
func TestRequestTime(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		drip := func(c *lbtest.Conn) {
			c.ReadHead()
			c.Say("HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
			for range 1000 {
				if _, err := c.Write([]byte("x")); err != nil {
					return
				}
				time.Sleep(short / 10)
			}
		}
		flood := func(c *lbtest.Conn) {
			c.ReadHead()
			c.Say("HTTP/1.1 200 OK\r\n\r\n")
			for block := strings.Repeat("x", 1<<16); ; {
				if _, err := c.Write([]byte(block)); err != nil {
					return
				}
			}
		}
		for _, tc := range []struct {
			name   string
			script lbtest.Script
			status int
		}{{"silent", silent, 504}, {"drip", drip, 200}, {"flood", flood, 200}} {
			t.Run(tc.name, func(t *testing.T) {
				b := lbtest.New(t, tc.script)
				retry := Retry{Attempts: 5, On: OnFirstByteTimeout | OnReset}
				n := start(t, retrying(kind, retry, RouteTimeouts{Request: 2 * short, FirstByte: Off, BodyIdle: Off}, b))
				c := n.dial()
				c.say(get("/"))
				resp, _, err := c.tryAnswer("GET")
				if tc.status == 504 && (err != nil || resp.StatusCode != 504 || resp.Close) || tc.status == 200 && err == nil && resp.ContentLength > 0 {
					t.Errorf("%v, %v", resp, err)
				}
				r := n.record()
				// In the middle of an answer it depends on the moment who is waited for.
				if r.Status != tc.status || r.Reason != BackendTimeout && (r.Status != 200 || r.Reason != ClientTimeout) ||
					r.Detail != "request_time" || r.Tries != 1 || r.Total < 2*short {
					t.Errorf("record %+v", r)
				}
			})
		}
		// Who uploads slowly but steadily is late, too: its own fault.
		n := start(t, retrying(kind, Retry{}, RouteTimeouts{Request: 4 * short}, lbtest.New(t, silent)))
		c := n.dial()
		c.say("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n")
		go func() {
			for range 20 {
				fmt.Fprint(c.Conn, "x")
				time.Sleep(short / 2)
			}
		}()
		c.expectStatus(408)
		if r := n.want(408, ClientTimeout); r.Detail != "request_time" {
			t.Errorf("detail %q", r.Detail)
		}
	})
}

// TestTimeoutsOff: with the route's timeouts off a silent backend may be silent.
func TestTimeoutsOff(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		b := lbtest.New(t, func(c *lbtest.Conn) {
			c.ReadRequest()
			time.Sleep(3 * short)
			c.Say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nh")
			time.Sleep(3 * short)
			c.Say("i")
		})
		n := start(t, setup{kind: kind, backends: addrs(b), forward: RouteTimeouts{FirstByte: Off, BodyIdle: Off, Tunnel: Off, Request: Off}})
		c := n.dial()
		c.say(get("/"))
		c.expect("GET", 200, "hi")
		if got := after(time.Now(), Off); !got.IsZero() {
			t.Errorf("off ends at %v", got)
		}
	})
}

// --- A46: the body's time counts idle time.

// A steady transfer sends its pieces over more than twice the idle time. The tests run one after the other: the loops of
// several would hold up each other's goroutines.
const (
	steadyPieces = 18
	steadyIdle   = 8 * short
)

func steady(send func(piece string)) {
	for range steadyPieces {
		time.Sleep(short)
		send("x")
	}
}

func TestA46SteadyUpload(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		n := start(t, setup{kind: kind, backends: addrs(lbtest.New(t, lbtest.Echo)), routes: []RouteConfig{
			{Name: "all", Listeners: []string{"main"}, Forward: &Forward{Pools: []WeightedPool{{Pool: "p", Weight: 1}}, Timeouts: RouteTimeouts{BodyIdle: steadyIdle}}},
			{Name: "hasty", Listeners: []string{"main"}, Matches: []Match{{Prefix: "/hasty"}}, Forward: &Forward{Pools: []WeightedPool{{Pool: "p", Weight: 1}}, Timeouts: RouteTimeouts{BodyIdle: short}}},
		}})
		c := n.dial()
		c.say("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 18\r\n\r\n")
		steady(c.say)
		c.expect("POST", 200, strings.Repeat("x", steadyPieces))
		if r := n.want(200, OK); r.Total < steadyIdle {
			t.Errorf("took %v: nothing was tested", r.Total)
		}
		// A stalled one ends, on each route by that route's time: the one that came later may end first.
		for _, path := range []string{"/", "/hasty"} {
			n.dial().say("POST " + path + " HTTP/1.1\r\nHost: a\r\nContent-Length: 30\r\n\r\nxx")
		}
		for _, path := range []string{"/hasty", "/"} {
			if r := n.want(408, ClientTimeout); r.Detail != "body" || string(r.Path) != path {
				t.Errorf("%s ended with %q, want %s", r.Path, r.Detail, path)
			}
		}
	})
}

func TestA46SiblingSteadyDownload(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		b := lbtest.New(t, func(c *lbtest.Conn) {
			c.ReadRequest()
			c.Say("HTTP/1.1 200 OK\r\nContent-Length: 18\r\n\r\n")
			steady(c.Say)
		})
		n := start(t, setup{kind: kind, backends: addrs(b), forward: RouteTimeouts{BodyIdle: steadyIdle, FirstByte: steadyIdle}})
		c := n.dial()
		c.say(get("/"))
		c.expect("GET", 200, strings.Repeat("x", steadyPieces))
		n.want(200, OK)
	})
}

// TestA46SiblingChunkedUpload: chunks, over TLS, with the answer's time beginning only after the last of them.
func TestA46SiblingChunkedUpload(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		n := start(t, setup{
			kind: kind, backends: addrs(lbtest.New(t, lbtest.Echo)), tls: testTerminator(t),
			forward: RouteTimeouts{BodyIdle: steadyIdle, FirstByte: steadyIdle, Try: steadyIdle},
		})
		c := n.dialTLS(0)
		c.say("POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n")
		steady(func(s string) { c.say("1\r\n" + s + "\r\n") })
		c.say("0\r\n\r\n")
		c.expect("POST", 200, strings.Repeat("x", steadyPieces))
		n.want(200, OK)
	})
}

// --- A47: movement in one direction keeps the other alive.

// TestA47AnswerWhileUploading: an answer that has begun and then waits for the upload is not idle.
func TestA47AnswerWhileUploading(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		b := lbtest.New(t, func(c *lbtest.Conn) {
			h, _ := c.ReadHead()
			c.Say("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nyo")
			c.ReadBody(h)
			c.Say("hi")
		})
		n := start(t, setup{kind: kind, backends: addrs(b), forward: RouteTimeouts{BodyIdle: steadyIdle}})
		c := n.dial()
		c.say("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 18\r\n\r\n")
		steady(c.say)
		c.expect("POST", 200, "yohi")
		n.want(200, OK)
	})
}

// TestA47SiblingTunnel: one side of a tunnel talks, the other only listens.
func TestA47SiblingTunnel(t *testing.T) {
	for _, down := range []bool{true, false} {
		onEngines(t, func(t *testing.T, kind string) {
			got := make(chan string, 1)
			b := lbtest.New(t, func(c *lbtest.Conn) {
				c.ReadHead()
				c.Say("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
				if down {
					steady(c.Say)
					return
				}
				all := make([]byte, steadyPieces)
				c.SetReadDeadline(time.Now().Add(patience))
				for i := range all {
					c.Read(all[i : i+1])
				}
				got <- string(all)
			})
			n := start(t, setup{kind: kind, backends: addrs(b), forward: RouteTimeouts{Tunnel: steadyIdle, Try: 2 * short}})
			c := n.dial()
			c.say("GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
			c.expect("GET", 101, "")
			want := strings.Repeat("x", steadyPieces)
			if down {
				c.expectText(want)
				return
			}
			steady(c.say)
			if all := <-got; all != want {
				t.Errorf("backend got %q", all)
			}
		})
	}
}

// TestA47SiblingUploadBeforeAnswer: a backend that says nothing while it takes the body is not slow to answer.
func TestA47SiblingUploadBeforeAnswer(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		n := start(t, setup{kind: kind, backends: addrs(lbtest.New(t, lbtest.Echo)), forward: RouteTimeouts{FirstByte: steadyIdle, BodyIdle: steadyIdle}})
		c := n.dial()
		c.say("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 18\r\n\r\n")
		steady(c.say)
		c.expect("PUT", 200, strings.Repeat("x", steadyPieces))
		if r := n.want(200, OK); r.Tries != 1 || r.Total < steadyIdle {
			t.Errorf("tries %d, took %v", r.Tries, r.Total)
		}
	})
}

// TestUnderscores: a name that a backend may take for one that we write does not pass, unless the listener says so; for what
// frames a message or vouches for a client it cannot say so.
func TestUnderscores(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		for _, allowed := range []bool{false, true} {
			b := lbtest.New(t, lbtest.OK("hi"))
			n := start(t, setup{kind: kind, backends: addrs(b), listener: ListenerConfig{Underscores: allowed}})
			c := n.dial()
			c.say("GET / HTTP/1.1\r\nHost: a\r\nX_Forwarded_For: 192.0.2.1\r\nX_Request_Id: mine\r\nClient_Cert: :AAAA:\r\nContent_Length: 5\r\nMy_Own: 1\r\n\r\n")
			c.expect("GET", 200, "hi")
			r := b.Requests()[0]
			for name, want := range map[string]bool{
				"X_Forwarded_For": allowed, "X_Request_Id": allowed, "Client_Cert": false, "Content_Length": false, "My_Own": true,
			} {
				if got := len(r.Field(name)) == 1; got != want {
					t.Errorf("allowed %v: %s reached the backend: %v", allowed, name, got)
				}
			}
			if got := r.Field("X-Forwarded-For"); len(got) != 1 || got[0] != "127.0.0.1" {
				t.Errorf("X-Forwarded-For %q", got)
			}
		}
	})
}

// TestLargeHeadsLeaveNothing: what has grown with a large head is not kept for requests to come.
func TestLargeHeadsLeaveNothing(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		n := start(t, setup{kind: kind, routes: onMain(RouteConfig{Redirect: &Redirect{Scheme: "https"}})})
		c := n.dial()
		c.say(get("/%7e" + strings.Repeat("a", 40_000)))
		c.expectStatus(302)
		c.say(get("/"))
		c.expectStatus(302)
		c.Close()
		kept := make(chan int)
		eventually(t, "the exchange has ended", func() bool { return n.Stats().Connections == 0 })
		n.engine.GoOn(0, func(*loop.Task) {
			most := 0
			for _, x := range n.shards[0].spare {
				most = max(most, cap(x.line), cap(x.path))
			}
			kept <- most
		})
		if most := <-kept; most > loop.BufferBytes {
			t.Errorf("%d bytes are kept", most)
		}
	})
}
