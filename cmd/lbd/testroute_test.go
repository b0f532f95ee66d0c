package main

import (
	"fmt"
	"strings"
	"testing"

	lbdv1 "lbd/proto/lbd/v1"
)

func (r *rig) walk(req *lbdv1.TestRouteRequest) *lbdv1.TestRouteResponse {
	r.t.Helper()
	out, err := r.TestRoute(r.t.Context(), req)
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

func TestRouteWalk(t *testing.T) {
	r := newRig(t)
	old := r.propose(
		&lbdv1.Pool{Name: "p", Backends: []*lbdv1.Backend{{Address: "10.0.0.1:80"}, {Address: "10.0.0.2:80", Weight: new(int32)}}},
		&lbdv1.Route{Name: "shop", Listeners: []string{"http", "https"}, Hosts: []string{"shop.test"}, Action: &lbdv1.Route_Forward{Forward: &lbdv1.Forward{Pools: []*lbdv1.ForwardPool{{Pool: "p"}}}}},
	)
	r.publish()
	out := r.walk(&lbdv1.TestRouteRequest{Url: "https://shop.test/a?b#c"})
	if out.GetListener().GetName() != "https" || out.GetCertificate().GetName() != "default" || out.GetCertificate().GetKeyType() != "ECDSA_P256" {
		t.Errorf("listener %v, certificate %v", out.GetListener(), out.GetCertificate())
	}
	if out.GetRoute() != "shop" || out.GetAction() != "forward" || out.GetPool() != "p" || out.GetBackend() != "10.0.0.1:80" || out.GetBackendPath() != "/a?b" {
		t.Errorf("walk %v", out)
	}
	if b := out.GetBackends(); len(b) != 2 || !b[0].GetEligible() || b[1].GetEligible() || b[1].GetReason() == "" {
		t.Errorf("backends %v", b)
	}
	if out := r.walk(&lbdv1.TestRouteRequest{Url: "http://other.test", Headers: []*lbdv1.HeaderField{{Name: "HOST", Value: "shop.test"}}}); out.GetRoute() != "shop" {
		t.Errorf("the Host field is not what counts: %v", out)
	}

	// Another revision is compiled for the question, whatever of it cannot be.
	newest := r.delete("routes/shop")
	r.publish()
	if out := r.walk(&lbdv1.TestRouteRequest{Url: "http://shop.test/"}); out.GetRoute() != "default" || out.GetRevision() != newest {
		t.Errorf("walk %v", out)
	}
	sealer := r.keys.ring
	r.keys.ring = mustRing(t)
	out = r.walk(&lbdv1.TestRouteRequest{Url: "http://shop.test/", Revision: old})
	r.keys.ring = sealer
	if out.GetRoute() != "shop" || out.GetPool() != "p" || out.GetRevision() != old || out.GetBackend() != "" {
		t.Errorf("revision %d: %v", old, out)
	}
	if _, err := r.TestRoute(t.Context(), &lbdv1.TestRouteRequest{Url: "http://shop.test/", Revision: newest + 1}); err == nil || !strings.Contains(err.Error(), "the newest is") {
		t.Errorf("a revision to come: %v", err)
	}
}

func TestRouteWalkOddly(t *testing.T) {
	r := newRig(t)
	for text, req := range map[string]*lbdv1.TestRouteRequest{
		"want http://HOST":           {Url: "shop.test/a"},
		"url \"http://\"":            {Url: "http://"},
		"url \"ftp://a\"":            {Url: "ftp://a"},
		"url \"http://[::1\"":        {Url: "http://[::1"},
		"client_address \"x\"":       {Url: "http://a.test/", ClientAddress: "x"},
		"no listener named `none`":   {Url: "http://a.test/", Listener: "none"},
		"there is no revision 1000:": {Url: "http://a.test/", Revision: 1000},
	} {
		if _, err := r.TestRoute(t.Context(), req); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%v: %v", req, err)
		}
	}
	for _, req := range []*lbdv1.TestRouteRequest{
		{Url: "http://a.test/", Method: "no method"},
		{Url: "http://a.test/ /x"},
		{Url: "http://a.test/%zz"},
		{Url: "http://a.test/", Headers: []*lbdv1.HeaderField{{}, {Name: "a b", Value: "x\r\ny"}}},
		{Url: "http://a.test/" + strings.Repeat("x", 1<<20)},
		{Url: "https://[::1]:8443/", Sni: "."},
		{Url: "https://a.test/", Method: "CONNECT"},
		{Url: "https://a.test?q"},
	} {
		out, err := r.TestRoute(t.Context(), req) // none of it may end the node
		if err == nil && out.GetAction() == "" {
			t.Errorf("%.60s: no answer and no error", req.GetUrl())
		}
	}
	r.propose(httpListener("second", free(t)))
	r.publish()
	if _, err := r.TestRoute(t.Context(), &lbdv1.TestRouteRequest{Url: "http://a.test/"}); err == nil || !strings.Contains(err.Error(), "http, second") {
		t.Errorf("several listeners: %v", err)
	}
	// A listener without any route, and one whose clients are refused in the handshake.
	if out := r.walk(&lbdv1.TestRouteRequest{Url: "http://a.test/", Listener: "second"}); out.GetAction() != "refused" || out.GetReason() == "" {
		t.Errorf("walk %v", out)
	}
	r.propose(&lbdv1.Listener{Name: "https", Addresses: []string{":8443"}, Protocol: lbdv1.Protocol_PROTOCOL_HTTPS, Tls: &lbdv1.ListenerTls{StrictSni: true}})
	r.publish()
	if out := r.walk(&lbdv1.TestRouteRequest{Url: "https://a.test/"}); out.GetAction() != "refused" || !strings.Contains(out.GetReason(), "unrecognized_name") {
		t.Errorf("walk %v", out)
	}
}

