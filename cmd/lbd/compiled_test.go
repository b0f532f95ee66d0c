package main

import (
	"crypto/tls"
	"log/slog"
	"reflect"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"lbd/cluster/state"
	"lbd/lb"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

func stored(t *testing.T, revision int64, spec proto.Message) *raftv1.StoredResource {
	t.Helper()
	r, ok := state.Wrap("web", spec)
	if !ok {
		t.Fatalf("no kind for %T", spec)
	}
	r.Revision = revision
	return &raftv1.StoredResource{Resource: r}
}

func TestCompileListener(t *testing.T) {
	plain := compiledListener(t, stored(t, 3, &lbdv1.Listener{Name: "http", Addresses: []string{":80", "[::1]:81"}, Protocol: lbdv1.Protocol_PROTOCOL_HTTP}), "")
	if plain.config.TLS || plain.revision != 3 || !slices.Equal(plain.config.Addresses, []string{":80", "[::1]:81"}) {
		t.Errorf("compiled %+v", plain)
	}
	secure := compiledListener(t, stored(t, 4, &lbdv1.Listener{
		Name: "https", Addresses: []string{":443"}, Protocol: lbdv1.Protocol_PROTOCOL_HTTPS,
		Tls: &lbdv1.ListenerTls{MinVersion: lbdv1.TlsVersion_TLS_VERSION_TLS12, MaxVersion: lbdv1.TlsVersion_TLS_VERSION_TLS13, DefaultCertificate: "shop"},
	}), "127.0.0.1:8443")
	p := secure.policy
	if !secure.config.TLS || p.MinVersion != tls.VersionTLS12 || p.MaxVersion != tls.VersionTLS13 || p.DefaultCertificate != "shop" {
		t.Errorf("compiled %+v", secure)
	}
	if !slices.Equal(secure.config.Addresses, []string{"127.0.0.1:8443"}) {
		t.Errorf("addresses %v: this node's own is given", secure.config.Addresses)
	}
	if got := secure.key().String(); got != "listeners/https" {
		t.Errorf("key %s", got)
	}
	bare := compiledListener(t, stored(t, 1, &lbdv1.Listener{Name: "https", Protocol: lbdv1.Protocol_PROTOCOL_HTTPS}), "")
	if bare.policy.DefaultCertificate != "default" || bare.policy.MinVersion != 0 {
		t.Errorf("defaults %+v", bare.policy)
	}
}

func TestCompilePool(t *testing.T) {
	check := &lbdv1.HealthCheck{
		Check:    &lbdv1.HealthCheck_Http{Http: &lbdv1.HttpCheck{Path: "/up", Host: "shop.test", ExpectStatus: []string{"204"}}},
		Interval: durationpb.New(2 * time.Second), Timeout: durationpb.New(time.Second), Rise: 2, Fall: 3,
	}
	checked := withMembers(t, stored(t, 1, &lbdv1.Pool{Name: "p", HealthCheck: check, Backends: []*lbdv1.Backend{
		{Address: "10.0.0.1:80"}, {Address: "10.0.0.2:80", Weight: proto.Int32(0)}, {Address: "b.test:80", Weight: proto.Int32(7)},
	}}))
	var weights []int
	keys := map[string]bool{}
	for _, b := range checked.backends {
		weights = append(weights, b.weight)
		keys[b.key] = true
		if b.key != b.address || b.checkKey != b.check.Key() {
			t.Errorf("backend %s has key %q, its check %q", b.address, b.key, b.checkKey)
		}
	}
	if !slices.Equal(weights, []int{1, 0, 7}) || len(keys) != 3 {
		t.Errorf("weights %v, keys %v", weights, keys)
	}
	c := checked.backends[0].check
	if c.Interval != 2*time.Second || c.Timeout != time.Second || c.Rise != 2 || c.Fall != 3 || c.HTTP.Path != "/up" || c.HTTP.Host != "shop.test" || c.HTTP.Expect[0] != "204" {
		t.Errorf("check %+v %+v", c, c.HTTP)
	}
	unchecked := withMembers(t, stored(t, 1, &lbdv1.Pool{Name: "q", Backends: []*lbdv1.Backend{{Address: "10.0.0.1:80"}}}))
	if b := unchecked.backends[0]; b.check != nil || !keys[b.key] {
		t.Errorf("key %q: what a pool asks of a backend makes it another one", b.key)
	}
	secure := withMembers(t, stored(t, 1, &lbdv1.Pool{Name: "s", Backends: []*lbdv1.Backend{{Address: "10.0.0.1:80"}}, Tls: &lbdv1.BackendTls{}}))
	if b := secure.backends[0]; keys[b.key] {
		t.Errorf("a backend in TLS shares the key %q of one in the clear", b.key)
	}

	all := &compiled{pools: map[string]pool{"p": checked, "q": unchecked}}
	if n := len(all.checks()); n != 3 {
		t.Errorf("%d checks, want 3", n)
	}
	if a := all.questions(); len(a) != 3 || !a["b.test:80"] {
		t.Errorf("questions %v", a)
	}
}

func TestPoolConfigWithoutAddress(t *testing.T) {
	p := withMembers(t, stored(t, 1, &lbdv1.Pool{Name: "p", Backends: []*lbdv1.Backend{{Address: "10.0.0.1:80"}, {Address: "never.test:80"}}}))
	cfg := newCompiled().serveConfig(p)
	if !cfg.Backends[0].Address.IsValid() || cfg.Backends[1].Address.IsValid() || cfg.Backends[1].Name != "never.test:80" {
		t.Errorf("compiled %+v", cfg.Backends)
	}
}

func TestCompileRoute(t *testing.T) {
	r := compiledRoute(t, stored(t, 5, &lbdv1.Route{
		Name: "r", Listeners: []string{"http"}, Hosts: []string{"*.shop.test"},
		Matches: []*lbdv1.RouteMatch{
			{Path: &lbdv1.PathMatch{Match: &lbdv1.PathMatch_Exact{Exact: "/a"}}},
			{Path: &lbdv1.PathMatch{Match: &lbdv1.PathMatch_Prefix{Prefix: "/b"}}},
		},
		Action: &lbdv1.Route_Forward{Forward: &lbdv1.Forward{Pools: []*lbdv1.ForwardPool{{Pool: "p"}}}},
	}))
	want := []lb.Match{{Exact: "/a"}, {Prefix: "/b"}}
	if r.created != 5 || r.config.Forward.Pools[0].Pool != "p" || r.config.Respond != nil || !reflect.DeepEqual(r.config.Matches, want) {
		t.Errorf("compiled %+v", r)
	}
	r = compiledRoute(t, stored(t, 1, &lbdv1.Route{Name: "r", Action: &lbdv1.Route_Respond{Respond: &lbdv1.Respond{
		Status: 204, Body: "b", Headers: map[string]string{"X-C": "3", "X-A": "1", "X-B": "2"},
	}}}))
	if h := r.config.Respond.Headers; !slices.Equal(h, []lb.Header{{Name: "X-A", Value: "1"}, {Name: "X-B", Value: "2"}, {Name: "X-C", Value: "3"}}) {
		t.Errorf("headers %v: want the same order every time", h)
	}
}

func TestCompiledOrderAndClone(t *testing.T) {
	c := newCompiled()
	for name, revision := range map[string]int64{"young": 9, "b": 2, "a": 2, "old": 1} {
		c.routes[name] = route{created: revision, config: lb.RouteConfig{Name: name}}
	}
	var order []string
	for _, r := range c.oldestFirst() {
		order = append(order, r.Name)
	}
	if !slices.Equal(order, []string{"old", "a", "b", "young"}) {
		t.Errorf("order %v", order)
	}
	next := c.clone()
	next.remove(state.Key{Kind: state.Routes, Name: "old"})
	next.listeners["http"] = listener{}
	if len(c.routes) != 4 || len(c.listeners) != 0 {
		t.Error("a change of the next form reaches the one that is served")
	}
	if got := len(next.keys()); got != 4 {
		t.Errorf("%d keys, want 3 routes and a listener", got)
	}
}

func compiledRoute(t *testing.T, s *raftv1.StoredResource) route {
	t.Helper()
	r, err := compileRoute(s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func compiledListener(t *testing.T, s *raftv1.StoredResource, override string) listener {
	t.Helper()
	l, err := compileListener(s, override)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// withMembers is a pool with backends where no name has ever been answered.
func withMembers(t *testing.T, s *raftv1.StoredResource) pool {
	t.Helper()
	r := newResolverWith((&names{}).lookup, slog.New(slog.DiscardHandler))
	defer r.close()
	p := compilePool(s)
	p.backends = newCompiled().members(p, r, nil)
	return p
}
