package lb

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"lbd/lb/http1"
	"lbd/lb/lbtest"
)

// toPool is a Forward to one pool.
func toPool(name string) *Forward { return &Forward{Pools: []WeightedPool{{Pool: name, Weight: 1}}} }

// route serves one route on "main" for everything.
func onMain(r RouteConfig) []RouteConfig {
	r.Name, r.Listeners = "all", []string{"main"}
	return []RouteConfig{r}
}

// together serves several on "main".
func together(routes ...RouteConfig) []RouteConfig {
	for i := range routes {
		routes[i].Listeners = []string{"main"}
	}
	return routes
}

func TestRedirect(t *testing.T) {
	for _, tc := range []struct {
		redirect Redirect
		ask      string // method, target, host; an empty host is HTTP/1.0
		tls      bool
		want     string // status and Location, or status and detail
	}{
		{Redirect{Scheme: "https"}, "GET /a?b=c a.test", false, "302 https://a.test/a?b=c"},
		{Redirect{Scheme: "https"}, "GET /a a.test:8080", false, "302 https://a.test/a"},
		{Redirect{Scheme: "https", Port: 8443}, "GET / A.test", false, "302 https://a.test:8443/"},
		{Redirect{Scheme: "https", Port: 443}, "GET / a.test", false, "302 https://a.test/"},
		{Redirect{Scheme: "http", Port: 443}, "GET / a.test", true, "302 http://a.test:443/"},
		{Redirect{Host: "b.test", Code: 308}, "POST /x?y a.test:8080", false, "308 http://b.test:8080/x?y"},
		{Redirect{Host: "b.test"}, "GET / a.test:80", false, "302 http://b.test/"},
		{Redirect{Host: "b.test"}, "GET / a.test:0443", true, "302 https://b.test/"},
		{Redirect{Host: "2001:db8::1"}, "GET / a.test", false, "302 http://[2001:db8::1]/"},
		{Redirect{Host: "[2001:db8::1]", Port: 81}, "GET / a.test", false, "302 http://[2001:db8::1]:81/"},
		{Redirect{Scheme: "https"}, "GET / [2001:DB8::1]:8080", false, "302 https://[2001:db8::1]/"},
		{Redirect{Path: "/new", Code: 301}, "GET /old?q=1 a.test", false, "301 http://a.test/new?q=1"},
		{Redirect{Path: "/new"}, "GET /old? a.test", false, "302 http://a.test/new?"},
		{Redirect{Path: "/new"}, "GET /a/../old?q -", false, "302 /new?q"},
		{Redirect{Host: "b.test"}, "GET /x -", false, "302 http://b.test/x"},
		{Redirect{Scheme: "https"}, "GET /x -", false, "400 no_host"},
		{Redirect{Port: 81}, "GET /x -", false, "400 no_host"},
		// What would lead to itself is told, not done.
		{Redirect{Scheme: "https"}, "GET /a a.test", true, "508 redirect_loop"},
		{Redirect{Scheme: "https"}, "GET /a a.test:443", true, "508 redirect_loop"},
		{Redirect{Scheme: "https"}, "GET /a a.test:8443", true, "302 https://a.test/a"},
		{Redirect{Host: "a.test"}, "GET /a A.test.", false, "508 redirect_loop"},
		{Redirect{Path: "/a"}, "GET /a?b a.test", false, "508 redirect_loop"},
		{Redirect{Port: 80}, "GET /a a.test", false, "508 redirect_loop"},
		{Redirect{Path: "/a"}, "GET /a -", false, "508 redirect_loop"},
	} {
		table, err := NewTable(onMain(RouteConfig{Redirect: &tc.redirect}), nil)
		if err != nil {
			t.Fatal(err)
		}
		var method, target, host string
		fmt.Sscan(tc.ask, &method, &target, &host)
		e := table.Explain("main", &Probe{Method: method, Target: target, Host: strings.TrimPrefix(host, "-"), TLS: tc.tls})
		if got := strings.TrimSpace(fmt.Sprint(e.Status, " ", e.Location, e.Detail)); got != tc.want {
			t.Errorf("%+v, %s: got %s, want %s", tc.redirect, tc.ask, got, tc.want)
		}
	}
}

