package main

import (
	"cmp"
	"context"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lbd/cluster/state"
	"lbd/lb"
	lbdv1 "lbd/proto/lbd/v1"
	tlsterm "lbd/tls"
)

// testClient is whom a test comes from unless it says otherwise: nobody (RFC 5737).
const testClient = "192.0.2.1"

// TestRoute implements rpc.Observer: the walk of a request through listener, certificate, route, pool and backend, with the reason of
// each step. Nothing is sent, counted or changed.
func (a *appliance) TestRoute(_ context.Context, req *lbdv1.TestRouteRequest) (*lbdv1.TestRouteResponse, error) {
	t, err := newRouteTest(req)
	if err != nil {
		return nil, err
	}
	world, live := a.view.Load(), true
	if n := req.GetRevision(); n > 0 && n != world.revision {
		old, err := a.node.State().At(n)
		if err != nil {
			return nil, err
		}
		if world, err = a.offline(old); err != nil {
			return nil, status.Errorf(codes.FailedPrecondition, "make the table of revision %d: %v", n, err)
		}
		live = false
	}
	out := &lbdv1.TestRouteResponse{Revision: world.revision}
	l, err := a.chooseListener(world, t, out)
	if err != nil {
		return nil, err
	}
	if l.config.TLS {
		out.Certificate = a.chooseCertificate(world, l, t, live)
	}
	if out.GetCertificate() != nil && out.GetCertificate().GetName() == "" {
		out.Action, out.Reason = "refused", "the handshake ends with unrecognized_name"
		return out, nil
	}
	t.probe.TLS, t.probe.Trusted, t.probe.HealthPath = l.config.TLS, l.config.Trusted, l.config.HealthPath
	t.probe.Limits, t.probe.ResponseHeaders = l.config.Limits, l.config.ResponseHeaders
	explain(out, world.table.Explain(l.config.Name, &t.probe), t)
	return out, nil
}

// routeTest is a request as it was asked for.
type routeTest struct {
	req   *lbdv1.TestRouteRequest
	url   *url.URL
	port  string
	sni   string
	probe lb.Probe
}

func newRouteTest(req *lbdv1.TestRouteRequest) (*routeTest, error) {
	u, err := url.Parse(req.GetUrl())
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, status.Errorf(codes.InvalidArgument, "url %q: want http://HOST[:PORT]/PATH or https://…", req.GetUrl())
	}
	client, err := netip.ParseAddr(cmp.Or(req.GetClientAddress(), testClient))
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "client_address %q: want an IP address", req.GetClientAddress())
	}
	t := &routeTest{req: req, url: u, port: u.Port(), sni: cmp.Or(req.GetSni(), u.Hostname())}
	if t.port == "" {
		t.port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	if _, err := netip.ParseAddr(t.sni); err == nil {
		t.sni = "" // an address is no server name (RFC 6066 section 3)
	}
	_, target, _ := strings.Cut(req.GetUrl(), "://")
	target, _, _ = strings.Cut(target, "#")
	at := strings.IndexAny(target, "/?")
	if at < 0 {
		target = "/"
	} else if target = target[at:]; target[0] == '?' {
		target = "/" + target
	}
	t.probe = lb.Probe{Method: req.GetMethod(), Host: u.Host, Target: target, ClientAddress: client, Time: time.Now()}
	for _, h := range req.GetHeaders() {
		if strings.EqualFold(h.GetName(), "host") {
			t.probe.Host = h.GetValue()
			continue
		}
		t.probe.Headers = append(t.probe.Headers, lb.Header{Name: h.GetName(), Value: h.GetValue()})
	}
	return t, nil
}

// offline compiles another state for questions: nothing of it is served, and its backends are not looked at. What cannot be compiled
// is left out, as it would be if the state were served.
func (a *appliance) offline(s *state.State) (*compiled, error) {
	c := newCompiled()
	c.revision = s.Revision()
	for _, kind := range state.Kinds() {
		for stored := range s.All(kind) {
			k, _ := state.KeyOf(stored.GetResource())
			_ = a.compileOne(c, s.ClusterID(), k, stored)
		}
	}
	c.compileRules(nil)
	var pools []*lb.Pool
	for name := range c.pools {
		pools = append(pools, lb.NewOfflinePool(name))
	}
	var err error
	c.table, err = lb.NewTable(c.oldestFirst(), pools)
	return c, err
}

