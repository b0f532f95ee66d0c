package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lbdv1 "lbd/proto/lbd/v1"
)

const drain, maintenance = lbdv1.BackendState_BACKEND_STATE_DRAIN, lbdv1.BackendState_BACKEND_STATE_MAINTENANCE

// nobody and nothingSaid are a node's answers before it serves anything.
func nobody(*lbdv1.BackendServiceGetStatusRequest) (*lbdv1.BackendServiceGetStatusResponse, error) {
	return nil, status.Error(codes.Unavailable, "not yet")
}

func nothingSaid(*lbdv1.ListOverridesRequest) (*lbdv1.ListOverridesResponse, error) {
	return &lbdv1.ListOverridesResponse{}, nil
}

// says is an override of a state.
func says(address string, state lbdv1.BackendState) *lbdv1.Override {
	return &lbdv1.Override{
		Pool: "shop", Address: address, What: &lbdv1.Override_State{State: state}, Author: "node/n1 uid=0", Reason: "new\ndisk", CreateTime: noon,
	}
}

func TestBackendStates(t *testing.T) {
	node := &fakeNode{backends: nobody, fakeLive: fakeLive{
		overrides: nothingSaid,
		setState: func(r *lbdv1.SetStateRequest) (*lbdv1.SetStateResponse, error) {
			if r.GetAddress() == "10.0.0.9:80" {
				return nil, status.Error(codes.NotFound, "pool `shop` has no backend `10.0.0.9:80` (did you mean `10.0.0.1:80`?)")
			}
			return &lbdv1.SetStateResponse{Overrides: []*lbdv1.Override{says(r.GetAddress(), r.GetState())}}, nil
		},
		setWeight: func(r *lbdv1.SetWeightRequest) (*lbdv1.SetWeightResponse, error) {
			if r.GetReason() != "" {
				return nil, refusal(t, &errdetails.BadRequest_FieldViolation{Field: "reason", Description: "has 9999 bytes: at most 1024"})
			}
			return &lbdv1.SetWeightResponse{}, nil
		},
	}}
	node.start(t)
	lbctl("", "backend", "drain", "shop/10.0.0.1:80", "shop/[::1]:80", "--reason", "new disk", "--expires", "1h", "--close-connections").wants(t, 0,
		"shop/10.0.0.1:80: DRAIN\nshop/[::1]:80: DRAIN\n", "")
	sets := func() []*lbdv1.SetStateRequest { return received[*lbdv1.SetStateRequest](node) }
	r := sets()[0]
	left := time.Until(r.GetExpireTime().AsTime())
	if r.GetPool() != "shop" || r.GetAddress() != "10.0.0.1:80" || r.GetState() != drain || r.GetReason() != "new disk" || !r.GetCloseConnections() ||
		r.GetRequestId() == "" || left < 30*time.Minute || left > time.Hour {
		t.Errorf("asked %v", r)
	}
	if second := sets()[1]; second.GetAddress() != "[::1]:80" || second.GetRequestId() == r.GetRequestId() {
		t.Errorf("asked %v", second)
	}
	lbctl("", "backend", "maint", "shop/10.0.0.1:80", "-o", "jsonpath={[*].state}").wants(t, 0, "MAINTENANCE\n", "")
	lbctl("", "backend", "ready", "shop/10.0.0.1:80").wants(t, 0, "READY", "")
	if r := sets()[3]; r.GetState() != lbdv1.BackendState_BACKEND_STATE_READY || r.GetExpireTime() != nil {
		t.Errorf("asked %v", r)
	}
	lbctl("", "backend", "weight", "shop/10.0.0.1:80", "0").wants(t, 0, "shop/10.0.0.1:80: weight 0\n", "")
	lbctl("", "backend", "weight", "shop/10.0.0.1:80", "257").wants(t, 2, "", "error: a weight is a whole number from 0 to 256, not \"257\"\n")
	lbctl("", "backend", "weight", "shop/10.0.0.1:80", "1", "--reason", "long").wants(t, 2, "", "error: --reason: has 9999 bytes: at most 1024\n")

	// What was done before the one that failed is told.
	lbctl("", "backend", "drain", "shop/10.0.0.1:80", "shop/10.0.0.9:80", "--wait").wants(t, 5, "shop/10.0.0.1:80: DRAIN\n", "did you mean `10.0.0.1:80`?")
	lbctl("", "backend", "drain", "shop").wants(t, 2, "", "POOL/ADDRESS")
	lbctl("", "backend", "drain").wants(t, 2, "", "requires at least 1 arg")
	lbctl("", "backend", "drain", "shop/10.0.0.1:80", "--expires", "soon").wants(t, 2, "", "--expires takes a length of time")
	lbctl("", "backend", "weight", "shop/10.0.0.1:80", "many").wants(t, 2, "", "from 0 to 256")
}