// TestRedirectOnTheWire: the same by a connection, with what an own answer has, and the connection goes on.
func TestRedirectOnTheWire(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		n := start(t, setup{kind: kind, routes: onMain(RouteConfig{Redirect: &Redirect{Scheme: "https", Code: 301}}),
			listener: ListenerConfig{Trusted: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}})
		c := n.dial()
		for range 2 {
			c.say(post("/a?b", "body"))
			if resp := c.expect("POST", 301, ""); resp.Header.Get("Location") != "https://a.test/a?b" || resp.Close {
				t.Errorf("%v", resp.Header)
			}
			n.want(301, OK)
		}
		// Behind a proxy of ours that ends TLS it would be a loop.
		c.say("GET /a HTTP/1.1\r\nHost: a.test\r\nX-Forwarded-Proto: https\r\n\r\n")
		c.expectStatus(508)
		if r := n.want(508, NoRoute); r.Detail != "redirect_loop" {
			t.Errorf("detail %s", r.Detail)
		}
	})
}

func TestRewrite(t *testing.T) {
	for _, tc := range []struct{ match, prefix, target, want string }{
		{"/shop", "/", "/shop", "/"},
		{"/shop", "/", "/shop/", "/"},
		{"/shop", "/", "/shop/x?q=1", "/x?q=1"},
		{"/shop/", "/", "/shop/x/", "/x/"},
		{"/shop", "/", "/shop?q", "/?q"},
		{"/shop", "/new", "/shop", "/new"},
		{"/shop", "/new", "/shop/", "/new/"},
		{"/shop", "/new", "/shop/x", "/new/x"},
		{"/shop", "/new/", "/shop", "/new/"},
		{"/shop", "/new/", "/shop/x", "/new/x"},
		{"/", "/new", "/", "/new/"},
		{"/", "/new", "/x", "/new/x"},
		{"/", "/new/", "/x", "/new/x"},
		{"/", "/", "/x", "/x"},
		{"/a/b", "/c", "/a/%62/x%20y", "/c/x%20y"},
		{"/a", "/c/../e%2d", "/a/x", "/e-/x"},
		{"/a", "/c", "/a//x", "/c//x"},
	} {
		forward := toPool("p")
		forward.Rewrite.Prefix = tc.prefix
		table, err := NewTable(onMain(RouteConfig{Forward: forward, Matches: []Match{{Prefix: tc.match}}}), []*Pool{NewOfflinePool("p")})
		if err != nil {
			t.Fatal(err)
		}
		if e := table.Explain("main", &Probe{Host: "a.test", Target: tc.target}); e.BackendPath != tc.want {
			t.Errorf("%+v: got %s", tc, e.BackendPath)
		}
	}
}

// TestRewriteOnTheWire: the backend gets the route's host and path, and still hears what the client asked for.
func TestRewriteOnTheWire(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		b := lbtest.New(t, lbtest.OK("hi"))
		forward := toPool("p")
		forward.Rewrite = Rewrite{Host: "inner.test:81", Prefix: "/v2"}
		n := start(t, setup{kind: kind, backends: addrs(b), routes: onMain(RouteConfig{Forward: forward, Matches: []Match{{Prefix: "/api"}}})})
		c := n.dial()
		c.say("GET /api/x?q=%2F HTTP/1.1\r\nHost: Shop.test:8080\r\n\r\n")
		c.expect("GET", 200, "hi")
		c.say("GET /api HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
		c.expect("GET", 200, "hi")
		first, second := b.Requests()[0], b.Requests()[1]
		if first.Line() != "GET /v2/x?q=%2F HTTP/1.1" || second.Line() != "GET /v2 HTTP/1.1" {
			t.Errorf("%q, %q", first.Line(), second.Line())
		}
		if h, x := first.Field("Host"), first.Field("X-Forwarded-Host"); len(h) != 1 || h[0] != "inner.test:81" || len(x) != 1 || x[0] != "Shop.test:8080" {
			t.Errorf("Host %q, X-Forwarded-Host %q", h, x)
		}
		if h, x := second.Field("Host"), second.Field("X-Forwarded-Host"); len(h) != 1 || h[0] != "inner.test:81" || len(x) != 0 {
			t.Errorf("HTTP/1.0: Host %q, X-Forwarded-Host %q", h, x)
		}
		if r := n.want(200, OK); string(r.Path) != "/api/x" || string(r.Host) != "shop.test" {
			t.Errorf("the log has %s%s", r.Host, r.Path)
		}
	})
}