// chooseListener takes the one that is named, else the one with the URL's port, else the only one with its protocol.
func (a *appliance) chooseListener(world *compiled, t *routeTest, out *lbdv1.TestRouteResponse) (listener, error) {
	secure := t.url.Scheme == "https"
	var named, byPort, byProtocol []string
	for _, name := range slices.Sorted(maps.Keys(world.listeners)) {
		l := world.listeners[name]
		if name == t.req.GetListener() {
			named = append(named, name)
		}
		if l.config.TLS != secure {
			continue
		}
		byProtocol = append(byProtocol, name)
		if slices.ContainsFunc(a.addressesOf(l), func(address string) bool {
			_, port, _ := net.SplitHostPort(address)
			return port == t.port
		}) {
			byPort = append(byPort, name)
		}
	}
	for _, choice := range []struct {
		names  []string
		reason string
	}{{named, "as asked for"}, {byPort, "it has port " + t.port}, {byProtocol, "the only one for " + t.url.Scheme}} {
		if len(choice.names) == 1 && (t.req.GetListener() == "" || len(named) == 1) {
			l := world.listeners[choice.names[0]]
			out.Listener = &lbdv1.ListenerDecision{Name: l.config.Name, Address: strings.Join(a.addressesOf(l), ", "), Reason: choice.reason}
			return l, nil
		}
	}
	if name := t.req.GetListener(); name != "" {
		return listener{}, status.Errorf(codes.NotFound, "there is no listener named `%s`", name)
	}
	if len(byProtocol) == 0 {
		return listener{}, status.Errorf(codes.NotFound, "no listener takes %s", t.url.Scheme)
	}
	return listener{}, status.Errorf(codes.InvalidArgument, "several listeners take %s (%s): name one", t.url.Scheme, strings.Join(byProtocol, ", "))
}

func (a *appliance) addressesOf(l listener) []string {
	if bound := texts(a.server.Addresses(l.config.Name)); len(bound) > 0 {
		return bound
	}
	return l.config.Addresses
}

func (a *appliance) chooseCertificate(world *compiled, l listener, t *routeTest, live bool) *lbdv1.CertificateDecision {
	set := a.certificates.Current()
	if !live {
		var all []*tlsterm.Certificate
		for _, c := range world.certificates {
			all = append(all, c.Certificate)
		}
		set = tlsterm.NewSet(all)
	}
	choice, err := set.Choose(t.sni, t.req.GetRsaOnly(), world.offered(l), time.Now())
	if err != nil {
		return &lbdv1.CertificateDecision{Reason: err.Error()}
	}
	out := &lbdv1.CertificateDecision{Reason: choice.Reason}
	if c := choice.Certificate; c != nil {
		out.Name, out.Serial, out.KeyType = c.Name(), c.Serial(), c.KeyType()
	}
	return out
}

// explain turns the table's words into the API's, and asks the pool.
func explain(out *lbdv1.TestRouteResponse, e *lb.Explanation, t *routeTest) {
	out.Route, out.RouteReason = e.Route, e.Reason
	out.Action, out.Status, out.Location = e.Action, int32(e.Status), e.Location
	for _, loser := range e.Losers {
		out.Losers = append(out.Losers, &lbdv1.RouteLoser{Route: loser.Route, Reason: loser.Reason})
	}
	if e.Refusal != lb.OK {
		out.Reason = refusalWords(e)
	}
	out.RequestHeaders, out.ResponseHeaders = headerChanges(e.RequestHeaders), headerChanges(e.ResponseHeaders)
	if e.Action != "forward" {
		return
	}
	out.BackendHost, out.BackendPath, out.Retry = e.BackendHost, e.BackendPath, e.Retry
	for _, s := range e.Timeouts {
		out.Timeouts = append(out.Timeouts, &lbdv1.Setting{Name: s.Name, Value: s.Value})
	}
	for _, p := range e.Pools {
		out.Pools = append(out.Pools, &lbdv1.PoolDecision{Name: p.Pool, SharePercent: p.Percent})
	}
	if e.Pool == nil {
		return
	}
	out.Pool = e.Pool.Name()
	p := e.Pool.Explain(t.probe.Headers, e.Client)
	out.Backend, out.BackendReason = p.Backend, p.Reason
	for _, b := range p.Backends {
		out.Backends = append(out.Backends, &lbdv1.BackendDecision{Address: b.Name, Eligible: b.Takes, Reason: b.Why, Weight: int32(b.Weight)})
	}
}

// refusalWords are reason and detail, and what more there is to say.
func refusalWords(e *lb.Explanation) string {
	words := e.Refusal.String()
	switch {
	case e.Action == "denied": // the detail is the first word of why
		return words + ": " + e.Why
	case e.Detail != "" && e.Detail != words:
		words += ": " + e.Detail
	}
	if e.Why != "" {
		words += "; " + e.Why
	}
	return words
}

func headerChanges(changes []lb.HeaderChange) []*lbdv1.HeaderChange {
	var out []*lbdv1.HeaderChange
	for _, c := range changes {
		out = append(out, &lbdv1.HeaderChange{Action: c.Action, Name: c.Name, Value: c.Value})
	}
	return out
}