// A drain is over when nothing is under way on any node; where clients are bound, when none of them is left either.
func TestDrainWait(t *testing.T) {
	var answers []*lbdv1.BackendStatus
	pool := &lbdv1.Pool{Name: "shop"}
	node := &fakeNode{
		get: func(*lbdv1.GetRequest) (*lbdv1.GetResponse, error) {
			return &lbdv1.GetResponse{Resource: &lbdv1.Resource{Spec: &lbdv1.Resource_Pool{Pool: pool}}}, nil
		},
		backends: func(*lbdv1.BackendServiceGetStatusRequest) (*lbdv1.BackendServiceGetStatusResponse, error) {
			now := answers[0]
			if len(answers) > 1 {
				answers = answers[1:]
			}
			now.Node, now.Pool, now.Address = "n1", "shop", "10.0.0.1:80"
			other := &lbdv1.BackendStatus{Node: "n1", Pool: "shop", Address: "10.0.0.2:80", InFlight: 9, Eligible: true}
			return &lbdv1.BackendServiceGetStatusResponse{Backends: []*lbdv1.BackendStatus{now, other}}, nil
		},
		fakeLive: fakeLive{
			overrides: nothingSaid,
			setState:  func(*lbdv1.SetStateRequest) (*lbdv1.SetStateResponse, error) { return &lbdv1.SetStateResponse{}, nil },
		},
	}
	node.start(t)
	wait := []string{"backend", "drain", "shop/10.0.0.1:80", "--wait"}
	answers = []*lbdv1.BackendStatus{{InFlight: 2}, {State: drain, InFlight: 3}, {State: drain, InFlight: 2}, {State: drain, InFlight: 1}, {State: drain, Connections: 4}}
	lbctl("", wait...).wants(t, 0, "DRAIN", "node n1: shop/10.0.0.1:80 has 2 requests in flight\nnode n1: shop/10.0.0.1:80 has 1 request in flight\n")

	answers = []*lbdv1.BackendStatus{{State: drain, InFlight: 2}}
	lbctl("", append(wait, "--timeout", "1s", "-q")...).wants(t, 8, "DRAIN",
		"error: timed out after 1s: node n1: shop/10.0.0.1:80 has 2 requests in flight; the drain stays\n")

	pool.SessionPersistence = &lbdv1.SessionPersistence{}
	answers = []*lbdv1.BackendStatus{{State: drain}, {State: drain, Connections: 1}, {State: drain}}
	lbctl("", wait...).wants(t, 0, "DRAIN", "has 1 connection for clients that are bound to it\n")
	answers = []*lbdv1.BackendStatus{{State: drain, Connections: 1, IneligibleReason: "drained"}}
	lbctl("", wait...).wants(t, 0, "DRAIN", "")
}

// A verb returns when the node acts upon what was said, and tells what that comes to.
func TestBackendSettles(t *testing.T) {
	a := &lbdv1.BackendStatus{Node: "n1", Pool: "shop", Address: "10.0.0.1:80", Weight: 1, Eligible: true}
	b := &lbdv1.BackendStatus{Node: "n1", Pool: "shop", Address: "10.0.0.2:80", Weight: 1, Eligible: true}
	var becomes func()
	looks := 0
	var before []*lbdv1.Override
	node := &fakeNode{
		backends: func(*lbdv1.BackendServiceGetStatusRequest) (*lbdv1.BackendServiceGetStatusResponse, error) {
			if looks++; looks == 3 {
				becomes()
			}
			return &lbdv1.BackendServiceGetStatusResponse{Backends: []*lbdv1.BackendStatus{a, b}}, nil
		},
		fakeLive: fakeLive{
			setState: func(*lbdv1.SetStateRequest) (*lbdv1.SetStateResponse, error) { return &lbdv1.SetStateResponse{}, nil },
			setWeight: func(*lbdv1.SetWeightRequest) (*lbdv1.SetWeightResponse, error) {
				return &lbdv1.SetWeightResponse{}, nil
			},
			overrides: func(*lbdv1.ListOverridesRequest) (*lbdv1.ListOverridesResponse, error) {
				return &lbdv1.ListOverridesResponse{Overrides: before}, nil
			},
		},
	}
	node.start(t)
	for _, step := range []struct {
		args, stdout, stderr string
		becomes              func()
	}{
		{"weight pools/shop/10.0.0.1:80 5", "shop/10.0.0.1:80: weight 5, now 83 % of pool shop\n", "", func() { a.Weight = 5 }},
		{"drain shop/10.0.0.1:80", "shop/10.0.0.1:80: DRAIN\n", "", func() { a.State, a.Eligible = drain, false }},
		{"maint pool/shop/10.0.0.2:80", "shop/10.0.0.2:80: MAINTENANCE\n", "warning: no backend of pool shop takes requests now\n",
			func() { b.State, b.Eligible = maintenance, false }},
		{"weight shop/10.0.0.2:80 0", "shop/10.0.0.2:80: weight 0\n", "warning: no backend of pool shop", func() { b.Weight = 0 }},
		{"ready shop/10.0.0.1:80", "shop/10.0.0.1:80: READY\n", "", func() { a.State, a.Eligible = 0, true }},
	} {
		looks, becomes = 0, step.becomes
		lbctl("", append([]string{"backend"}, strings.Fields(step.args)...)...).wants(t, 0, step.stdout, step.stderr)
		if looks != 3 {
			t.Errorf("backend %s looked %d times", step.args, looks)
		}
	}
	lbctl("", "backend", "status").wants(t, 0, "100 %", "")

	before = []*lbdv1.Override{
		{Pool: "shop", Address: "10.0.0.1:80", What: &lbdv1.Override_Weight{Weight: 5}, Author: "ann", Reason: "slow disk", ExpireTime: noon},
		{Pool: "shop", Address: "10.0.0.2:80", What: &lbdv1.Override_Weight{Weight: 6}}, says("10.0.0.1:80", drain),
	}
	looks, becomes = 0, func() { a.Weight = 3 }
	lbctl("", "backend", "weight", "shop/10.0.0.1:80", "3").wants(t, 0, "weight 3",
		"shop/10.0.0.1:80: replaces override of shop/10.0.0.1:80: weight 5, by ann: slow disk, until 2026-01-02T12:00:00Z\n")
}

