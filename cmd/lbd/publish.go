package main

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"lbd/cluster/rpc"
	"lbd/cluster/state"
	"lbd/lb"
	raftv1 "lbd/proto/lbd/raft/v1"
	tlsterm "lbd/tls"
)

// What a publish proves by handshakes with itself: a rotation of more names than this is sampled, so that its proof takes
// a tenth of a second and not a minute.
const (
	proofsChangedMax = 100
	proofsOthersMax  = 100
	// proofsTimeMax keeps many listeners times many names from holding up health flips; the rest is said to be unproven.
	proofsTimeMax = 2 * time.Second
)

// publish makes what this node serves follow the state. It is the only bridge between the two shapes of a resource, and
// only appliance.run calls it. A resource that cannot be served keeps its previous form and is reported; the rest is served.
//
//  1. see which resources the revisions since the last publish touched
//  2. compile them; nothing is stored yet
//  3. say which names and health checks are in use, and wait a moment for the answers of new names
//  4. store: certificates, listeners that go, policies, the table, listeners that come
//  5. prove the certificates
//  6. report the revision as served
func (a *appliance) publish() {
	s := a.node.State()
	defer a.containPanic(s.Revision())
	touched := a.touched(s)
	if len(touched) == 0 && a.current.revision == s.Revision() && a.view.Load() != nil {
		return
	}
	clock := phaseClock{a.publishTimes, time.Now()}
	next := a.compile(s, touched)
	clock.ended("compile")
	a.resolver.keep(next.addresses(), s.Settings())
	a.prober.Set(next.checks())
	clock.ended("resolve")
	table, err := a.compileTable(next, touched)
	clock.ended("table")
	if err != nil {
		a.refuseRevision(s.Revision(), err.Error())
		return
	}
	a.storeCertificates(next, touched)
	a.storeListeners(next, touched, table)
	a.current = next
	clock.ended("store")
	a.prove(touched)
	clock.ended("prove")
	delete(a.refused, state.Key{})
	a.report()
}

// touched are the resources to look at. Where the history does not reach back, those are all of them.
func (a *appliance) touched(s *state.State) []state.Key {
	if keys, ok := s.ChangedSince(a.current.revision); ok && a.current.revision > 0 {
		return a.withRetries(keys)
	}
	all := a.current.keys()
	seen := map[state.Key]bool{}
	for _, k := range all {
		seen[k] = true
	}
	for _, kind := range state.Kinds() {
		for r := range s.All(kind) {
			if k, ok := state.KeyOf(r.GetResource()); ok && !seen[k] {
				all = append(all, k)
			}
		}
	}
	return all
}

