package main

import (
	"cmp"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"lbd/health"
	"lbd/lb"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
	tlsterm "lbd/tls"
)

// pool is a pool before its addresses are known: what DNS, trust bundles and overrides say comes in when it is served.
type pool struct {
	spec     *lbdv1.Pool
	owner    string
	named    bool          // DNS is asked for some of its backends
	config   lb.PoolConfig // without backends and TLS
	backends []backend     // as served last
	served   *lb.Pool
}

// backend is one backend of a pool. Its key is what makes it the same backend after a change.
type backend struct {
	address string         // as configured, or as discovered
	asked   string         // what DNS is asked for it; the address itself where there is nothing to ask, and where it was discovered
	dial    netip.AddrPort // where it answers now; zero: nowhere yet
	weight  int
	backup  bool
	check   *health.Check
	// checkKey is the check's; key tells the backend from others, see backendKey.
	checkKey health.Key
	down     bool // as its check says
	key      string
	set      override
}

func compilePool(s *raftv1.StoredResource) pool {
	p := s.GetResource().GetPool()
	conns := p.GetConnections()
	c := lb.PoolConfig{
		Name:               p.GetName(),
		Balance:            balances[p.GetBalance()],
		HashOn:             lb.HashOn{Header: strings.ToLower(p.GetHashOn().GetHeader()), Cookie: p.GetHashOn().GetCookie()},
		ConnectTimeout:     p.GetConnectTimeout().AsDuration(),
		IdleTimeout:        conns.GetIdleTimeout().AsDuration(),
		MaxPerBackend:      int(conns.GetMaxPerBackend()),
		ConnectionRequests: int(conns.GetRequests()),
		ConnectionAge:      conns.GetAge().AsDuration(),
		SlowStart:          p.GetSlowStart().AsDuration(),
		DrainTimeout:       cmp.Or(p.GetDrainTimeout().AsDuration(), drainTimeout),
		FailOpen:           int(p.GetFailOpen().GetBelowPercent()),
	}
	if conns != nil && conns.IdlePerBackend != nil {
		c.IdlePerBackend = cmp.Or(int(conns.GetIdlePerBackend()), -1) // 0 is said so, not left out
	}
	if q := p.GetQueue(); q != nil {
		c.Queue = &lb.Queue{Length: cmp.Or(int(q.GetLength()), queueLength), Timeout: cmp.Or(q.GetTimeout().AsDuration(), queueTimeout)}
	}
	if sp := p.GetSessionPersistence(); sp != nil {
		c.Persistence = &lb.SessionPersistence{
			Cookie: sp.GetCookie(), SameSite: sameSites[sp.GetSameSite()],
			IdleTimeout: sp.GetIdleTimeout().AsDuration(), AbsoluteTimeout: sp.GetAbsoluteTimeout().AsDuration(),
		}
	}
	if e := p.GetEjection(); e != nil {
		c.Ejection = &lb.Ejection{
			ConsecutiveErrors: cmp.Or(int(e.GetConsecutiveErrors()), ejectionErrors),
			BaseTime:          cmp.Or(e.GetBaseTime().AsDuration(), ejectionTime),
			MaxPercent:        cmp.Or(int(e.GetMaxPercent()), ejectionPercent),
		}
	}
	named := p.GetDiscovery() != nil || slices.ContainsFunc(p.GetBackends(), func(b *lbdv1.Backend) bool {
		_, literal := parseLiteral(b.GetAddress())
		return !literal
	})
	return pool{spec: p, owner: s.GetResource().GetOwner(), named: named, config: c}
}

// The defaults of a pool, as the resource model has them.
const (
	drainTimeout          = time.Minute
	queueLength           = 100
	queueTimeout          = 2 * time.Second
	ejectionErrors        = 5
	ejectionTime          = 30 * time.Second
	ejectionPercent       = 50
	maintenanceRetryAfter = time.Minute
)

var balances = map[lbdv1.Balance]lb.Balance{
	lbdv1.Balance_BALANCE_LEAST_CONNECTIONS: lb.LeastConnections,
	lbdv1.Balance_BALANCE_P2C_EWMA:          lb.P2CEWMA,
	lbdv1.Balance_BALANCE_MAGLEV:            lb.Maglev,
}

var sameSites = map[lbdv1.SameSite]string{
	lbdv1.SameSite_SAME_SITE_UNSPECIFIED: "Lax",
	lbdv1.SameSite_SAME_SITE_LAX:         "Lax",
	lbdv1.SameSite_SAME_SITE_STRICT:      "Strict",
	lbdv1.SameSite_SAME_SITE_NONE:        "None",
}

// members are the pool's backends as DNS has them now, each with its check and what an operator has said of it.
func (c *compiled) members(p pool, r *resolver, overrides map[string]override) []backend {
	all, tlsKey := c.placesOf(p, r), c.tlsKey(p.spec.GetTls())
	ask := c.check(p.spec) // once: it may have a trust bundle to parse
	for i := range all {
		b := &all[i]
		b.set = overrides[b.address]
		if ask != nil {
			check := *ask
			check.Address, check.Dial = b.address, b.dial
			b.check, b.checkKey = &check, check.Key()
		}
		b.key = backendKey(*b, tlsKey)
	}
	return all
}

// tellCircles tells of backends that are left out because this node itself is at their address, once.
func (a *appliance) tellCircles(next *compiled, pools map[string]bool) {
	for name := range pools {
		for _, b := range next.pools[name].backends {
			if _, literal := parseLiteral(b.address); !literal || b.dial.IsValid() || slices.ContainsFunc(a.current.pools[name].backends, b.samePlace) {
				continue
			}
			a.log.Warn("a backend takes no requests", "pool", name, "backend", b.address, "err", errCircles)
		}
	}
}