var headerChanges = RouteConfig{
	RequestHeaders: HeaderChanges{
		Remove: []string{"x-secret"}, Set: []Header{{"X-User", "lbd"}, {"X-Forwarded-For", "fixed"}}, Add: []Header{{"X-Tag", "two"}},
	},
	ResponseHeaders: HeaderChanges{
		Remove: []string{"server", "x-request-id"}, Set: []Header{{"Cache-Control", "private"}}, Add: []Header{{"X-Frame", "no"}},
	},
}

func TestHeaderChanges(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		b := lbtest.New(t, lbtest.Answer("HTTP/1.1 200 OK\r\nServer: x\r\nX_Frame: backend\r\nCACHE-CONTROL: public\r\nContent-Length: 0\r\n\r\n"))
		forwarding, answering := headerChanges, headerChanges
		forwarding.Forward = toPool("p")
		answering.Respond = &Respond{Status: 200, Headers: []Header{{"Server", "own"}, {"Cache-Control", "no-store"}, {"X-Kept", "1"}}}
		answering.Matches = []Match{{Prefix: "/own"}}
		routes := append(onMain(forwarding), onMain(answering)...)
		routes[1].Name = "own"
		for _, underscores := range []bool{false, true} {
			n := start(t, setup{kind: kind, backends: addrs(b), routes: routes, listener: ListenerConfig{Underscores: underscores}})
			c := n.dial()
			c.say("GET / HTTP/1.1\r\nHost: a.test\r\nX-Secret: 1\r\nx_secret: 2\r\nx-user: me\r\nX_User: me\r\nX-TAG: one\r\nX-Secret-2: 3\r\n\r\n")
			resp := c.expect("GET", 200, "")
			head := b.Requests()[len(b.Requests())-1]
			twins := map[bool]int{false: 0, true: 1}[underscores]
			for name, want := range map[string]int{"X-Secret": 0, "X_Secret": twins, "X_User": twins, "X-Secret-2": 1, "X-User": 1, "X-Tag": 2, "X-Forwarded-For": 1} {
				if got := head.Field(name); len(got) != want {
					t.Errorf("underscores %v: %s is %q, want %d", underscores, name, got, want)
				}
			}
			if head.Field("X-User")[0] != "lbd" || strings.Join(head.Field("X-Tag"), " ") != "one two" || head.Field("X-Forwarded-For")[0] != "fixed" {
				t.Errorf("%s", head.Head)
			}
			checkAnswerHeaders(t, "forwarded", resp.Header)
			c.say(get("/own"))
			own := c.expect("GET", 200, "").Header
			checkAnswerHeaders(t, "own", own)
			if own.Get("X-Kept") != "1" || own.Get("Date") == "" {
				t.Errorf("own answer: %v", own)
			}
		}
	})
}

// TestHeaderChangesOnErrors: an error of ours on the route gets them, too, and its framing is right.
func TestHeaderChangesOnErrors(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		cfg := headerChanges
		cfg.Forward = toPool("p")
		n := start(t, setup{kind: kind, backends: []netip.AddrPort{lbtest.Closed(t)}, routes: onMain(cfg)})
		c := n.dial()
		for range 2 {
			c.say(get("/"))
			resp, body := c.answer("GET")
			if resp.StatusCode != 502 || resp.ContentLength != int64(len(body)) {
				t.Errorf("%d, %d bytes of %d", resp.StatusCode, len(body), resp.ContentLength)
			}
			checkAnswerHeaders(t, "error", resp.Header)
		}
	})
}