// TestRouteWalkListener: what a listener says of heads and of answers, and what a policy says of clients, is in the walk.
func TestRouteWalkListener(t *testing.T) {
	r := newRig(t)
	l := httpListener("second", free(t))
	l.Limits = &lbdv1.ListenerLimits{Fields: 16}
	l.ResponseHeaders = &lbdv1.HeaderChanges{Set: map[string]string{"X-A": "listener", "X-B": "listener"}}
	r.propose(l,
		&lbdv1.AddressList{Name: "bad", Addresses: []string{"198.51.100.0/24"}},
		&lbdv1.Policy{Name: "not-bad", Rule: &lbdv1.Policy_Addresses{Addresses: &lbdv1.Addresses{
			Deny: []string{"10.0.0.0/8"}, DenyLists: []string{"bad"}, DenyExcept: []string{"10.1.2.3/32"},
		}}},
		&lbdv1.Route{Name: "all", Listeners: []string{"second"}, Policies: []string{"not-bad"}, Action: &lbdv1.Route_Respond{Respond: &lbdv1.Respond{Status: 200}},
			ResponseHeaders: &lbdv1.HeaderChanges{Set: map[string]string{"x-b": "route"}}},
	)
	r.publish()
	walk := func(client string, fields int) *lbdv1.TestRouteResponse {
		req := &lbdv1.TestRouteRequest{Url: "http://a.test/", Listener: "second", ClientAddress: client}
		for range fields {
			req.Headers = append(req.Headers, &lbdv1.HeaderField{Name: "X", Value: "y"})
		}
		return r.walk(req)
	}
	for _, tc := range []struct {
		client string
		fields int
		want   string
	}{
		{"10.1.2.3", 15, "respond 200 "},
		{"10.1.2.3", 16, "refused 431 bad_request: too_many_fields; the listener takes heads of at most 16 fields and 65536 bytes"},
		{"10.1.2.4", 0, "denied 403 denied: address 10.1.2.4 is in 10.0.0.0/8, which policy not-bad denies"},
		{"198.51.100.7", 0, "denied 403 denied: address 198.51.100.7 is in 198.51.100.0/24 of address list bad, which policy not-bad denies"},
	} {
		out := walk(tc.client, tc.fields)
		if got := fmt.Sprint(out.GetAction(), " ", out.GetStatus(), " ", out.GetReason()); got != tc.want {
			t.Errorf("%s, %d fields: %s, want %s", tc.client, tc.fields, got, tc.want)
		}
	}
	var changes []string
	for _, c := range walk("10.1.2.3", 0).GetResponseHeaders() {
		changes = append(changes, c.GetAction()+" "+c.GetName()+": "+c.GetValue())
	}
	if got := strings.Join(changes, ", "); got != "set X-A: listener, set x-b: route" {
		t.Errorf("changes: %s", got)
	}
}
