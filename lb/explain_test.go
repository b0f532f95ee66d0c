package lb

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"
)

func explained(t *testing.T, routes []RouteConfig, p *Probe) *Explanation {
	t.Helper()
	table, err := NewTable(routes, []*Pool{NewOfflinePool("p"), NewOfflinePool("q")})
	if err != nil {
		t.Fatal(err)
	}
	return table.Explain("main", p)
}

// TestA58Losers: which of the rules took the request, and of every other in question why it did not.
func TestA58Losers(t *testing.T) {
	ok := &Respond{Status: 200}
	main := []string{"main"}
	routes := []RouteConfig{
		{Name: "catch-all", Listeners: main, Respond: ok},
		{Name: "wild", Listeners: main, Hosts: []string{"*.example.com"}, Respond: ok},
		{Name: "shop", Listeners: main, Hosts: []string{"shop.example.com"}, Respond: ok, Matches: []Match{{Prefix: "/cart"}, {Prefix: "/cart/items"}}},
		{Name: "cart", Listeners: main, Hosts: []string{"shop.example.com", "x.test"}, Respond: ok, Matches: []Match{{Prefix: "/cart"}}},
		{Name: "beta", Listeners: main, Hosts: []string{"shop.example.com"}, Respond: ok, Matches: []Match{{Prefix: "/cart/items", Headers: []FieldMatch{{Name: "x-beta", Kind: FieldExact, Text: "yes"}}}}},
		{Name: "write", Listeners: main, Hosts: []string{"shop.example.com"}, Respond: ok, Matches: []Match{{Exact: "/cart/items/1", Methods: []string{"PUT", "POST"}}}},
		{Name: "debug", Listeners: main, Hosts: []string{"shop.example.com"}, Respond: ok, Matches: []Match{{Regex: anchored("/cart/.*"), Query: []FieldMatch{{Name: "debug", Invert: true}}}}},
		{Name: "old", Listeners: main, Hosts: []string{"shop.example.com"}, Respond: ok, Matches: []Match{{Regex: anchored("/old/.*")}}},
		{Name: "first", Listeners: main, Hosts: []string{"shop.example.com"}, Respond: ok, Priority: 9, Matches: []Match{{Prefix: "/admin"}}},
		{Name: "last", Listeners: main, Hosts: []string{"shop.example.com"}, Respond: ok, Priority: -9},
		{Name: "elsewhere", Listeners: []string{"other"}, Respond: ok},
		{Name: "blog", Listeners: main, Hosts: []string{"blog.test", "b.test", "c.test", "d.test", "e.test"}, Respond: ok},
		{Name: "younger", Listeners: main, Hosts: []string{"shop.example.com"}, Respond: ok, Matches: []Match{{Prefix: "/cart/items"}}},
	}
	e := explained(t, routes, &Probe{Host: "Shop.Example.com:8080", Target: "/cart/./items/1?debug=1"})
	if e.Route != "shop" || e.Reason != "host shop.example.com, path prefix /cart/items" || e.Action != "respond" || e.Status != 200 {
		t.Errorf("%+v", e)
	}
	want := []Loser{
		{"first", "path: want prefix /admin"},
		{"write", "method: want PUT or POST"},
		{"beta", `header x-beta: want exact "yes"`},
		{"younger", "would match, but is younger"},
		{"cart", "would match, but path prefix /cart/items comes before prefix /cart"},
		{"debug", "query debug: want it absent"},
		{"old", "path: want regex /old/.*"},
		{"last", "would match, but priority 0 comes before -9"},
		{"wild", "would match, but host shop.example.com comes before *.example.com"},
		{"catch-all", "would match, but host shop.example.com comes before any host"},
		{"blog", "host: want blog.test, b.test, c.test or one of 2 more"},
	}
	if !reflect.DeepEqual(e.Losers, want) {
		for i, l := range e.Losers {
			t.Errorf("%d: %+v", i, l)
		}
	}
	e = explained(t, routes, &Probe{Method: "PUT", Host: "shop.example.com", Target: "/cart/items/1", Headers: []Header{{"X-Beta", "yes"}}})
	if e.Route != "write" || e.Reason != "host shop.example.com, path exact /cart/items/1, method PUT or POST" {
		t.Errorf("%s: %s", e.Route, e.Reason)
	}
	e = explained(t, routes[2:], &Probe{Host: "shop.example.com", Target: "/admin"})
	if e.Route != "first" || e.Reason != "host shop.example.com, path prefix /admin, priority 9" {
		t.Errorf("%s: %s", e.Route, e.Reason)
	}
}

// TestA58Sibling: nothing takes the request, and it is still said of each route why; of many for other hosts only some.
func TestA58SiblingNoRoute(t *testing.T) {
	var routes []RouteConfig
	for i := range 3000 {
		routes = append(routes, RouteConfig{Name: fmt.Sprint("r", i), Listeners: []string{"main"}, Hosts: []string{fmt.Sprintf("h%d.test", i)}, Respond: &Respond{Status: 200}})
	}
	e := explained(t, routes, &Probe{Host: "h3000.test"})
	if e.Route != "" || e.Action != "refused" || e.Status != 404 || e.Refusal != NoRoute || len(e.Losers) != otherHostsMax || e.Losers[0] != (Loser{"r0", "host: want h0.test"}) {
		t.Errorf("%+v", e)
	}
	if e = explained(t, routes, &Probe{Host: "h17.test"}); e.Route != "r17" || len(e.Losers) != otherHostsMax {
		t.Errorf("%+v", e)
	}
}