func checkAnswerHeaders(t *testing.T, what string, h map[string][]string) {
	t.Helper()
	if len(h["Server"]) != 0 || len(h["X-Request-Id"]) != 0 || fmt.Sprint(h["Cache-Control"]) != "[private]" || fmt.Sprint(h["X-Frame"]) != "[no]" {
		t.Errorf("%s: %v", what, h)
	}
}

func TestErrorPages(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		routes := onMain(RouteConfig{
			Forward: toPool("p"),
			ErrorPages: []ErrorPage{
				{Status: []string{"404", "502"}, ContentType: "text/plain", Body: "{status}: ask for {request_id}{request_id}, {not_this}"},
				{Status: []string{"5xx"}, Body: "never for 502"},
				{Status: []string{"4XX"}, Body: ""},
			},
			BodyBytesMax: 10,
		})
		n := start(t, setup{kind: kind, backends: []netip.AddrPort{lbtest.Closed(t)}, routes: routes})
		c := n.dial()
		c.say(get("/"))
		resp, body := c.answer("GET")
		id := resp.Header.Get("X-Request-Id")
		if want := "502: ask for " + id + id + ", {not_this}"; body != want || resp.Header.Get("Content-Type") != "text/plain" || len(id) != 32 {
			t.Errorf("%q, want %q; %v", body, want, resp.Header)
		}
		c.say("HEAD / HTTP/1.1\r\nHost: a.test\r\n\r\n")
		if resp, body := c.answer("HEAD"); body != "" || resp.ContentLength != int64(len("502: ask for ")+64+len(", {not_this}")) {
			t.Errorf("HEAD: %q, %d", body, resp.ContentLength)
		}
		c.say(post("/", "more than ten"))
		if resp := c.expect("POST", 413, ""); resp.Header.Get("Content-Type") != "text/html; charset=utf-8" {
			t.Errorf("%v", resp.Header)
		}
	})
}

func TestMaintenance(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		b := lbtest.New(t, lbtest.OK("hi"))
		cfg := RouteConfig{
			Forward:     toPool("p"),
			Maintenance: &Maintenance{RetryAfter: 90500 * time.Millisecond, Bypass: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("2001:db8::/32")}},
			ErrorPages:  []ErrorPage{{Status: []string{"503"}, Body: "back soon"}},
		}
		n := start(t, setup{kind: kind, backends: addrs(b), routes: onMain(cfg),
			listener: ListenerConfig{Trusted: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32"), netip.MustParsePrefix("192.0.2.0/24")}}})
		c := n.dial()
		ask := func(field string) { c.say("GET / HTTP/1.1\r\nHost: a.test\r\n" + field + "\r\n") }
		for _, from := range []string{"", "X-Forwarded-For: 10.2.0.1\r\n", "X-Forwarded-For: 10.1.0.1, 10.2.0.1\r\n", "X-Forwarded-For: 10.1.0.1, junk\r\n"} {
			ask(from)
			if resp := c.expect("GET", 503, "back soon"); resp.Header.Get("Retry-After") != "91" || resp.Close {
				t.Errorf("%v", resp.Header)
			}
			if r := n.want(503, Denied); r.Detail != "maintenance" {
				t.Errorf("detail %s", r.Detail)
			}
		}
		for _, from := range []string{"10.1.255.1", "10.9.9.9, 10.1.0.1, 192.0.2.7", "10.1.0.1:4711", "[2001:db8::1]:80", "[2001:db8::1]", "::ffff:10.1.0.1"} {
			ask("X-Forwarded-For: " + from + "\r\n")
			c.expect("GET", 200, "hi")
			n.want(200, OK)
		}
		ask("X-Forwarded-For: 10.1.0.1\r\nX-Forwarded-For: 192.0.2.1\r\n")
		c.expect("GET", 200, "hi")
	})
}