// A backend's last failure is shown where it keeps it from taking requests.
func TestLastError(t *testing.T) {
	const up, down = lbdv1.BackendHealth_BACKEND_HEALTH_UP, lbdv1.BackendHealth_BACKEND_HEALTH_DOWN
	for _, c := range []struct {
		status *lbdv1.BackendStatus
		shown  string
	}{
		{&lbdv1.BackendStatus{Health: up, Eligible: true, LastError: "reset"}, ""},
		{&lbdv1.BackendStatus{Health: down, Eligible: true, LastError: "reset"}, "reset"},
		{&lbdv1.BackendStatus{Health: up, IneligibleReason: "ejected", LastError: "reset"}, "reset"},
		{&lbdv1.BackendStatus{Health: down, IneligibleReason: "down: reset", LastError: "reset"}, ""},
	} {
		if got := lastError(c.status, false, noon.AsTime()); got != c.shown {
			t.Errorf("%v shows %q", c.status, got)
		}
		if got := lastError(c.status, true, noon.AsTime()); got != "reset" {
			t.Errorf("%v shows %q in any case", c.status, got)
		}
		c.status.LastErrorTime = noon
		switch said := strings.Contains(c.status.GetIneligibleReason(), "reset"); {
		case said:
			c.shown = "3m ago"
		case c.shown != "":
			c.shown += ", 3m ago"
		}
		later := noon.AsTime().Add(3*time.Minute + 59*time.Second)
		if got := lastError(c.status, false, later); got != c.shown {
			t.Errorf("three minutes later %v shows %q", c.status, got)
		}
		if got := lastError(c.status, true, later); got != "reset, 3m ago" {
			t.Errorf("three minutes later %v shows %q in any case", c.status, got)
		}
	}
	if got := lastError(&lbdv1.BackendStatus{LastErrorTime: noon}, true, noon.AsTime()); got != "" {
		t.Errorf("a time without an error shows %q", got)
	}
}

func TestOverrides(t *testing.T) {
	all := []*lbdv1.Override{
		says("10.0.0.1:80", maintenance),
		{Pool: "shop", Address: "10.0.0.2:80", What: &lbdv1.Override_Weight{Weight: 0}, ExpireTime: noon},
	}
	node := &fakeNode{fakeLive: fakeLive{
		overrides: func(*lbdv1.ListOverridesRequest) (*lbdv1.ListOverridesResponse, error) {
			return &lbdv1.ListOverridesResponse{Overrides: all}, nil
		},
		clear: func(r *lbdv1.ClearOverridesRequest) (*lbdv1.ClearOverridesResponse, error) {
			if r.GetAddress() == "" {
				return &lbdv1.ClearOverridesResponse{}, nil
			}
			return &lbdv1.ClearOverridesResponse{Overrides: all}, nil
		},
	}}
	node.start(t)
	lbctl("", "override", "list", "shop").wants(t, 0, ""+
		"POOL  BACKEND      SAYS         NODE  AUTHOR         SINCE                 UNTIL                 REASON\n"+
		"shop  10.0.0.1:80  MAINTENANCE  -     node/n1 uid=0  2026-01-02T12:00:00Z  -                     new disk\n"+
		"shop  10.0.0.2:80  weight 0     -     -              -                     2026-01-02T12:00:00Z  -\n", "")
	if r := node.requests[0].(*lbdv1.ListOverridesRequest); r.GetPool() != "shop" {
		t.Errorf("asked %v", r)
	}
	lbctl("", "override", "list", "-o", "jsonpath={[*].weight}").wants(t, 0, "0\n", "")
	lbctl("", "override", "clear", "shop/10.0.0.1:80").wants(t, 0, "shop/10.0.0.1:80: MAINTENANCE has ended\nshop/10.0.0.2:80: weight 0 has ended\n", "")
	lbctl("", "override", "clear", "shop").wants(t, 0, "", "there was nothing to end\n")
	lbctl("", "override", "clear", "shop/").wants(t, 2, "", "POOL or POOL/ADDRESS")
}

// decision is one that says everything.
func decision() *lbdv1.TestRouteResponse {
	return &lbdv1.TestRouteResponse{
		Node: "n1", Revision: 7,
		Listener:    &lbdv1.ListenerDecision{Name: "https", Address: "127.0.0.1:443", Reason: "it has port 443"},
		Certificate: &lbdv1.CertificateDecision{Name: "shop", Serial: "a1", KeyType: "ECDSA_P256", Reason: "exact name"},
		Route:       "shop", RouteReason: "host shop.test",
		Losers: []*lbdv1.RouteLoser{{Route: "default", Reason: "host shop.test comes before any host"}},
		Action: "forward", BackendHost: "in.test", BackendPath: "/b?q=1",
		RequestHeaders: []*lbdv1.HeaderChange{{Action: "remove", Name: "X-A"}, {Action: "set", Name: "X-B", Value: "c: d"}},
		Pools:          []*lbdv1.PoolDecision{{Name: "old", SharePercent: 87.5}, {Name: "new", SharePercent: 12.5}, {Name: "off"}},
		Pool:           "new", Backend: "10.0.0.1:80", BackendReason: "its turn",
		Backends: []*lbdv1.BackendDecision{{Address: "10.0.0.1:80", Eligible: true, Weight: 1}, {Address: "10.0.0.2:80", Reason: "drains", Weight: 2}},
		Timeouts: []*lbdv1.Setting{{Name: "connect", Value: "3s"}, {Name: "request", Value: "disabled"}}, Retry: "none",
	}
}