// TestA58SiblingBadRequest: what would be refused before any route is refused here, in the same words.
func TestA58SiblingBadRequest(t *testing.T) {
	routes := onMain(RouteConfig{Respond: &Respond{Status: 200}})
	for _, tc := range []struct {
		probe Probe
		want  string
	}{
		{Probe{Host: "a.test", Target: "/a%2Fb"}, "refused 400 bad_request"},
		{Probe{Host: "a.test", Target: "no-slash"}, "refused 400 bad_request"},
		{Probe{Host: "a b"}, "refused 400 bad_request"},
		{Probe{Host: "a.test", Method: "TRACE"}, "refused 405 bad_request"},
		{Probe{Host: "a.test", Headers: []Header{{"X", "1\r\nY: 2"}}}, "refused 400 bad_request"},
		{Probe{Host: "a.test\r\nX: y"}, "refused 400 bad_request"},
		{Probe{Host: "a.test", Method: "OPTIONS", Target: "*"}, "respond 204 ok"},
		{Probe{Host: "a.test", Target: "/ready", HealthPath: "/ready"}, "respond 200 ok"},
		{Probe{}, "respond 200 ok"},
	} {
		e := explained(t, routes, &tc.probe)
		if got := fmt.Sprint(e.Action, " ", e.Status, " ", e.Refusal); got != tc.want {
			t.Errorf("%+v: %s (%s)", tc.probe, got, e.Detail)
		}
	}
}

func TestExplainForward(t *testing.T) {
	cfg := headerChanges
	cfg.Forward = &Forward{
		Pools:       []WeightedPool{{Pool: "p", Weight: 3}, {Pool: "q", Weight: 1}},
		Persistence: &SplitPersistence{Cookie: "split"},
		Rewrite:     Rewrite{Host: "inner", Prefix: "/v2"},
		Timeouts:    RouteTimeouts{FirstByte: 90 * time.Second, Request: time.Hour, Tunnel: Off, Try: 1500 * time.Millisecond},
		Retry:       Retry{Attempts: 2, On: OnConnectFailure | OnStatus5xx, NonIdempotent: true, BudgetPercent: 50},
	}
	cfg.Matches = []Match{{Prefix: "/api"}}
	cookie := fmt.Sprintf("split=%016x", splitMark("q"))
	p := &Probe{Host: "a.test", Target: "/api/x?y=z", Headers: []Header{{"Cookie", cookie}, {"X-Forwarded-For", "10.0.0.1"}},
		ClientAddress: netip.MustParseAddr("192.0.2.1"), Trusted: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}
	e := explained(t, onMain(cfg), p)
	if e.Action != "forward" || e.Status != 0 || e.BackendHost != "inner" || e.BackendPath != "/v2/x?y=z" || e.Pool.Name() != "q" || e.Client.String() != "10.0.0.1" {
		t.Errorf("%+v", e)
	}
	if want := []PoolShare{{"p", 75}, {"q", 25}}; !reflect.DeepEqual(e.Pools, want) {
		t.Errorf("%v", e.Pools)
	}
	if got := fmt.Sprint(e.Timeouts); got != "[{connect 3s} {first_byte 1m30s} {body_idle 30s} {request 1h} {tunnel disabled} {per_try 1.5s}]" {
		t.Errorf("%s", got)
	}
	if e.Retry != "2 retries on CONNECT_FAILURE, STATUS_5XX, any method, at most 50 % of the pool's requests" {
		t.Errorf("%s", e.Retry)
	}
	if got := fmt.Sprint(e.RequestHeaders); got != "[{remove x-secret } {set X-User lbd} {set X-Forwarded-For fixed} {add X-Tag two}]" {
		t.Errorf("%s", got)
	}
	if got := fmt.Sprint(e.ResponseHeaders); !strings.HasPrefix(got, "[{remove server } {remove x-request-id }") {
		t.Errorf("%s", got)
	}
	cfg = RouteConfig{Forward: toPool("p")}
	e = explained(t, onMain(cfg), &Probe{})
	if e.BackendHost != "" || e.BackendPath != "/" || e.Retry != "1 retry on CONNECT_FAILURE, RESET_BEFORE_RESPONSE, idempotent methods only, at most 20 % of the pool's requests" {
		t.Errorf("%+v", e)
	}
	cfg.Maintenance = &Maintenance{}
	if e = explained(t, onMain(cfg), &Probe{Host: "a"}); e.Action != "maintenance" || e.Status != 503 || e.Refusal != Denied || e.Route != "all" {
		t.Errorf("%+v", e)
	}
}

// TestExplainTakesNoTurn: to be asked changes nothing, and says who is next.
func TestExplainTakesNoTurn(t *testing.T) {
	table, err := NewTable(onMain(RouteConfig{Forward: &Forward{Pools: []WeightedPool{{Pool: "p", Weight: 1}, {Pool: "q", Weight: 1}}}}),
		[]*Pool{NewOfflinePool("p"), NewOfflinePool("q")})
	if err != nil {
		t.Fatal(err)
	}
	first := table.Explain("main", &Probe{Host: "a"}).Pool.Name()
	for range 5 {
		if next := table.Explain("main", &Probe{Host: "a"}).Pool.Name(); next != first {
			t.Fatalf("%s after %s", next, first)
		}
	}
	r := &table.routes[0]
	if got := r.pools[r.split.shares.Pick(r.split.turn.Add(1))].name; got != first {
		t.Errorf("%s was said, %s came", first, got)
	}
}