func TestAddressRules(t *testing.T) {
	prefix := netip.MustParsePrefix
	office := &AddressRule{Policy: "office", Allow: []netip.Prefix{prefix("10.0.0.0/8")}, Deny: []netip.Prefix{prefix("10.0.0.66/32")}, Closed: true}
	block := &AddressRule{Policy: "block", Deny: []netip.Prefix{prefix("10.7.0.0/16")}}
	table, err := NewTable(onMain(RouteConfig{Respond: &Respond{Status: 200}, Addresses: []*AddressRule{office, block}}), nil)
	if err != nil {
		t.Fatal(err)
	}
	for address, want := range map[string]string{
		"10.1.1.1": "respond", "10.0.0.66": "denied", "10.7.1.1": "denied", "11.0.0.1": "denied", "::ffff:10.1.1.1": "respond", "::1": "denied",
	} {
		if e := table.Explain("main", &Probe{Host: "a", ClientAddress: netip.MustParseAddr(address)}); e.Action != want {
			t.Errorf("%s: %s", address, e.Action)
		}
	}
	onEngines(t, func(t *testing.T, kind string) {
		n := start(t, setup{kind: kind, routes: onMain(RouteConfig{Respond: &Respond{Status: 200}, Addresses: []*AddressRule{office}})})
		c := n.dial()
		c.say("GET / HTTP/1.1\r\nHost: a.test\r\nX-Forwarded-For: 10.1.1.1\r\n\r\n") // who says that is nobody of ours
		c.expectStatus(403)
		if r := n.want(403, Denied); r.Detail != "address" {
			t.Errorf("detail %s", r.Detail)
		}
	})
}

// TestConcurrency: a limit is shared by its routes, refuses what is beyond it at once, and gives every place back: after an answer,
// after a client that leaves, and after a panic.
func TestConcurrency(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		release := make(chan struct{})
		b := lbtest.New(t, func(c *lbtest.Conn) {
			for {
				r, err := c.ReadRequest()
				if err != nil {
					return
				}
				if strings.Contains(r.Line(), "/wait") {
					<-release
				}
				c.Say(ok2)
			}
		})
		limit := NewConcurrency("few", 2)
		routes := onMain(RouteConfig{Forward: toPool("p"), Concurrency: []*Concurrency{limit, NewConcurrency("many", 100)}})
		routes = append(routes, RouteConfig{Name: "own", Listeners: []string{"main"}, Matches: []Match{{Prefix: "/own"}}, Respond: &Respond{Status: 200}, Concurrency: []*Concurrency{limit}})
		n := start(t, setup{kind: kind, backends: addrs(b), routes: routes, log: func(r *Record) {
			if string(r.Path) == "/panic" {
				panic("on purpose")
			}
		}})
		one, two, three := n.dial(), n.dial(), n.dial()
		one.say(get("/wait"))
		two.say(get("/wait"))
		eventually(t, "two in flight", func() bool { return limit.inFlight.Load() == 2 })
		for _, path := range []string{"/", "/own"} {
			three.say(get(path))
			three.expectStatus(503)
			if r := n.want(503, Limited); r.Detail != "concurrency" {
				t.Errorf("detail %s", r.Detail)
			}
		}
		limit.SetMax(3)
		three.say(get("/own"))
		three.expect("GET", 200, "")
		close(release)
		one.expect("GET", 200, "hi")
		two.expect("GET", 200, "hi")
		three.say(get("/panic"))
		three.expect("GET", 200, "hi")
		three.expectEnd()
		eventually(t, "all places back", func() bool { return limit.inFlight.Load() == 0 })
	})
}

