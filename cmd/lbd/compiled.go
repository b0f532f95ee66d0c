package main

import (
	"cmp"
	"crypto/tls"
	"maps"
	"slices"
	"strings"

	"lbd/cluster/state"
	"lbd/health"
	"lbd/lb"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
	tlsterm "lbd/tls"
)

// compiled is what is served of one revision: the second shape of each noun. Values are kept from revision to revision
// as long as the resource that they come from stays the same.
type compiled struct {
	revision     int64
	listeners    map[string]listener
	certificates map[string]*tlsterm.Certificate
	pools        map[string]pool
	routes       map[string]route
}

type listener struct {
	revision int64
	config   lb.ListenerConfig
	policy   tlsterm.Policy
	err      error // why it could not be bound when that was tried last
}

func (l listener) key() state.Key { return state.Key{Kind: state.Listeners, Name: l.config.Name} }

type pool struct {
	backends []backend
	served   *lb.Pool
}

// backend is one backend of a pool. Its key is what makes it the same backend after a change.
type backend struct {
	address string
	weight  int
	check   *health.Check
	key     string
}

// checkKey names the backend's check; only for one that has a check.
func (b backend) checkKey() health.Key { return health.Key(b.key) }

type route struct {
	revision int64
	config   lb.RouteConfig
}

func newCompiled() *compiled {
	return &compiled{
		listeners:    map[string]listener{},
		certificates: map[string]*tlsterm.Certificate{},
		pools:        map[string]pool{},
		routes:       map[string]route{},
	}
}

func compileListener(s *raftv1.StoredResource, override string) listener {
	l := s.GetResource().GetListener()
	c := listener{
		revision: s.GetResource().GetRevision(),
		config:   lb.ListenerConfig{Name: l.GetName(), Addresses: l.GetAddresses(), TLS: l.GetProtocol() == lbdv1.Protocol_PROTOCOL_HTTPS},
		policy: tlsterm.Policy{
			MinVersion:         tlsVersion(l.GetTls().GetMinVersion()),
			MaxVersion:         tlsVersion(l.GetTls().GetMaxVersion()),
			DefaultCertificate: cmp.Or(l.GetTls().GetDefaultCertificate(), "default"),
		},
	}
	if override != "" {
		c.config.Addresses = []string{override}
	}
	return c
}

func tlsVersion(v lbdv1.TlsVersion) uint16 {
	switch v {
	case lbdv1.TlsVersion_TLS_VERSION_TLS12:
		return tls.VersionTLS12
	case lbdv1.TlsVersion_TLS_VERSION_TLS13:
		return tls.VersionTLS13
	}
	return 0
}

func compilePool(s *raftv1.StoredResource) pool {
	p := s.GetResource().GetPool()
	var c pool
	for _, b := range p.GetBackends() {
		weight := 1
		if b.Weight != nil {
			weight = int(b.GetWeight())
		}
		be := backend{address: b.GetAddress(), weight: weight, check: compileCheck(b.GetAddress(), p.GetHealthCheck()), key: "unchecked " + b.GetAddress()}
		if be.check != nil {
			be.key = string(be.check.Key())
		}
		c.backends = append(c.backends, be)
	}
	return c
}

func compileCheck(address string, h *lbdv1.HealthCheck) *health.Check {
	if h == nil {
		return nil
	}
	c := &health.Check{
		Address:  address,
		Interval: h.GetInterval().AsDuration(),
		Timeout:  h.GetTimeout().AsDuration(),
		Rise:     int(h.GetRise()),
		Fall:     int(h.GetFall()),
	}
	if web := h.GetHttp(); web != nil {
		c.HTTP = &health.HTTP{Path: web.GetPath(), Host: web.GetHost(), Expect: web.GetExpectStatus()}
	}
	return c
}

// poolConfig is a pool with the addresses that its backends have now.
func (p pool) poolConfig(name string, r *resolver) lb.PoolConfig {
	c := lb.PoolConfig{Name: name}
	for _, b := range p.backends {
		c.Backends = append(c.Backends, lb.BackendConfig{Key: b.key, Name: b.address, Address: r.address(b.address), Weight: b.weight})
	}
	return c
}

func compileRoute(s *raftv1.StoredResource) route {
	r := s.GetResource().GetRoute()
	c := lb.RouteConfig{Name: r.GetName(), Listeners: r.GetListeners(), Hosts: r.GetHosts()}
	for _, m := range r.GetMatches() {
		c.Matches = append(c.Matches, lb.Match{Exact: m.GetPath().GetExact(), Prefix: m.GetPath().GetPrefix()})
	}
	switch a := r.GetAction().(type) {
	case *lbdv1.Route_Forward:
		c.Forward = &lb.Forward{Pool: a.Forward.GetPools()[0].GetPool()}
	case *lbdv1.Route_Respond:
		c.Respond = &lb.Respond{Status: int(a.Respond.GetStatus()), Body: a.Respond.GetBody()}
		for name, value := range a.Respond.GetHeaders() {
			c.Respond.Headers = append(c.Respond.Headers, lb.Header{Name: name, Value: value})
		}
		slices.SortFunc(c.Respond.Headers, func(a, b lb.Header) int { return strings.Compare(a.Name, b.Name) })
	}
	return route{revision: s.GetResource().GetRevision(), config: c}
}

// oldestFirst orders routes as the table wants them: where two cannot be told apart the older one wins.
func (c *compiled) oldestFirst() []lb.RouteConfig {
	all := make([]route, 0, len(c.routes))
	for _, r := range c.routes {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b route) int {
		return cmp.Or(cmp.Compare(a.revision, b.revision), strings.Compare(a.config.Name, b.config.Name))
	})
	configs := make([]lb.RouteConfig, 0, len(all))
	for _, r := range all {
		configs = append(configs, r.config)
	}
	return configs
}

// checks are the health checks of all pools.
func (c *compiled) checks() map[health.Key]health.Check {
	out := map[health.Key]health.Check{}
	for _, p := range c.pools {
		for _, b := range p.backends {
			if b.check != nil {
				out[b.checkKey()] = *b.check
			}
		}
	}
	return out
}

// addresses are all backends' addresses as configured.
func (c *compiled) addresses() map[string]bool {
	out := map[string]bool{}
	for _, p := range c.pools {
		for _, b := range p.backends {
			out[b.address] = true
		}
	}
	return out
}

// clone copies the maps; the values are shared.
func (c *compiled) clone() *compiled {
	return &compiled{
		revision:     c.revision,
		listeners:    maps.Clone(c.listeners),
		certificates: maps.Clone(c.certificates),
		pools:        maps.Clone(c.pools),
		routes:       maps.Clone(c.routes),
	}
}

func (c *compiled) remove(k state.Key) {
	switch k.Kind {
	case state.Listeners:
		delete(c.listeners, k.Name)
	case state.Certificates:
		delete(c.certificates, k.Name)
	case state.Pools:
		delete(c.pools, k.Name)
	case state.Routes:
		delete(c.routes, k.Name)
	}
}

// keys are the resources that are compiled.
func (c *compiled) keys() []state.Key {
	var out []state.Key
	for name := range c.listeners {
		out = append(out, state.Key{Kind: state.Listeners, Name: name})
	}
	for name := range c.certificates {
		out = append(out, state.Key{Kind: state.Certificates, Name: name})
	}
	for name := range c.pools {
		out = append(out, state.Key{Kind: state.Pools, Name: name})
	}
	for name := range c.routes {
		out = append(out, state.Key{Kind: state.Routes, Name: name})
	}
	return out
}
