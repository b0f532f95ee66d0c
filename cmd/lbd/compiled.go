package main

import (
	"cmp"
	"crypto/tls"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

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
	policies     map[string]routePolicy
}

type listener struct {
	revision int64
	config   lb.ListenerConfig
	policy   tlsterm.Policy
	err      error // why it could not be bound when that was tried last
}

func (l listener) key() state.Key { return state.Key{Kind: state.Listeners, Name: l.config.Name} }

type pool struct {
	connectTimeout time.Duration
	backends       []backend
	served         *lb.Pool
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
	config   lb.RouteConfig // without what policies say: they change on their own
	policies []string
}

type routePolicy struct {
	bodyBytesMax int64 // 0: no limit
}

func newCompiled() *compiled {
	return &compiled{
		listeners:    map[string]listener{},
		certificates: map[string]*tlsterm.Certificate{},
		pools:        map[string]pool{},
		routes:       map[string]route{},
		policies:     map[string]routePolicy{},
	}
}

func compileListener(s *raftv1.StoredResource, override string) listener {
	l := s.GetResource().GetListener()
	c := listener{
		revision: s.GetResource().GetRevision(),
		config:   listenerConfig(l),
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

func listenerConfig(l *lbdv1.Listener) lb.ListenerConfig {
	t, limits := l.GetTimeouts(), l.GetLimits()
	return lb.ListenerConfig{
		Name:      l.GetName(),
		Addresses: l.GetAddresses(),
		TLS:       l.GetProtocol() == lbdv1.Protocol_PROTOCOL_HTTPS,
		Timeouts: lb.Timeouts{
			Handshake:     t.GetHandshake().AsDuration(),
			RequestHead:   t.GetRequestHead().AsDuration(),
			KeepAliveIdle: t.GetKeepAliveIdle().AsDuration(),
			WriteStall:    t.GetWriteStall().AsDuration(),
		},
		Limits: lb.Limits{
			Connections:   int(limits.GetConnections()),
			Requests:      int(limits.GetRequestsPerConnection()),
			ConnectionAge: timeout(limits.GetConnectionAge()),
			HeadBytes:     int(limits.GetHeadBytes()),
			Fields:        int(limits.GetFields()),
		},
		Trusted:     networks(l.GetTrustedProxies()),
		Forwarded:   l.GetForwarded(),
		Underscores: l.GetAllowUnderscores(),
		HealthPath:  l.GetHealthPath(),
	}
}

// timeout is 0 where the document leaves the default.
func timeout(t *lbdv1.Timeout) time.Duration {
	if t.GetDisabled() {
		return lb.Off
	}
	return t.GetDuration().AsDuration()
}

// networks are what Validate has let pass.
func networks(texts []string) []netip.Prefix {
	var all []netip.Prefix
	for _, text := range texts {
		if p, err := state.ParseNetwork(text); err == nil {
			all = append(all, p)
		}
	}
	return all
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
	c := pool{connectTimeout: p.GetConnectTimeout().AsDuration()}
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
	c := lb.PoolConfig{Name: name, ConnectTimeout: p.connectTimeout}
	for _, b := range p.backends {
		c.Backends = append(c.Backends, lb.BackendConfig{Key: b.key, Name: b.address, Address: r.address(b.address), Weight: b.weight})
	}
	return c
}

func compileRoute(s *raftv1.StoredResource) route {
	r := s.GetResource().GetRoute()
	c := lb.RouteConfig{Name: r.GetName(), Listeners: r.GetListeners(), Hosts: r.GetHosts(), EncodedSlash: r.GetAllowEncodedSlash()}
	for _, m := range r.GetMatches() {
		c.Matches = append(c.Matches, lb.Match{Exact: m.GetPath().GetExact(), Prefix: m.GetPath().GetPrefix()})
	}
	switch a := r.GetAction().(type) {
	case *lbdv1.Route_Forward:
		c.Forward = compileForward(a.Forward)
	case *lbdv1.Route_Respond:
		c.Respond = &lb.Respond{Status: int(a.Respond.GetStatus()), Body: a.Respond.GetBody()}
		for name, value := range a.Respond.GetHeaders() {
			c.Respond.Headers = append(c.Respond.Headers, lb.Header{Name: name, Value: value})
		}
		slices.SortFunc(c.Respond.Headers, func(a, b lb.Header) int { return strings.Compare(a.Name, b.Name) })
	}
	return route{revision: s.GetResource().GetRevision(), config: c, policies: r.GetPolicies()}
}

func compileForward(f *lbdv1.Forward) *lb.Forward {
	t, r := f.GetTimeouts(), f.GetRetry()
	c := &lb.Forward{
		Pool: f.GetPools()[0].GetPool(),
		Timeouts: lb.RouteTimeouts{
			FirstByte: timeout(t.GetFirstByte()),
			BodyIdle:  timeout(t.GetBodyIdle()),
			Request:   timeout(t.GetRequest()),
			Try:       r.GetPerTryTimeout().AsDuration(),
			Tunnel:    timeout(t.GetTunnel()),
		},
		Retry: lb.Retry{
			Attempts: int(r.GetAttempts()), NonIdempotent: r.GetNonIdempotent(), BudgetPercent: int(r.GetBudgetPercent()),
		},
	}
	if r != nil && r.Attempts != nil && r.GetAttempts() == 0 {
		c.Retry.Attempts = -1 // said so, not left out
	}
	for _, cause := range r.GetOn() {
		c.Retry.On |= retryCauses[cause]
	}
	return c
}

var retryCauses = map[lbdv1.RetryCause]lb.RetryOn{
	lbdv1.RetryCause_RETRY_CAUSE_CONNECT_FAILURE:       lb.OnConnectFailure,
	lbdv1.RetryCause_RETRY_CAUSE_RESET_BEFORE_RESPONSE: lb.OnReset,
	lbdv1.RetryCause_RETRY_CAUSE_FIRST_BYTE_TIMEOUT:    lb.OnFirstByteTimeout,
	lbdv1.RetryCause_RETRY_CAUSE_STATUS_5XX:            lb.OnStatus5xx,
}

func compilePolicy(s *raftv1.StoredResource) routePolicy {
	return routePolicy{bodyBytesMax: s.GetResource().GetPolicy().GetBodySize().GetMaxBytes()}
}

// withPolicies is the route as it is served: of several limits the least counts.
func (c *compiled) withPolicies(r route) lb.RouteConfig {
	config := r.config
	for _, name := range r.policies {
		if limit := c.policies[name].bodyBytesMax; limit > 0 && (config.BodyBytesMax == 0 || limit < config.BodyBytesMax) {
			config.BodyBytesMax = limit
		}
	}
	return config
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
		configs = append(configs, c.withPolicies(r))
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
		policies:     maps.Clone(c.policies),
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
	case state.Policies:
		delete(c.policies, k.Name)
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
	for name := range c.policies {
		out = append(out, state.Key{Kind: state.Policies, Name: name})
	}
	return out
}