// placesOf are where a pool's backends are now, and their shares.
func (c *compiled) placesOf(p pool, r *resolver) []backend {
	var all []backend
	for _, b := range p.spec.GetBackends() {
		weight := 1
		if b.Weight != nil {
			weight = int(b.GetWeight())
		}
		asked := c.asked(p, b.GetAddress())
		all = append(all, backend{address: b.GetAddress(), asked: asked, dial: r.address(asked), weight: weight, backup: b.GetBackup()})
	}
	if d := p.spec.GetDiscovery(); d != nil {
		for _, t := range r.discovered(c.discoveryOf(p)) {
			all = append(all, backend{address: t.addr.String(), asked: t.addr.String(), dial: t.addr, weight: t.weight, backup: t.backup})
		}
	}
	return all
}

// asked is what DNS is asked for a backend's address; an IP address is itself.
func (c *compiled) asked(p pool, address string) string {
	q, ok := parseQuestion(address)
	if _, literal := parseLiteral(address); literal || !ok {
		return address
	}
	q.within = c.within(p)
	return q.String()
}

// discoveryOf is what DNS is asked for a pool that finds its backends.
func (c *compiled) discoveryOf(p pool) question {
	q := discoveryOf(p.spec.GetDiscovery())
	q.within = c.within(p)
	return q
}

// within is the owner whose bounds hold for what the names of a pool lead to; empty: none do.
func (c *compiled) within(p pool) string {
	if _, limited := c.bounds[p.owner]; limited {
		return p.owner
	}
	return ""
}

// backendKey tells whether a backend is the same after a change: address and TLS. What its pool asks of it is no part of it: another
// check is no reason to forget its connections, or to count the requests under way anew.
func backendKey(b backend, tlsKey string) string {
	if tlsKey == "" {
		return b.address
	}
	return b.address + " tls " + tlsKey
}

// serveConfig is a pool with its backends of this moment.
func (c *compiled) serveConfig(p pool) lb.PoolConfig {
	config := p.config
	config.TLS = c.backendTLS(p.spec.GetTls())
	for _, b := range p.backends {
		weight := b.weight
		if b.set.weight != nil {
			weight = int(*b.set.weight)
		}
		config.Backends = append(config.Backends, lb.BackendConfig{
			Key: b.key, Name: b.address, Address: b.dial, Weight: weight, Backup: b.backup, Down: b.down,
			State: b.set.state, DrainSince: b.set.since, CutOff: b.set.cutOff,
		})
	}
	return config
}

// check is how each of a pool's backends is asked, but for its address; nil: none is.
func (c *compiled) check(p *lbdv1.Pool) *health.Check {
	h := p.GetHealthCheck()
	if h == nil {
		return nil
	}
	check := &health.Check{
		Port:         uint16(h.GetPort()),
		Interval:     h.GetInterval().AsDuration(),
		DownInterval: h.GetDownInterval().AsDuration(),
		Timeout:      h.GetTimeout().AsDuration(),
		Rise:         int(h.GetRise()),
		Fall:         int(h.GetFall()),
	}
	if h.GetStart() == lbdv1.HealthStart_HEALTH_START_DOWN {
		check.Start = health.Down
	}
	if web := h.GetHttp(); web != nil {
		check.HTTP = &health.HTTP{
			Method: web.GetMethod(), Path: web.GetPath(), Host: web.GetHost(), Headers: web.GetHeaders(),
			Expect: web.GetExpectStatus(), ExpectBody: web.GetExpectBody(),
		}
	}
	settings := p.GetTls()
	if h.GetTlsOverride() != nil {
		settings = h.GetTlsOverride()
	}
	if h.GetTcp() == nil && settings != nil {
		t := c.backendTLS(settings)
		check.TLS = &health.TLS{Config: t.Config, Key: t.Key}
	}
	return check
}

// backendTLS is how a pool's backends are spoken to; nil: in the clear. Where the trust bundle is not at hand nothing is trusted.
func (c *compiled) backendTLS(t *lbdv1.BackendTls) *lb.BackendTLS {
	if t == nil {
		return nil
	}
	var roots []byte
	if name := t.GetTrustBundle(); name != "" {
		roots = append([]byte{}, c.trustBundles[name]...)
	}
	config, err := tlsterm.BackendConfig(t.GetServerName(), roots, c.clientCertificate(t.GetClientCertificate()))
	if err != nil {
		config = &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
	}
	return &lb.BackendTLS{Config: config, Key: c.tlsKey(t)}
}

// tlsKey tells two TLS settings apart. A client certificate is named, not shown: a new one is for new connections.
func (c *compiled) tlsKey(t *lbdv1.BackendTls) string {
	if t == nil {
		return ""
	}
	sum := sha256.Sum256(c.trustBundles[t.GetTrustBundle()])
	return fmt.Sprintf("%q %q %s %q", t.GetServerName(), t.GetTrustBundle(), hex.EncodeToString(sum[:8]), t.GetClientCertificate())
}

// samePlace reports whether a backend is served as it was.
func (b backend) samePlace(other backend) bool {
	return b.address == other.address && b.dial == other.dial && b.weight == other.weight && b.backup == other.backup
}

// placesText says in words where backends are.
func placesText(backends []backend) string {
	var all []string
	for _, b := range backends {
		switch {
		case !b.dial.IsValid():
			all = append(all, b.address+" nowhere yet")
		case b.dial.String() == b.address:
			all = append(all, b.address)
		default:
			all = append(all, b.address+" at "+b.dial.String())
		}
	}
	return strings.Join(all, ", ")
}