func TestClientBehind(t *testing.T) {
	ours := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("fd00::/8")}
	for fields, want := range map[string]string{
		"":                                  "192.0.2.1",
		"X-Forwarded-For: 1.2.3.4":          "1.2.3.4",
		"X-Forwarded-For: 5.6.7.8,1.2.3.4":  "1.2.3.4",
		"X-Forwarded-For: 1.2.3.4, fd00::1": "1.2.3.4",
		"X-Forwarded-For: 192.0.2.9":        "192.0.2.9",
		"X-Forwarded-For: unknown, fd00::1": "fd00::1",
		"X-Forwarded-For: 1.2.3.4,":         "192.0.2.1",
		"X-Forwarded-For:":                  "192.0.2.1",
		"X_Forwarded_For: 1.2.3.4":          "192.0.2.1",
		"X-Forwarded-For: [2001:db8::1%e0]": "2001:db8::1",
		"x-forwarded-for: 9.9.9.9\r\nX-Forwarded-For: 1.2.3.4\r\nX-Forwarded-For: 192.0.2.3": "1.2.3.4",
		strings.Repeat("X-Forwarded-For: 192.0.2.3\r\n", 40) + "X: y":                        "192.0.2.3",
	} {
		head := "GET / HTTP/1.1\r\nHost: a\r\n"
		if fields != "" {
			head += fields + "\r\n"
		}
		var req http1.Request
		if _, err := req.Parse([]byte(head+"\r\n"), &http1.DefaultLimits); err != nil {
			t.Fatal(err)
		}
		if got := clientBehind(&req.Fields, netip.MustParseAddr("::ffff:192.0.2.1"), ours); got.String() != want {
			t.Errorf("%q: %s, want %s", fields, got, want)
		}
	}
}

// TestNothingBehindHalfAnAnswer: what a client has sent behind a request whose answer it does not take is not done.
func TestNothingBehindHalfAnAnswer(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		b := lbtest.New(t, lbtest.OK("hi"))
		n := start(t, setup{
			kind: kind, backends: addrs(b), listener: ListenerConfig{Timeouts: Timeouts{WriteStall: 100 * time.Millisecond}},
			routes: together(
				RouteConfig{Name: "large", Matches: []Match{{Exact: "/large"}}, Respond: &Respond{Status: 200, Body: strings.Repeat("x", 16<<20)}},
				RouteConfig{Name: "rest", Forward: toPool("p")},
			),
		})
		c := n.dial()
		c.say(get("/large") + get("/behind"))
		n.want(200, ClientTimeout)
		eventually(t, "the client is given up", func() bool { return n.Stats().Connections == 0 })
		if all := b.Requests(); len(all) != 0 {
			t.Errorf("the backend got %q", all[0].Line())
		}
	})
}

// TestLongParts: where a host's routes test a path, a query or a field at length, that may not be long; elsewhere it may.
func TestLongParts(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		any := regexp.MustCompile("^(?:.*never)$")
		n := start(t, setup{kind: kind, routes: together(
			RouteConfig{Name: "path", Hosts: []string{"path.test"}, Matches: []Match{{Regex: any}}, Respond: &Respond{Status: 200}},
			RouteConfig{Name: "lower", Hosts: []string{"path.test"}, Respond: &Respond{Status: 200}},
			RouteConfig{Name: "higher", Hosts: []string{"path.test"}, Priority: 1, Matches: []Match{{Exact: "/x"}}, Respond: &Respond{Status: 200}},
			RouteConfig{Name: "query", Hosts: []string{"*.query.test"}, Matches: []Match{{Query: []FieldMatch{{Name: "a"}}}}, Respond: &Respond{Status: 200}},
			RouteConfig{Name: "field", Hosts: []string{"field.test"}, Matches: []Match{{Headers: []FieldMatch{{Name: "cookie", Kind: FieldRegex, Regex: any}}}}, Respond: &Respond{Status: 200}},
			RouteConfig{Name: "plain", Hosts: []string{"field.test"}, Matches: []Match{{Headers: []FieldMatch{{Name: "x-a", Kind: FieldExact, Text: "b"}}}}, Respond: &Respond{Status: 200}},
			RouteConfig{Name: "rest", Respond: &Respond{Status: 204}},
		)})
		most, more := strings.Repeat("a", testedBytesMax-1), strings.Repeat("a", testedBytesMax)
		for _, q := range []struct {
			host, target, field string
			status              int
		}{
			{"path.test", "/" + most, "", 200},
			{"path.test", "/" + more, "", 414},
			{"path.test", "/?" + more + "a", "", 200},
			{"x.query.test", "/?a" + most, "", 204},
			{"x.query.test", "/?a" + more, "", 414},
			{"x.query.test", "/" + more, "", 204},
			{"field.test", "/", "Cookie: a" + most, 204},
			{"field.test", "/", "Cookie: a" + more, 431},
			{"field.test", "/", "Cookie: " + most[:5000] + "\r\nCookie: " + most[:5000], 431},
			{"field.test", "/", "X-A: a" + more, 204},
			{"other.test", "/" + more + "?" + more, "Cookie: " + more, 204},
		} {
			c := n.dial()
			c.say("GET " + q.target + " HTTP/1.1\r\nHost: " + q.host + "\r\n" + q.field)
			if q.field != "" {
				c.say("\r\n")
			}
			c.say("\r\n")
			if resp, _ := c.answer("GET"); resp.StatusCode != q.status {
				t.Errorf("%s, target of %d, %.20q: %d, want %d", q.host, len(q.target), q.field, resp.StatusCode, q.status)
			}
		}
	})
}

