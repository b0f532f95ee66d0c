package lb

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"lbd/lb/lbtest"
)

// ofListener are changes as a listener may have them: HSTS on everything, and nobody's server.
var ofListener = HeaderChanges{
	Remove: []string{"server"}, Set: []Header{{"Strict-Transport-Security", "max-age=1"}, {"X-Frame-Options", "DENY"}}, Add: []Header{{"X-Tag", "listener"}},
}

// TestListenerResponseHeaders: every final answer of a listener has its changes, whoever answers and whatever was wrong with the request.
func TestListenerResponseHeaders(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		b := lbtest.New(t, lbtest.Answer("HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\nHTTP/1.1 200 OK\r\nServer: secret\r\nX-Tag: backend\r\nContent-Length: 2\r\n\r\nok"))
		routes := together(
			RouteConfig{Name: "backend", Matches: []Match{{Prefix: "/backend"}}, Forward: toPool("p")},
			RouteConfig{Name: "respond", Matches: []Match{{Prefix: "/respond"}}, Respond: &Respond{Status: 204}},
			RouteConfig{Name: "redirect", Matches: []Match{{Prefix: "/redirect"}}, Redirect: &Redirect{Scheme: "https"}},
			RouteConfig{Name: "closed", Matches: []Match{{Prefix: "/closed"}}, Forward: toPool("p"), Maintenance: &Maintenance{}},
		)
		n := start(t, setup{kind: kind, backends: addrs(b), routes: routes, listener: ListenerConfig{ResponseHeaders: ofListener, HealthPath: "/healthy"}})
		for request, status := range map[string]int{
			get("/backend"): 200, get("/respond"): 204, get("/redirect"): 302, get("/closed"): 503, get("/none"): 404, get("/healthy"): 200,
			"OPTIONS * HTTP/1.1\r\nHost: a.test\r\n\r\n": 204, "NONSENSE\r\n\r\n": 400, "GET / HTTP/1.1\r\n\r\n": 400,
			"HEAD /none HTTP/1.0\r\n\r\n": 404,
		} {
			c := n.dial()
			c.say(request)
			method, _, _ := strings.Cut(request, " ")
			resp, _ := c.answer(method)
			if resp.StatusCode == 103 {
				if resp.Header.Get("X-Frame-Options") != "" {
					t.Errorf("an interim answer: %v", resp.Header)
				}
				resp, _ = c.answer(method)
			}
			h := resp.Header
			if resp.StatusCode != status || h.Get("Strict-Transport-Security") != "max-age=1" || h.Get("X-Frame-Options") != "DENY" || h.Get("Server") != "" {
				t.Errorf("%q: %d %v", request, resp.StatusCode, h)
			}
			want := "[listener]"
			if status == 200 && strings.Contains(request, "/backend") {
				want = "[backend listener]"
			}
			if got := fmt.Sprint(h["X-Tag"]); got != want {
				t.Errorf("%q: X-Tag %s, want %s", request, got, want)
			}
		}
	})
}

// TestListenerResponseHeadersBeforeRoutes: a route's changes come after the listener's and may undo them, on that route alone; a change of
// the listener reaches connections that are open.
func TestListenerResponseHeadersBeforeRoutes(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		b := lbtest.New(t, lbtest.OK("ok"))
		undoes := HeaderChanges{Remove: []string{"x-frame-options"}, Set: []Header{{"strict-transport-security", "max-age=2"}, {"Server", "mine"}}, Add: []Header{{"X-Tag", "route"}}}
		routes := together(
			RouteConfig{Name: "other", Hosts: []string{"other.test"}, Forward: toPool("p"), ResponseHeaders: undoes},
			RouteConfig{Name: "own", Hosts: []string{"own.test"}, Respond: &Respond{Status: 200, Body: "ok"}, ResponseHeaders: undoes},
			RouteConfig{Name: "rest", Forward: toPool("p")},
		)
		n := start(t, setup{kind: kind, backends: addrs(b), routes: routes, listener: ListenerConfig{ResponseHeaders: ofListener}})
		c := n.dial()
		ask := func(host string) string {
			c.say("GET / HTTP/1.1\r\nHost: " + host + "\r\n\r\n")
			h := c.expect("GET", 200, "ok").Header
			return fmt.Sprint(h["Strict-Transport-Security"], h["X-Frame-Options"], h["Server"], h["X-Tag"])
		}
		for range 2 {
			for _, host := range []string{"other.test", "own.test"} {
				if got := ask(host); got != "[max-age=2] [] [mine] [listener route]" {
					t.Errorf("%s: %s", host, got)
				}
			}
			if got := ask("a.test"); got != "[max-age=1] [DENY] [] [listener]" {
				t.Errorf("the rest: %s", got)
			}
		}
		again := ListenerConfig{Name: "main", Addresses: []string{"127.0.0.1:0"}, ResponseHeaders: HeaderChanges{Set: []Header{{"X-Tag", "new"}}}}
		if err := n.Listen(again); err != nil {
			t.Fatal(err)
		}
		for host, want := range map[string]string{"other.test": "[max-age=2] [] [mine] [new route]", "a.test": "[] [] [] [new]"} {
			if got := ask(host); got != want {
				t.Errorf("after the change, %s: %s", host, got)
			}
		}
		again.ResponseHeaders = HeaderChanges{Set: []Header{{"Content-Length", "7"}}}
		if err := n.Listen(again); err == nil || !strings.Contains(err.Error(), "Content-Length") {
			t.Errorf("a field that frames the message: %v", err)
		}
		if got := ask("a.test"); got != "[] [] [] [new]" {
			t.Errorf("after a form that is none: %s", got)
		}
	})
}

