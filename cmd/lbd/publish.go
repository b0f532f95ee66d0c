package main

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"lbd/cluster/rpc"
	"lbd/cluster/state"
	"lbd/lb"
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
//  1. see which resources the revisions since the last publish touched, and whose overrides have changed
//  2. compile them; nothing is stored yet
//  3. say which names and health checks are in use, and wait a moment for the answers of new names
//  4. store: certificates, listeners that go, policies, the table, listeners that come
//  5. prove the certificates
//  6. report the revision as served
func (a *appliance) publish() {
	s := a.target()
	defer a.containPanic(s)
	touched := a.touched(s)
	set, expiry := overridesAt(a.node.State(), a.overlay.all(), time.Now())
	moved := set.moved(a.current.overrides)
	a.expiry = expiry
	if len(touched)+len(moved) == 0 && a.current.revision == s.Revision() && a.view.Load() != nil {
		return
	}
	clock := phaseClock{a.publishTimes, time.Now()}
	next := a.compile(s, touched)
	next.overrides = set
	affected := next.affectedPools(touched, moved)
	clock.ended("compile")
	if len(affected) > 0 || next.settings != a.current.settings || touches(touched, state.Listeners) {
		a.resolver.keep(next.questions(), a.rules(next))
		next.findMembers(affected, a.resolver)
		a.tellCircles(next, affected)
		a.prober.Set(next.checks())
	}
	clock.ended("resolve")
	table, err := a.compileTable(next, touched, affected)
	clock.ended("table")
	if err != nil {
		a.refuseRevision(s.Revision(), err.Error())
		return
	}
	if table != nil {
		next.table = table
	}
	a.storeCertificates(next, touched)
	a.storeListeners(next, touched, table)
	a.tellOverrides(set, moved)
	a.current = next
	if touches(touched, state.Pools) {
		maps.DeleteFunc(a.down, func(pool string, _ map[string]bool) bool { _, ok := next.pools[pool]; return !ok })
	}
	clock.ended("store")
	a.prove(touched)
	clock.ended("prove")
	a.forgetChoice(s.Revision())
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

// touches reports whether one of the keys is of one of the kinds.
func touches(keys []state.Key, kinds ...state.Kind) bool {
	return slices.ContainsFunc(keys, func(k state.Key) bool { return slices.Contains(kinds, k.Kind) })
}

// withRetries adds the listeners that could not be bound: the address may be free by now. And certificates that wait for a sealing key.
func (a *appliance) withRetries(keys []state.Key) []state.Key {
	for k := range a.refused {
		if k.Kind == state.Listeners && !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	for name := range a.keyless {
		if k := (state.Key{Kind: state.Certificates, Name: name}); !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	return keys
}

func (a *appliance) compile(s *state.State, touched []state.Key) *compiled {
	next := a.current.clone()
	next.revision, next.settings = s.Revision(), s.Settings()
	for _, k := range touched {
		a.compiling = k
		stored, ok := s.Get(k.Kind, k.Name)
		if !ok {
			next.remove(k)
			delete(a.refused, k)
			if k.Kind == state.Certificates {
				delete(a.keyless, k.Name)
			}
			continue
		}
		if compileFault != nil {
			compileFault(k)
		}
		if err := a.compileOne(next, s.ClusterID(), k, stored); err != nil {
			a.refuse(k, stored.GetResource().GetRevision(), err)
			continue
		}
		if k.Kind != state.Listeners { // those are in order again when they are bound
			delete(a.refused, k)
		}
	}
	a.compiling = state.Key{}
	next.compileRules(touched)
	return next
}

// compileFault is for a test build, which makes a resource panic in compile.
var compileFault func(state.Key)

// keep goes back to a form whose successor is not to be served: its backends are checked and resolved as before, and it is its pools
// that hear of them.
func (a *appliance) keep(c *compiled) {
	a.resolver.keep(c.questions(), a.rules(c))
	a.prober.Set(c.checks())
	a.server.SetTable(c.table)
}

// findMembers looks up what the pools consist of now.
func (c *compiled) findMembers(affected map[string]bool, r *resolver) {
	for name := range affected {
		if p, ok := c.pools[name]; ok {
			p.backends = c.members(p, r, c.overrides[name])
			c.pools[name] = p
		}
	}
}

// compileTable makes new pools where they changed, and from all pools and routes the table; nil if neither changed.
func (a *appliance) compileTable(next *compiled, touched []state.Key, affected map[string]bool) (*lb.Table, error) {
	changed := next.table == nil || len(affected) > 0 || touches(touched, state.Routes, state.Policies, state.AddressLists)
	for name := range affected {
		if p, ok := next.pools[name]; ok {
			next.pools[name] = a.servePool(next, p)
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
func (a *appliance) servePool(next *compiled, p pool) pool {
	down := map[string]bool{}
	for i := range p.backends {
		b := &p.backends[i]
		status, _ := a.prober.Status(b.checkKey)
		b.down = b.check != nil && !status.State.Eligible()
		down[b.address] = b.down
	}
	a.down[p.config.Name] = down
	p.served = a.server.NewPool(next.serveConfig(p))
	for _, b := range p.backends { // also those that the pool has had before: their check may be another one
		a.server.SetEligible(p.config.Name, b.key, !b.down)
	}
	return p
}

func (a *appliance) storeCertificates(next *compiled, touched []state.Key) {
	if !touches(touched, state.Certificates) {
		return
	}
	all := make([]*tlsterm.Certificate, 0, len(next.certificates))
	for _, c := range next.certificates {
		all = append(all, c.Certificate)
	}
	for name, l := range a.bound { // before the set: what a label brings in is served from its first moment
		if !l.config.TLS || len(l.selectors) == 0 {
			continue
		}
		l.policy = next.offered(l)
		if err := a.terminator.SetListener(name, l.policy); err != nil {
			a.refuse(l.key(), l.revision, err)
			continue
		}
		a.bound[name] = l
	}
	a.certificates.Replace(tlsterm.NewSet(all))
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
	c, k := a.current.certificates[name].Certificate, state.Key{Kind: state.Certificates, Name: name}
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
	r := rpc.Refusal{Revision: revision, Kind: string(k.Kind), Name: k.Name, Reason: strings.ReplaceAll(err.Error(), "\n", "; "),
		Passing: k.Kind == state.Certificates && a.keyless[k.Name] && hasOthers(a.node.State())}
	if a.refused[k] != r {
		a.log.Error("a resource is not served as it is stored", "resource", k.String(), "revision", revision, "err", r.Reason)
	}
	a.refused[k] = r
}