// TestMaintenancePage: a maintenance with a page of its own shows that, and not the route's error page, which is for what goes wrong.
func TestMaintenancePage(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		closed := func(m Maintenance) *Maintenance {
			m.RetryAfter = 10 * time.Minute
			return &m
		}
		pages := []ErrorPage{{Status: []string{"503"}, Body: "wrong"}}
		n := start(t, setup{kind: kind, backends: []netip.AddrPort{lbtest.Closed(t)}, routes: together(
			RouteConfig{Name: "json", Hosts: []string{"json.test"}, Forward: toPool("p"), ErrorPages: pages,
				Maintenance: closed(Maintenance{Body: `{"back":"at six","id":"{request_id}","code":{status}}`, ContentType: "application/json"})},
			RouteConfig{Name: "html", Hosts: []string{"html.test"}, Redirect: &Redirect{Scheme: "https"}, ErrorPages: pages, Maintenance: closed(Maintenance{Body: "<h1>Back at six</h1>"})},
			RouteConfig{Name: "page", Hosts: []string{"page.test"}, Forward: toPool("p"), ErrorPages: pages, Maintenance: closed(Maintenance{})},
			RouteConfig{Name: "open", Hosts: []string{"open.test"}, Forward: toPool("p"), ErrorPages: []ErrorPage{{Status: []string{"5xx"}, Body: "{status}"}},
				Maintenance: closed(Maintenance{Body: "not for them", Bypass: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})},
		)})
		c := n.dial()
		for _, tc := range []struct{ host, kind, body string }{
			{"json.test", "application/json", `{"back":"at six","id":"ID","code":503}`},
			{"html.test", "text/html; charset=utf-8", "<h1>Back at six</h1>"},
			{"page.test", "text/html; charset=utf-8", "wrong"},
		} {
			for _, method := range []string{"GET", "HEAD"} {
				c.say(method + " /a HTTP/1.1\r\nHost: " + tc.host + "\r\nAccept: text/html\r\n\r\n")
				resp, body := c.answer(method)
				id := resp.Header.Get("X-Request-Id")
				want := strings.ReplaceAll(tc.body, "ID", id)
				if resp.StatusCode != 503 || resp.Header.Get("Retry-After") != "600" || resp.Header.Get("Content-Type") != tc.kind ||
					resp.Header.Get("Cache-Control") != "no-store" || resp.ContentLength != int64(len(want)) || resp.Close || len(id) != 32 {
					t.Errorf("%s %s: %d %v", method, tc.host, resp.StatusCode, resp.Header)
				}
				if method == "HEAD" {
					want = ""
				}
				if body != want {
					t.Errorf("%s %s: %q, want %q", method, tc.host, body, want)
				}
				if r := n.want(503, Denied); r.Detail != "maintenance" {
					t.Errorf("detail %s", r.Detail)
				}
			}
		}
		c.say("GET / HTTP/1.1\r\nHost: open.test\r\n\r\n")
		c.expect("GET", 502, "502")
	})
}