func TestRouteTest(t *testing.T) {
	node := &fakeNode{fakeLive: fakeLive{testRoute: func(r *lbdv1.TestRouteRequest) (*lbdv1.TestRouteResponse, error) {
		d := decision()
		switch {
		case r.GetUrl() == "http://two.test/":
			return nil, status.Error(codes.InvalidArgument, "several listeners take http (a, b): name one")
		case r.GetUrl() == "http://closed.test/":
			return &lbdv1.TestRouteResponse{Node: "n1", Revision: 7, Listener: d.Listener, Route: "closed", Action: "maintenance", Status: 503}, nil
		case r.GetUrl() == "http://no.test/":
			return &lbdv1.TestRouteResponse{Node: "n1", Revision: 7, Listener: d.Listener, Action: "refused", Status: 404, Reason: "no_route"}, nil
		case r.GetUrl() == "http://idle.test/":
			return &lbdv1.TestRouteResponse{Node: "n1", Revision: 7, Listener: d.Listener, Action: "forward", Pool: "idle", BackendReason: "no backend is eligible"}, nil
		case r.GetRevision() == 8:
			d.Pools, d.Timeouts, d.Location = d.Pools[1:2], d.Timeouts[:1], "https://to.test/"
			d.Pools[0].SharePercent = 100
			d.Timeouts[0].Value = "9s"
		case r.GetRevision() == 9: // reasons and turns are no outcome
			d.RouteReason, d.Pool, d.Backend, d.Losers = "another", "old", "10.0.0.2:80", nil
		}
		return d, nil
	}}}
	node.start(t)
	lbctl("", "route", "test", "https://shop.test/a", "-X", "POST", "-H", "X-A: b: c", "-H", "Host:in.test", "--sni", "other.test",
		"--client-ip", "10.0.0.1", "--listener", "https", "--rsa-only", "--revision", "7").wants(t, 0, ""+
		"NODE            n1, revision 7\n"+
		"LISTENER        https on 127.0.0.1:443 (it has port 443)\n"+
		"CERTIFICATE     shop, serial a1, ECDSA_P256 (exact name)\n"+
		"ROUTE           shop (host shop.test)\n"+
		"ACTION          forward\n"+
		"BACKEND GETS    in.test/b?q=1\n"+
		"REQUEST FIELDS  remove X-A\n"+
		"                set X-B: c: d\n"+
		"POOLS           old, 87.5 %\n"+
		"                new, 12.5 %: gets this one\n"+
		"                off, 0 %\n"+
		"BACKEND         10.0.0.1:80 (its turn)\n"+
		"TIMEOUTS        connect 3s\n"+
		"                request disabled\n"+
		"RETRY           none\n"+
		"\n"+
		"BACKEND      WEIGHT  TAKES\n"+
		"10.0.0.1:80  1       yes\n"+
		"10.0.0.2:80  2       no: drains\n"+
		"\n"+
		"OTHER ROUTE  WHY NOT\n"+
		"default      host shop.test comes before any host\n", "")
	r := node.requests[0].(*lbdv1.TestRouteRequest)
	if h := r.GetHeaders(); r.GetMethod() != "POST" || len(h) != 2 || h[0].GetName() != "X-A" || h[0].GetValue() != "b: c" || h[1].GetValue() != "in.test" ||
		r.GetSni() != "other.test" || r.GetClientAddress() != "10.0.0.1" || r.GetListener() != "https" || !r.GetRsaOnly() || r.GetRevision() != 7 {
		t.Errorf("asked %v", r)
	}
	lbctl("", "route", "test", "https://shop.test/a", "-o", "json").wants(t, 0, `"backend_path": "/b?q=1"`, "")
	lbctl("", "route", "test", "https://shop.test/a", "-o", "name").wants(t, 0, "listeners/https\ncertificates/shop\nroutes/shop\npools/new\n", "")
	lbctl("", "route", "test", "http://no.test/").wants(t, 1, "ROUTE     none\nACTION    refused, status 404 (no_route)\n", "")
	lbctl("", "route", "test", "http://closed.test/").wants(t, 1, "ACTION    maintenance, status 503\n", "")
	lbctl("", "route", "test", "http://idle.test/").wants(t, 1, "BACKEND   none (no backend is eligible)\n", "")
	lbctl("", "route", "test", "http://two.test/").wants(t, 2, "", "error: several listeners take http (a, b): name one with --listener\n")
	asked := len(node.requests)
	for _, wrong := range []struct{ args, says string }{
		{"nonsense", "error: URL must be http://HOST[:PORT]/PATH or https://…, not `nonsense`\n"},
		{"http://a.test/ --client-ip here", "--client-ip must be an IP address, not `here`"},
		{"http://a.test/ --method=", "-X must be a method such as GET"},
		{"http://a.test/ -X G(T", "-X must be a method such as GET"},
		{"http://a.test/ --revision -1", "--revision takes a revision's number"},
		{"http://a.test/ --diff=-1 8", "--diff takes a revision's number"},
		{"http://a.test/ -o jsonpath={.rout}", "(did you mean `route`?)"},
	} {
		lbctl("", append([]string{"route", "test"}, strings.Fields(wrong.args)...)...).wants(t, 2, "", wrong.says)
	}
	if len(node.requests) != asked+1 { // the path alone needs an answer
		t.Errorf("asked %v", node.requests[asked:])
	}

	lbctl("", "route", "test", "https://shop.test/a", "--diff", "7", "8").wants(t, 1, ""+
		"+ location: https://to.test/\n"+
		"- pools.old: 87.5 %\n"+
		"~ pools.new: 12.5 % → 100 %\n"+
		"- pools.off: 0 %\n"+
		"~ timeouts.connect: 3s → 9s\n"+
		"- timeouts.request: disabled\n", "")
	lbctl("", "route", "test", "--diff", "7", "9", "https://shop.test/a").wants(t, 0, "", "no differences\n")
	lbctl("", "route", "test", "--diff", "7", "8", "https://shop.test/a", "-o", "jsonpath={[0].after}").wants(t, 1, "https://to.test/\n", "")
	lbctl("", "route", "test", "--diff", "7", "https://shop.test/a").wants(t, 2, "", "accepts 2 arg(s)")
	lbctl("", "route", "test", "--diff", "7", "https://shop.test/a", "x").wants(t, 2, "", "--diff takes two revisions")
	lbctl("", "route", "test", "https://shop.test/a", "-H", "X-A").wants(t, 2, "", "'Name: value'")
}

