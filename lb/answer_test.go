package lb

import (
	"testing"

	"lbd/lb/lbtest"
)

func TestRespond(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		n := start(t, setup{kind: kind, backends: addrs(lbtest.New(t, lbtest.OK("hi"))), routes: []RouteConfig{
			{Name: "page", Listeners: []string{"main"}, Respond: &Respond{
				Status: 202, Body: "a page", Headers: []Header{{"Content-Type", "text/plain"}, {"X-Own", "yes"}},
			}},
			{Name: "empty", Listeners: []string{"main"}, Matches: []Match{{Exact: "/empty"}}, Respond: &Respond{Status: 204}},
		}})
		c := n.dial()
		c.say(get("/"))
		resp := c.expect("GET", 202, "a page")
		if resp.Header.Get("X-Own") != "yes" || resp.ContentLength != 6 || resp.Header.Get("X-Request-Id") == "" {
			t.Errorf("head %v", resp.Header)
		}
		if r := n.want(202, OK); r.Route != "page" || r.Backend != "" || r.ResponseBytes != 6 {
			t.Errorf("record %+v", r)
		}
		c.say("HEAD / HTTP/1.1\r\nHost: a.test\r\n\r\n")
		if resp := c.expect("HEAD", 202, ""); resp.ContentLength != 6 {
			t.Errorf("length %d", resp.ContentLength)
		}
		c.say(get("/empty"))
		if resp := c.expect("GET", 204, ""); resp.Header.Get("Content-Length") != "" {
			t.Error("a 204 with a length")
		}
		c.say("OPTIONS * HTTP/1.1\r\nHost: a.test\r\n\r\n")
		if resp := c.expect("OPTIONS", 204, ""); resp.Header.Get("Allow") == "" {
			t.Errorf("head %v", resp.Header)
		}
		c.say("GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n")
		if resp := c.expect("GET", 202, "a page"); !resp.Close {
			t.Error("no close")
		}
		c.expectEnd()
	})
}

// TestNoHost, a sibling of A18: an HTTP/1.0 request without a host reaches only routes for any host, and its backend is told one.
func TestNoHost(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		b := lbtest.New(t, lbtest.OK("hi"))
		n := start(t, setup{kind: kind, backends: addrs(b), routes: []RouteConfig{
			{Name: "named", Listeners: []string{"main"}, Hosts: []string{"a.test"}, Respond: &Respond{Status: 202}},
			{Name: "any", Listeners: []string{"main"}, Forward: &Forward{Pools: []WeightedPool{{Pool: "p", Weight: 1}}}},
		}})
		c := n.dial()
		c.say("GET / HTTP/1.0\r\n\r\n")
		c.expect("GET", 200, "hi")
		if host := b.Requests()[0].Field("Host"); len(host) != 1 || host[0] != b.Addr().String() {
			t.Errorf("host %q", host)
		}
	})
}