// TestExplainListener: what the listener says of a request's head and of all answers.
func TestExplainListener(t *testing.T) {
	route := RouteConfig{Respond: &Respond{Status: 200}, ResponseHeaders: HeaderChanges{Set: []Header{{"strict-transport-security", "max-age=2"}}, Remove: []string{"x-tag"}}}
	e := explained(t, onMain(route), &Probe{Host: "a", ResponseHeaders: ofListener})
	if got := fmt.Sprint(e.ResponseHeaders); got != "[{remove server } {set X-Frame-Options DENY} {remove x-tag } {set strict-transport-security max-age=2}]" {
		t.Errorf("changes: %s", got)
	}
	e = explained(t, nil, &Probe{Host: "a", ResponseHeaders: ofListener})
	if len(e.ResponseHeaders) != 4 || e.Status != 404 {
		t.Errorf("no route: %+v", e)
	}

	fields := func(n int) (all []Header) {
		for range n {
			all = append(all, Header{"X", "y"})
		}
		return all
	}
	for _, tc := range []struct {
		probe Probe
		want  string // status, detail and why; 200: the route takes it
	}{
		{Probe{Headers: fields(127)}, "200"}, // and Host
		{Probe{Headers: fields(128)}, "431 too_many_fields the listener takes heads of at most 128 fields and 65536 bytes"},
		{Probe{Headers: fields(128), Limits: Limits{Fields: 129}}, "200"},
		{Probe{Headers: fields(4), Limits: Limits{Fields: 4}}, "431 too_many_fields the listener takes heads of at most 4 fields and 65536 bytes"},
		{Probe{Headers: []Header{{"X", strings.Repeat("y", 1000)}}, Limits: Limits{HeadBytes: 1000}}, "431 head_too_large the listener takes heads of at most 128 fields and 1000 bytes"},
		{Probe{Target: "/" + strings.Repeat("y", 1000), Limits: Limits{HeadBytes: 1000}}, "414 target_too_long the listener takes heads of at most 128 fields and 1000 bytes"},
		{Probe{Headers: []Header{{"X", strings.Repeat("y", 65<<10)}}, Limits: Limits{HeadBytes: 128 << 10}}, "200"},
	} {
		tc.probe.Host = "a"
		e := explained(t, onMain(RouteConfig{Respond: &Respond{Status: 200}}), &tc.probe)
		if got := strings.TrimSpace(fmt.Sprint(e.Status, " ", e.Detail, " ", e.Why)); got != tc.want {
			t.Errorf("%d fields, %+v: %s, want %s", len(tc.probe.Headers), tc.probe.Limits, got, tc.want)
		}
	}
}

// TestExplainDenied: the answer to a client that is denied says who denies it, and for what.
func TestExplainDenied(t *testing.T) {
	prefix := netip.MustParsePrefix
	rules := []*AddressRule{
		{Policy: "home", Deny: []netip.Prefix{prefix("10.0.0.0/8")}, DenyExcept: []netip.Prefix{prefix("10.1.2.3/32"), prefix("203.0.113.66/32")},
			DenyLists: []AddressList{{"empty", nil}, {"bad", []netip.Prefix{prefix("198.51.100.0/24"), prefix("203.0.113.0/24")}}}},
		{Policy: "office", Closed: true, Allow: []netip.Prefix{prefix("10.0.0.0/8")}, AllowLists: []AddressList{{"branch", []netip.Prefix{prefix("203.0.113.0/24")}}}},
	}
	for address, want := range map[string]string{
		"10.1.2.3":           "respond",
		"10.1.2.4":           "denied address 10.1.2.4 is in 10.0.0.0/8, which policy home denies",
		"::ffff:10.1.2.4":    "denied address 10.1.2.4 is in 10.0.0.0/8, which policy home denies",
		"203.0.113.1":        "denied address 203.0.113.1 is in 203.0.113.0/24 of address list bad, which policy home denies",
		"203.0.113.66":       "respond",
		"192.0.2.1":          "denied address 192.0.2.1 is in no network that policy office allows",
		"2001:db8::a00:1234": "denied address 2001:db8::a00:1234 is in no network that policy office allows",
	} {
		e := explained(t, onMain(RouteConfig{Respond: &Respond{Status: 200}, Addresses: rules}), &Probe{Host: "a", ClientAddress: netip.MustParseAddr(address)})
		if got := strings.TrimSpace(e.Action + " " + e.Why); got != want {
			t.Errorf("%s: %s, want %s", address, got, want)
		}
	}
	// An exception allows nothing by itself.
	only := []*AddressRule{{Policy: "p", Closed: true, Allow: []netip.Prefix{prefix("10.0.0.0/8")}, DenyExcept: []netip.Prefix{prefix("192.0.2.1/32")}}}
	if e := explained(t, onMain(RouteConfig{Respond: &Respond{Status: 200}, Addresses: only}), &Probe{Host: "a", ClientAddress: netip.MustParseAddr("192.0.2.1")}); e.Action != "denied" {
		t.Errorf("an exception allows: %+v", e)
	}
}