// withRetries adds the listeners that could not be bound: the address may be free by now.
func (a *appliance) withRetries(keys []state.Key) []state.Key {
	for k := range a.refused {
		if k.Kind == state.Listeners && !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	return keys
}

func (a *appliance) compile(s *state.State, touched []state.Key) *compiled {
	next := a.current.clone()
	next.revision = s.Revision()
	for _, k := range touched {
		stored, ok := s.Get(k.Kind, k.Name)
		if !ok {
			next.remove(k)
			delete(a.refused, k)
			continue
		}
		if err := a.compileOne(next, s.ClusterID(), k, stored); err != nil {
			a.refuse(k, stored.GetResource().GetRevision(), err)
			continue
		}
		if k.Kind != state.Listeners { // those are in order again when they are bound
			delete(a.refused, k)
		}
	}
	return next
}

func (a *appliance) compileOne(next *compiled, clusterID string, k state.Key, stored *raftv1.StoredResource) error {
	switch k.Kind {
	case state.Listeners:
		next.listeners[k.Name] = compileListener(stored, a.cfg.listen[k.Name])
	case state.Certificates:
		c, err := a.keys.open(clusterID, k.Name, stored.GetMaterial())
		if err != nil {
			return err
		}
		next.certificates[k.Name] = c
	case state.Pools:
		next.pools[k.Name] = compilePool(stored)
	case state.Routes:
		next.routes[k.Name] = compileRoute(stored)
	case state.Policies:
		next.policies[k.Name] = compilePolicy(stored)
	}
	return nil
}

// compileTable makes new pools where they changed, and from all pools and routes the table; nil if neither changed.
func (a *appliance) compileTable(next *compiled, touched []state.Key) (*lb.Table, error) {
	changed := false
	for _, k := range touched {
		switch k.Kind {
		case state.Pools:
			changed = true
			if p, ok := next.pools[k.Name]; ok {
				next.pools[k.Name] = a.servePool(k.Name, p)
			}
		case state.Routes, state.Policies:
			changed = true
		}
	}
	if !changed {
		return nil, nil
	}
	return a.newTable(next)
}

func (a *appliance) newTable(c *compiled) (*lb.Table, error) {
	pools := make([]*lb.Pool, 0, len(c.pools))
	for _, name := range slices.Sorted(maps.Keys(c.pools)) {
		pools = append(pools, c.pools[name].served)
	}
	return lb.NewTable(c.oldestFirst(), pools)
}

// servePool gives a pool its backends: those that the server knows keep connections, counters and health.
func (a *appliance) servePool(name string, p pool) pool {
	p.served = a.server.NewPool(p.poolConfig(name, a.resolver))
	for _, b := range p.backends {
		if b.check != nil {
			status, _ := a.prober.Status(b.checkKey())
			a.server.SetEligible(b.key, status.State.Eligible())
		}
	}
	return p
}

func (a *appliance) storeCertificates(next *compiled, touched []state.Key) {
	if !slices.ContainsFunc(touched, func(k state.Key) bool { return k.Kind == state.Certificates }) {
		return
	}
	a.certificates.Replace(tlsterm.NewSet(slices.Collect(maps.Values(next.certificates))))
}

// prove shakes hands with ourselves on every TLS listener: as a client of each changed certificate, and of some others.
// One that is not served as stored is refused.
func (a *appliance) prove(touched []state.Key) {
	var changed, others []string
	isChanged := map[string]bool{} // at a start with 10,000 certificates that is all of them
	for _, k := range touched {
		if _, ok := a.current.certificates[k.Name]; ok && k.Kind == state.Certificates {
			changed = append(changed, k.Name)
			isChanged[k.Name] = true
		}
	}
	if len(changed) == 0 {
		return
	}
	for name := range a.current.certificates {
		if !isChanged[name] {
			others = append(others, name)
		}
	}
	rand.Shuffle(len(changed), func(i, j int) { changed[i], changed[j] = changed[j], changed[i] })
	rand.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
	sample := slices.Concat(changed[:min(len(changed), proofsChangedMax)], others[:min(len(others), proofsOthersMax)])
	end := time.Now().Add(proofsTimeMax)
	for i, name := range sample {
		if time.Now().After(end) {
			a.log.Warn("certificates are unproven: handshakes with ourselves take too long", "proven", i, "unproven", len(sample)-i)
			return
		}
		a.proveOne(name)
	}
}

// proveOne proves a certificate on every TLS listener that serves.
func (a *appliance) proveOne(name string) {
	c, k := a.current.certificates[name], state.Key{Kind: state.Certificates, Name: name}
	for _, listener := range slices.Sorted(maps.Keys(a.bound)) {
		if !a.bound[listener].config.TLS {
			continue
		}
		serial, err := a.terminator.Prove(listener, c)
		switch {
		case errors.Is(err, tlsterm.ErrNotOffered):
		case errors.Is(err, os.ErrDeadlineExceeded):
			a.log.Warn("a certificate is unproven: the handshake with ourselves took too long", "certificate", name, "listener", listener)
		case err != nil:
			a.refuse(k, a.current.revision, fmt.Errorf("not proven on listener %s: %w", listener, err))
		case serial != c.Serial():
			a.refuse(k, a.current.revision, fmt.Errorf("listener %s serves serial %s in its place, want %s", listener, serial, c.Serial()))
		}
	}
}

// refuse records that a resource is not served as the revision stored it, and says so once.
func (a *appliance) refuse(k state.Key, revision int64, err error) {
	r := rpc.Refusal{Revision: revision, Kind: string(k.Kind), Name: k.Name, Reason: strings.ReplaceAll(err.Error(), "\n", "; ")}
	if a.refused[k] != r {
		a.log.Error("a resource is not served as it is stored", "resource", k.String(), "revision", revision, "err", r.Reason)
	}
	a.refused[k] = r
}

// refuseRevision records that a whole revision is not served: the last good one stays.
func (a *appliance) refuseRevision(revision int64, reason string) {
	a.log.Error("a revision is refused; the last good one stays", "revision", revision, "serving", a.current.revision, "err", reason)
	a.refused[state.Key{}] = rpc.Refusal{Revision: revision, Reason: reason}
	a.report()
}

// containPanic keeps a revision that makes us panic from ending the node: what was served before stays.
func (a *appliance) containPanic(revision int64) {
	if p := recover(); p != nil {
		a.log.Error("publish panicked", "panic", p, "stack", string(debug.Stack()))
		a.refuseRevision(revision, fmt.Sprintf("panic: %v", p))
	}
}