func TestCases(t *testing.T) {
	node := &fakeNode{fakeLive: fakeLive{testRoute: func(r *lbdv1.TestRouteRequest) (*lbdv1.TestRouteResponse, error) {
		switch r.GetUrl() {
		case "https://bad/":
			return nil, status.Error(codes.InvalidArgument, "several listeners take https: name one")
		case "https://gone/":
			return nil, why(t, codes.NotFound, "NOT_FOUND", "there is no revision 9: the newest is 8", &errdetails.ResourceInfo{ResourceType: "revisions", ResourceName: "9"})
		case "https://down/":
			return nil, status.Error(codes.Internal, "out of order")
		}
		return decision(), nil
	}}}
	node.start(t)
	const good = `
- name: all of it
  request: { url: "https://shop.test/a", method: POST, headers: { X-A: b }, sni: s, client_ip: 10.0.0.1, listener: https, rsa_only: true }
  expect:
    listener: https
    certificate: shop
    route: shop
    not_route: default
    action: forward
    backend_host: in.test
    backend_path: /b?q=1
    pools: [old, new]
    request_headers: { remove: [x-a], set: { x-b: "c: d" } }
`
	lbctl(good, "test", "-", "--revision", "7").wants(t, 0, "ok    all of it\n", "1 case, 0 failed\n")
	r := node.requests[0].(*lbdv1.TestRouteRequest)
	if h := r.GetHeaders(); r.GetMethod() != "POST" || len(h) != 1 || h[0].GetName() != "X-A" || h[0].GetValue() != "b" || r.GetSni() != "s" ||
		r.GetClientAddress() != "10.0.0.1" || r.GetListener() != "https" || !r.GetRsaOnly() || r.GetRevision() != 7 {
		t.Errorf("asked %v", r)
	}
	const bad = `
- name: wrong all over
  request: { url: "https://shop.test/a" }
  expect: { route: other, not_route: shop, status: 200, pool: new, location: "", response_headers: { remove: [X-B] }, certificate: x }
`
	lbctl(good+bad, "test", "-").wants(t, 1, "ok    all of it\n"+
		"FAIL  wrong all over\n"+
		"      stdin:17:20: route: want \"other\", got \"shop\"\n"+
		"      stdin:17:38: route shop takes it\n"+
		"      stdin:17:52: status: want \"200\", got none\n"+
		"      stdin:17:63: pool: want \"new\", got \"new, old\"\n"+
		"      stdin:17:111: response_headers: want \"remove X-B\", got none\n"+
		"      stdin:17:132: certificate: want \"x\", got \"shop\"\n", "2 cases, 1 failed\n")
	lbctl(good+bad, "test", "-", "-o", "jsonpath={[*].passed}").wants(t, 1, "true\nfalse\n", "1 failed")

	// A listener that is not there is the file's mistake, a revision that is not is the command line's.
	const lost = `
- name: no such listener
  request: { url: "https://bad/" }
  expect: { route: shop }
- name: nor this
  request: { listener: x, url: "https://bad/" }
  expect: { route: shop }
`
	lbctl(bad+lost, "test", "-").wants(t, 3, "", "stdin:7:19: error: several listeners take https: name one\n"+
		"stdin:10:24: error: several listeners take https: name one\nerror: 2 errors\n")
	lbctl(strings.ReplaceAll(good, "shop.test/a", "gone/"), "test", "-", "--revision", "9").wants(t, 5, "", "error: there is no revision 9: the newest is 8\n")
	lbctl(good, "test", "-", "--revision", "-1").wants(t, 2, "", "--revision takes a revision's number")
	lbctl("[]", "test", "-").wants(t, 3, "", "stdin:1:1: error: there are no cases here")
	dir := t.TempDir()
	for _, name := range []string{"a.yaml", "b.yaml"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(good), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	lbctl(good, "test", dir, "-").wants(t, 0, "ok    all of it\nok    all of it\nok    all of it\n", "3 cases, 0 failed\n")
	lbctl(strings.ReplaceAll(good, "shop.test/a", "down/"), "test", "-").wants(t, 9, "", "out of order")
	lbctl("- name: x\n  request: { url: 1 }\n", "test", "-").wants(t, 3, "", "stdin:2:19: error: `url` must be text: put it in quotes\nerror: 1 error\n")
	lbctl("", "test", filepath.Join(t.TempDir(), "none.yaml")).wants(t, 2, "", "no such file")
}

func TestEvents(t *testing.T) {
	var ended atomic.Bool
	node := &fakeNode{fakeLive: fakeLive{events: func(r *lbdv1.WatchEventsRequest, s grpc.ServerStreamingServer[lbdv1.WatchEventsResponse]) error {
		err := s.Send(&lbdv1.WatchEventsResponse{Time: noon, Node: "n1", Type: "backend_down", Resource: "pools/shop/10.0.0.1:80", Message: "connect:\nrefused"})
		if r.GetFollow() && !ended.Load() {
			<-s.Context().Done()
			return s.Context().Err()
		}
		return err
	}}}
	node.start(t)
	lbctl("", "events", "--since", "1h").wants(t, 0, ""+
		"TIME                  EVENT         RESOURCE                MESSAGE\n"+
		"2026-01-02T12:00:00Z  backend_down  pools/shop/10.0.0.1:80  connect: refused\n", "")
	since := time.Since(node.requests[0].(*lbdv1.WatchEventsRequest).GetSince().AsTime())
	if since < time.Hour || since > 2*time.Hour {
		t.Errorf("asked for events since %s", since)
	}
	lbctl("", "events", "-o", "json").wants(t, 0, `"type": "backend_down"`, "")
	lbctl("", "events", "--follow", "--timeout", "500ms").wants(t, 0, "2026-01-02T12:00:00Z  n1  backend_down         pools/shop/10.0.0.1:80  connect: refused\n", "")
	lbctl("", "events", "--follow", "--timeout", "500ms", "-o", "jsonl").wants(t, 0, `"resource":"pools/shop/10.0.0.1:80"`, "")
	lbctl("", "events", "--follow", "-o", "json").wants(t, 2, "", "--follow writes a line")
	ended.Store(true)
	lbctl("", "events", "--follow", "-o", "name").wants(t, 7, "pools/shop/10.0.0.1:80\n", "the node ended the events")
}

func TestConnections(t *testing.T) {
	node := &fakeNode{fakeLive: fakeLive{
		connections: func(*lbdv1.ListConnectionsRequest) (*lbdv1.ListConnectionsResponse, error) {
			return &lbdv1.ListConnectionsResponse{Truncated: true, Connections: []*lbdv1.Connection{{
				Id: 5, Node: "n1", Listener: "https", ClientAddress: "192.0.2.1:4000", StartTime: noon, State: "idle", Requests: 3, TlsVersion: "1.3", ServerName: "a.test",
			}}}, nil
		},
		kill: func(r *lbdv1.KillConnectionsRequest) (*lbdv1.KillConnectionsResponse, error) {
			return &lbdv1.KillConnectionsResponse{Killed: int64(len(r.GetListener()))}, nil
		},
	}}
	node.start(t)
	lbctl("", "connections", "list", "--client", "192.0.2.0/24", "--pool", "shop", "--listener", "https", "--limit", "1", "-o", "wide").wants(t, 0, ""+
		"ID  LISTENER  CLIENT          SINCE                 STATE  REQUESTS  ROUTE  POOL  BACKEND  NODE  TLS  SERVER NAME\n"+
		"5   https     192.0.2.1:4000  2026-01-02T12:00:00Z  idle   3         -      -     -        n1    1.3  a.test\n", "warning: there are more")
	if r := node.requests[0].(*lbdv1.ListConnectionsRequest); r.GetClient() != "192.0.2.0/24" || r.GetPool() != "shop" || r.GetListener() != "https" || r.GetLimit() != 1 {
		t.Errorf("asked %v", r)
	}
	// Where nobody can be asked nothing is done.
	lbctl("y\n", "connections", "kill", "--listener", "a").wants(t, 2, "", "Close all connections of listener a? Say --yes")
	lbctl("", "connections", "kill", "--yes").wants(t, 2, "", "nothing is chosen")
	lbctl("", "connections", "kill", "x", "--yes").wants(t, 2, "", "a connection is named by its id")
	if len(node.requests) != 1 {
		t.Errorf("asked %v", node.requests[1:])
	}
	lbctl("", "connections", "kill", "--listener", "a", "--yes").wants(t, 0, "closed 1 connection\n", "")
	lbctl("", "connections", "kill", "5", "6", "--yes").wants(t, 5, "closed 0 connections\n", "no such connection")
	if r := node.requests[2].(*lbdv1.KillConnectionsRequest); len(r.GetIds()) != 2 || r.GetIds()[1] != 6 {
		t.Errorf("asked %v", r)
	}
}

func TestDoctor(t *testing.T) {
	findings := []*lbdv1.Finding{
		{Check: "clock", Level: lbdv1.FindingLevel_FINDING_LEVEL_OK, Message: "synchronised"},
		{Check: "build", Level: lbdv1.FindingLevel_FINDING_LEVEL_WARNING, Message: "slow", Remedy: "build again"},
	}
	node := &fakeNode{fakeLive: fakeLive{doctor: func() (*lbdv1.RunDoctorResponse, error) { return &lbdv1.RunDoctorResponse{Findings: findings}, nil }}}
	node.start(t)
	lbctl("", "doctor").wants(t, 1, "LEVEL    CHECK  FINDING       WHAT TO DO\nOK       clock  synchronised  -\nWARNING  build  slow          build again\n", "")
	lbctl("", "doctor", "--errors-only", "-o", "json").wants(t, 0, "[]\n", "")
	findings[1].Level = lbdv1.FindingLevel_FINDING_LEVEL_ERROR
	lbctl("", "doctor", "--errors-only", "-o", "name").wants(t, 1, "build\n", "")
	findings = findings[:1]
	lbctl("", "doctor", "-o", "jsonpath={[*].level}").wants(t, 0, "OK\n", "")
}

func TestMetrics(t *testing.T) {
	node := &fakeNode{fakeLive: fakeLive{metrics: func() (*lbdv1.GetMetricsResponse, error) {
		return &lbdv1.GetMetricsResponse{Text: "# HELP lbd_a what it is\n# TYPE lbd_a counter\nlbd_a{x=\"1\",y=\"q\\\"{ }\"} 2\nlbd_a 3\n# TYPE go_b gauge\ngo_b{} +Inf\n"}, nil
	}}}
	node.start(t)
	lbctl("", "metrics", "lbd_").wants(t, 0, "# HELP lbd_a what it is\n# TYPE lbd_a counter\nlbd_a{x=\"1\",y=\"q\\\"{ }\"} 2\nlbd_a 3\n", "")
	lbctl("", "metrics", "-o", "jsonl").wants(t, 0, ""+
		`{"name":"lbd_a","labels":{"x":"1","y":"q\"{ }"},"value":"2"}`+"\n"+
		`{"name":"lbd_a","labels":{},"value":"3"}`+"\n"+
		`{"name":"go_b","labels":{},"value":"+Inf"}`+"\n", "")
	lbctl("", "metrics", "-o", "name").wants(t, 0, "lbd_a\ngo_b\n", "")
	lbctl("", "metrics", "none").wants(t, 5, "", `no metric's name begins with "none"`)
}

func TestProfile(t *testing.T) {
	node := &fakeNode{fakeLive: fakeLive{profile: func(r *lbdv1.GetProfileRequest) (*lbdv1.GetProfileResponse, error) {
		if r.GetDuration().AsDuration() > time.Minute {
			return nil, refusal(t, &errdetails.BadRequest_FieldViolation{Field: "duration", Description: "is out of range: 1s to 1m0s"})
		}
		return &lbdv1.GetProfileResponse{Profile: []byte("profile")}, nil
	}}}
	node.start(t)
	out := filepath.Join(t.TempDir(), "p")
	lbctl("", "profile", "heap", "--out", out).wants(t, 0, "wrote "+out+", 7 bytes\n", "look at it: go tool pprof -http=: "+out)
	if text, err := os.ReadFile(out); err != nil || string(text) != "profile" {
		t.Errorf("wrote %q, %v", text, err)
	}
	lbctl("", "profile", "cpu", "--out", out).wants(t, 2, "", "file exists")
	lbctl("", "profile", "cpu", "--out", out+"2", "--duration", "2m").wants(t, 2, "", "error: --duration: is out of range")
	if _, err := os.Stat(out + "2"); err == nil {
		t.Error("a failed profile leaves its file")
	}
	if r := node.requests[1].(*lbdv1.GetProfileRequest); r.GetKind() != lbdv1.ProfileKind_PROFILE_KIND_CPU || r.GetDuration().AsDuration() != 2*time.Minute {
		t.Errorf("asked %v", r)
	}
	lbctl("", "profile", "goroutines").wants(t, 2, "", "invalid argument")
}

// selfSigned makes a certificate for a.test with a serial.
func selfSigned(t *testing.T, serial int64) (chain string, pair tls.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "a"}, DNSNames: []string{"a.test"}, NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func TestCertInspect(t *testing.T) {
	chain, _ := selfSigned(t, 0xa1)
	other, _ := selfSigned(t, 0xa2)
	path := filepath.Join(t.TempDir(), "a.pem")
	if err := os.WriteFile(path, []byte(chain+other), 0o600); err != nil {
		t.Fatal(err)
	}
	// A file needs no node.
	o := lbctl("", "cert", "inspect", "--file", path)
	o.wants(t, 0, "SUBJECT      CN=a\nHOSTS        a.test\nKEY TYPE     ECDSA_P256\nSERIAL       a1\n", "warning: certificate 1 is not signed by the one after it")
	lbctl("", "cert", "inspect", "--file", path, "-o", "name").wants(t, 0, "a1\na2\n", "not signed")
	lbctl("", "cert", "inspect").wants(t, 2, "", "one of them")
	lbctl("", "cert", "inspect", "a", "--file", path).wants(t, 2, "", "one of them")
	if err := os.WriteFile(path, []byte("no PEM"), 0o600); err != nil {
		t.Fatal(err)
	}
	lbctl("", "cert", "inspect", "--file", path).wants(t, 3, "", "there is no certificate in PEM here")

	node := &fakeNode{get: func(r *lbdv1.GetRequest) (*lbdv1.GetResponse, error) {
		if r.GetName() == "b" {
			return nil, status.Error(codes.NotFound, "there is no certificate named `b`")
		}
		if r.GetName() == "self" {
			return &lbdv1.GetResponse{Resource: &lbdv1.Resource{Spec: &lbdv1.Resource_Certificate{Certificate: &lbdv1.Certificate{}}}}, nil
		}
		inline := &lbdv1.Content{Source: &lbdv1.Content_Inline{Inline: chain}}
		return &lbdv1.GetResponse{Resource: &lbdv1.Resource{Spec: &lbdv1.Resource_Certificate{Certificate: &lbdv1.Certificate{
			Source: &lbdv1.Certificate_Pem{Pem: &lbdv1.CertificatePem{Chain: inline}},
		}}}}, nil
	}, certs: func(*lbdv1.CertificateServiceGetStatusRequest) (*lbdv1.CertificateServiceGetStatusResponse, error) {
		return &lbdv1.CertificateServiceGetStatusResponse{Certificates: []*lbdv1.CertificateStatus{{Name: "self", Serial: "a3", Hosts: []string{"s.test"}}}}, nil
	}}
	node.start(t)
	lbctl("", "cert", "inspect", "a", "-o", "jsonpath={[0].hosts}").wants(t, 0, "a.test\n", "")
	lbctl("", "cert", "inspect", "self").wants(t, 0, "HOSTS        s.test\nKEY TYPE     -\nSERIAL       a3\n", "")
	lbctl("", "cert", "inspect", "b").wants(t, 5, "", "no certificate named `b`")
}

func TestCertCheck(t *testing.T) {
	_, pair := selfSigned(t, 0xa1)
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		if hello.ServerName != "a.test" && hello.ServerName != "c.test" {
			return nil, net.ErrClosed
		}
		return &pair, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.(*tls.Conn).Handshake()
			conn.Close()
		}
	}()
	defer func() { l.Close(); <-served }()
	stored := "a1"
	node := &fakeNode{
		status: func() (*lbdv1.SystemServiceGetStatusResponse, error) {
			return &lbdv1.SystemServiceGetStatusResponse{Listeners: []*lbdv1.ListenerStatus{{Name: "https", Addresses: []string{l.Addr().String()}}}}, nil
		},
		certs: func(*lbdv1.CertificateServiceGetStatusRequest) (*lbdv1.CertificateServiceGetStatusResponse, error) {
			return &lbdv1.CertificateServiceGetStatusResponse{Certificates: []*lbdv1.CertificateStatus{{Name: "a", Serial: stored}}}, nil
		},
		fakeLive: fakeLive{testRoute: func(r *lbdv1.TestRouteRequest) (*lbdv1.TestRouteResponse, error) {
			d := &lbdv1.TestRouteResponse{Listener: &lbdv1.ListenerDecision{Name: "https"}, Certificate: &lbdv1.CertificateDecision{Name: "a"}}
			switch {
			case r.GetListener() != "":
				d.Listener.Name = r.GetListener()
			case strings.HasPrefix(r.GetUrl(), "https://b.test"):
				d.Certificate.Name = ""
			}
			return d, nil
		}},
	}
	node.start(t)
	where := "a.test on listener https (" + l.Addr().String() + ")"
	lbctl("", "cert", "check", "a.test:8443").wants(t, 0, where+": shows certificates/a, serial a1, as stored\n", "")
	if r := node.requests[0].(*lbdv1.TestRouteRequest); r.GetUrl() != "https://a.test:8443/" {
		t.Errorf("asked %v", r)
	}
	// The one that is shown for want of a better one is no answer.
	lbctl("", "cert", "check", "c.test:1").wants(t, 1,
		"c.test on listener https ("+l.Addr().String()+"): shows certificates/a, serial a1, which does not name it but a.test\n", "")
	lbctl("", "cert", "check", "c.test", "-o", "jsonpath={.hosts[*]}").wants(t, 1, "a.test\n", "")
	lbctl("", "cert", "check", "c.test", "-o", "jsonpath={.named}").wants(t, 1, "false\n", "")
	stored = "b2"
	lbctl("", "cert", "check", "a.test").wants(t, 1, where+": shows serial a1, but certificates/a is stored with serial b2\n", "")
	lbctl("", "cert", "check", "a.test", "-o", "jsonpath={.same}").wants(t, 1, "false\n", "")
	lbctl("", "cert", "check", "b.test").wants(t, 1, "the handshake fails: ", "")
	lbctl("", "cert", "check", "a.test", "--listener", "other").wants(t, 1, "", "listener other is not served")
	lbctl("", "cert", "check", "a.test/x").wants(t, 2, "", "HOST or HOST:PORT")
}

