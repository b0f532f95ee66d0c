package main

import (
	"maps"
	"net/netip"

	"lbd/cluster/state"
	"lbd/health"
	"lbd/lb"
	raftv1 "lbd/proto/lbd/raft/v1"
	tlsterm "lbd/tls"
)

// compiled is what is served of one revision: the second shape of each noun. Values are kept from revision to revision
// as long as the resource that they come from stays the same.
type compiled struct {
	revision     int64
	listeners    map[string]listener
	certificates map[string]certificate
	trustBundles map[string][]byte // PEM
	pools        map[string]pool
	routes       map[string]route
	policies     map[string]routePolicy
	addressLists map[string][]netip.Prefix
	bounds       map[string][]netip.Prefix // by owner: where names of its backends may lead
	overrides    overrides
	settings     state.Settings // where backends may be
	table        *lb.Table      // of the routes and pools
}

type certificate struct {
	*tlsterm.Certificate
	labels map[string]string
}

func newCompiled() *compiled {
	return &compiled{
		listeners:    map[string]listener{},
		certificates: map[string]certificate{},
		trustBundles: map[string][]byte{},
		pools:        map[string]pool{},
		routes:       map[string]route{},
		policies:     map[string]routePolicy{},
		addressLists: map[string][]netip.Prefix{},
		bounds:       map[string][]netip.Prefix{},
	}
}

// compileOne gives one resource its second shape. On an error the previous one stays.
func (a *appliance) compileOne(next *compiled, clusterID string, k state.Key, stored *raftv1.StoredResource) error {
	var err error
	switch k.Kind {
	case state.Listeners:
		var l listener
		if l, err = compileListener(stored, a.cfg.listen[k.Name]); err == nil {
			next.listeners[k.Name] = l
		}
	case state.Certificates:
		var c *tlsterm.Certificate
		if c, err = a.keys.open(clusterID, k.Name, stored.GetMaterial()); err == nil {
			next.certificates[k.Name] = certificate{c, stored.GetResource().GetCertificate().GetLabels()}
		}
		err = a.missed(k.Name, stored.GetMaterial().GetSealedKey(), err)
	case state.TrustBundles:
		ca := []byte(stored.GetResource().GetTrustBundle().GetCa().GetInline())
		if _, err = tlsterm.BackendConfig("", ca, nil); err == nil {
			next.trustBundles[k.Name] = ca
		}
	case state.Pools:
		p := compilePool(stored)
		p.backends, p.served = next.pools[k.Name].backends, next.pools[k.Name].served
		next.pools[k.Name] = p
	case state.Routes:
		var r route
		if r, err = compileRoute(stored); err == nil {
			next.routes[k.Name] = r
		}
	case state.Policies:
		next.policies[k.Name] = compilePolicy(stored, next.policies[k.Name])
	case state.AddressLists:
		next.addressLists[k.Name] = networks(stored.GetResource().GetAddressList().GetAddresses())
	case state.Owners:
		next.bounds[k.Name] = networks(stored.GetResource().GetOwnerBounds().GetAllowedBackendCidrs())
	}
	return err
}

// compileRules puts policies and address lists together, where one of them has changed.
func (c *compiled) compileRules(touched []state.Key) {
	lists := touches(touched, state.AddressLists)
	for name, p := range c.policies {
		if p.addresses != nil && (lists || p.rule == nil) {
			p.rule = compileAddresses(name, p.addresses, c.addressLists)
			c.policies[name] = p
		}
	}
}

// affectedPools are those to be served anew: what they are made of has changed.
func (c *compiled) affectedPools(touched []state.Key, moved map[string]bool) map[string]bool {
	affected := maps.Clone(moved)
	bundles, clientCertificates, owners := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, k := range touched {
		switch k.Kind {
		case state.Pools:
			affected[k.Name] = true
		case state.TrustBundles:
			bundles[k.Name] = true
		case state.Certificates:
			clientCertificates[k.Name] = true
		case state.Owners:
			owners[k.Name] = true
		}
	}
	if len(bundles)+len(clientCertificates)+len(owners) == 0 {
		return affected
	}
	for name, p := range c.pools {
		t, o := p.spec.GetTls(), p.spec.GetHealthCheck().GetTlsOverride()
		if p.named && owners[p.owner] || bundles[t.GetTrustBundle()] || bundles[o.GetTrustBundle()] ||
			clientCertificates[t.GetClientCertificate()] || clientCertificates[o.GetClientCertificate()] {
			affected[name] = true
		}
	}
	return affected
}

// checks are the health checks of all pools.
func (c *compiled) checks() map[health.Key]health.Check {
	out := map[health.Key]health.Check{}
	for _, p := range c.pools {
		for _, b := range p.backends {
			if b.check != nil {
				out[b.checkKey] = *b.check
			}
		}
	}
	return out
}

// questions are what DNS is asked for: all backends' addresses as configured, and the discoveries.
func (c *compiled) questions() map[string]bool {
	out := map[string]bool{}
	for _, p := range c.pools {
		for _, b := range p.spec.GetBackends() {
			out[c.asked(p, b.GetAddress())] = true
		}
		if p.spec.GetDiscovery() != nil {
			out[c.discoveryOf(p).String()] = true
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
		trustBundles: maps.Clone(c.trustBundles),
		pools:        maps.Clone(c.pools),
		routes:       maps.Clone(c.routes),
		policies:     maps.Clone(c.policies),
		addressLists: maps.Clone(c.addressLists),
		bounds:       maps.Clone(c.bounds),
		overrides:    c.overrides,
		settings:     c.settings,
		table:        c.table,
	}
}

func (c *compiled) remove(k state.Key) {
	switch k.Kind {
	case state.Listeners:
		delete(c.listeners, k.Name)
	case state.Certificates:
		delete(c.certificates, k.Name)
	case state.TrustBundles:
		delete(c.trustBundles, k.Name)
	case state.Pools:
		delete(c.pools, k.Name)
	case state.Routes:
		delete(c.routes, k.Name)
	case state.Policies:
		delete(c.policies, k.Name)
	case state.AddressLists:
		delete(c.addressLists, k.Name)
	case state.Owners:
		delete(c.bounds, k.Name)
	}
}

// keys are the resources that are compiled.
func (c *compiled) keys() []state.Key {
	var out []state.Key
	out = appendKeys(out, state.Listeners, c.listeners)
	out = appendKeys(out, state.Certificates, c.certificates)
	out = appendKeys(out, state.TrustBundles, c.trustBundles)
	out = appendKeys(out, state.Pools, c.pools)
	out = appendKeys(out, state.Routes, c.routes)
	out = appendKeys(out, state.Policies, c.policies)
	out = appendKeys(out, state.AddressLists, c.addressLists)
	return appendKeys(out, state.Owners, c.bounds)
}

func appendKeys[V any](out []state.Key, kind state.Kind, compiled map[string]V) []state.Key {
	for name := range compiled {
		out = append(out, state.Key{Kind: kind, Name: name})
	}
	return out
}

func (c *compiled) clientCertificate(name string) *tlsterm.Certificate {
	return c.certificates[name].Certificate
}