func TestCertUnusedAndDelete(t *testing.T) {
	node := &fakeNode{
		certs: func(*lbdv1.CertificateServiceGetStatusRequest) (*lbdv1.CertificateServiceGetStatusResponse, error) {
			return &lbdv1.CertificateServiceGetStatusResponse{Certificates: []*lbdv1.CertificateStatus{
				{Name: "shown", Listeners: []string{"https"}}, {Name: "client"}, {Name: "old", ShadowedBy: []string{"a.test: shown"}, ManagedExternally: true},
			}}, nil
		},
		get: func(r *lbdv1.GetRequest) (*lbdv1.GetResponse, error) {
			answer := &lbdv1.GetResponse{Resource: &lbdv1.Resource{Owner: "web"}, UsedBy: []string{"listeners/https"}}
			if r.GetName() == "client" {
				answer.UsedBy = []string{"pools/shop"}
			}
			return answer, nil
		},
		apply: func(*lbdv1.ApplyHeader, []*lbdv1.Resource) (*lbdv1.ApplyResponse, error) {
			return &lbdv1.ApplyResponse{Revision: 9, Changes: []*lbdv1.Change{{Action: actionDelete, Kind: "certificates", Name: "old"}}}, nil
		},
	}
	node.start(t)
	lbctl("", "cert", "unused", "-o", "name").wants(t, 0, "certificates/old\n", "")
	lbctl("", "cert", "unused", "-o", "wide").wants(t, 0, "by cert verbs  a.test: shown", "")
	lbctl("", "cert", "delete", "old", "-m", "gone").wants(t, 0, "certificates/old  deleted\nrevision 9: 1 change\n", "")
	var deletes []string
	for _, m := range node.requests {
		if part, ok := m.(*lbdv1.ApplyRequest); ok {
			deletes = append(deletes, part.GetResources().GetDeletes()...)
		}
	}
	if len(deletes) != 1 || deletes[0] != "certificates/old" {
		t.Errorf("deleted %v", deletes)
	}
}

// A person at a terminal is asked; no other file is a person.
func TestTerminal(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for _, in := range []*cli{{stdin: null}, {stdin: strings.NewReader("y")}} {
		if in.terminal() {
			t.Errorf("%T is a terminal", in.stdin)
		}
	}
}
