package rpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// Places is what this node finds out of where backends are.
type Places interface {
	// LookupBackend asks DNS once where a backend's address ("name:port") leads. No answer is an error.
	LookupBackend(ctx context.Context, address string) ([]netip.AddrPort, error)
	// LookupDiscovery asks DNS once where a discovery leads. No answer is an error.
	LookupDiscovery(ctx context.Context, d *lbdv1.Discovery) ([]netip.AddrPort, error)
	// Taken says what of this node is at an address when its listeners have these addresses: "listener `http`", "the control port";
	// empty: nothing. listener is its name if it is one. What is bound to an unspecified address is at all of the machine's.
	Taken(listeners map[string][]string) func(at netip.AddrPort) (what, listener string)
}

// place is where a pool's document sends requests, with where that leads.
type place struct {
	// pool is the resource, and field what in it says the address.
	pool  *lbdv1.Pool
	field string
	// text is the address as the document has it; it tells one question to DNS from another.
	text string
	// ask asks DNS; nil for an IP address.
	ask func(context.Context) ([]netip.AddrPort, error)
	found
}

// found is what a question came to.
type found struct {
	at  []netip.AddrPort
	err error
}

// lookups are the answers of DNS for one change, by question.
type lookups map[string]found

var errNotAsked = errors.New("not asked: there was no time left")

// lookUp asks DNS once for all names of pools that are not stored just so, within lookupTimeout for all of them.
func (w *writer) lookUp(ctx context.Context, resources []*lbdv1.Resource) lookups {
	current := w.store.State()
	var changed []place
	for _, r := range resources {
		if r.GetPool() == nil { // what else there is has no names
			continue
		}
		if up := (&raftv1.StoredResource{Resource: state.Normalize(r)}); !holdsPool(current, up) {
			changed = append(changed, w.placesOf(up.GetResource().GetPool())...)
		}
	}
	answers := lookups{}
	answers.fill(ctx, changed)
	return answers
}

// holdsPool is State.Holds for whoever the pool's owner is.
func holdsPool(s *state.State, up *raftv1.StoredResource) bool {
	stored, ok := s.Get(state.Pools, up.GetResource().GetPool().GetName())
	if ok {
		up.GetResource().Owner = stored.GetResource().GetOwner()
	}
	return ok && s.Holds(up)
}

// fill asks what has no answer yet, some at a time.
func (l lookups) fill(ctx context.Context, places []place) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	var mu sync.Mutex
	var wg sync.WaitGroup
	slots := make(chan struct{}, lookupsAtOnceMax)
	for _, p := range places {
		mu.Lock()
		_, known := l[p.text]
		if !known && p.ask != nil {
			l[p.text] = found{err: errNotAsked}
		}
		mu.Unlock()
		if known || p.ask == nil {
			continue
		}
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			continue
		}
		wg.Go(func() {
			defer func() { <-slots }()
			at, err := p.ask(ctx)
			mu.Lock()
			defer mu.Unlock()
			l[p.text] = found{at, err}
		})
	}
	wg.Wait()
}

// placesOf are the places of a normalised pool. What is no address is left out: validation says so.
func (w *writer) placesOf(pool *lbdv1.Pool) []place {
	base := state.Key{Kind: state.Pools, Name: pool.GetName()}.Field()
	var all []place
	for i, b := range pool.GetBackends() {
		address := b.GetAddress()
		p := place{pool: pool, field: fmt.Sprintf("%s.backends[%d].address", base, i), text: address}
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			continue
		}
		if at, err := netip.ParseAddrPort(net.JoinHostPort(host, port)); err == nil {
			p.at = []netip.AddrPort{netip.AddrPortFrom(at.Addr().Unmap(), at.Port())}
		} else {
			p.ask = func(ctx context.Context) ([]netip.AddrPort, error) { return w.places.LookupBackend(ctx, address) }
		}
		all = append(all, p)
	}
	if d := pool.GetDiscovery(); d != nil {
		p := place{pool: pool, field: base + ".discovery.host", text: fmt.Sprintf("%s:%d", d.GetHost(), d.GetPort())}
		if d.GetSrv() != "" {
			p.field, p.text = base+".discovery.srv", d.GetSrv()
		}
		p.ask = func(ctx context.Context) ([]netip.AddrPort, error) { return w.places.LookupDiscovery(ctx, d) }
		all = append(all, p)
	}
	return all
}

// checkPlaces finds backends where nobody's may be, and of a bound caller those outside of the owner's bounds. A name is taken by
// what it leads to now: what it leads to later each node checks itself. Names are asked for here as far as they were not before.
func (d *draft) checkPlaces(ctx context.Context, w *writer, by Caller) {
	var all []place
	for _, up := range d.change.GetUpserts() {
		if pool := up.GetResource().GetPool(); pool != nil && !d.base.Holds(up) {
			all = append(all, w.placesOf(pool)...)
		}
	}
	if d.answers == nil {
		d.answers = lookups{}
	}
	d.answers.fill(ctx, all)
	settings, unresolved := d.settings(), 0
	bounds, limited := d.current.BoundsOf(d.change.GetOwner())
	taken := w.places.Taken(d.listeners())
	d.checkStoredPools(w, taken)
	for _, p := range all {
		if p.ask != nil {
			p.found = d.answers[p.text]
		}
		if fault := p.forbidden(settings, taken); fault != "" {
			d.violations = append(d.violations, violation(p.field, "%s", fault))
			continue
		}
		d.checkHealthPort(p, taken)
		outside := p.outside(bounds)
		switch {
		case p.err != nil && limited && by.bound():
			d.deny(p.field, "`%s` cannot be resolved now (%v): where it leads has to be inside of allowed_backend_cidrs of owners/%s", p.text, p.err, d.change.GetOwner())
		case p.err != nil:
			if unresolved++; unresolved <= unresolvedToldMax {
				d.violations = append(d.violations, warning(p.field, "`%s` cannot be resolved now (%v): its backends take no requests until it can", p.text, p.err))
			}
		case !limited || !outside.IsValid():
		case by.bound():
			d.deny(p.field, "%s is outside of allowed_backend_cidrs of owners/%s", p.leading(outside), d.change.GetOwner())
		case p.ask != nil:
			d.violations = append(d.violations, warning(p.field, "%s is outside of allowed_backend_cidrs of owners/%s: nodes leave it out", p.leading(outside), d.change.GetOwner()))
		}
	}
}

// takenFunc says what of this node is at an address.
type takenFunc = func(at netip.AddrPort) (what, listener string)

// listeners are the addresses of all listeners as the change leaves them, by name.
func (d *draft) listeners() map[string][]string {
	all := map[string][]string{}
	add := func(r *lbdv1.Resource) {
		if l := r.GetListener(); l != nil {
			all[l.GetName()] = l.GetAddresses()
		}
	}
	if !d.replaces {
		for stored := range d.current.All(state.Listeners) {
			add(stored.GetResource())
		}
	}
	for _, text := range d.change.GetDeletes() {
		if key, err := state.ParseKey(text); err == nil && key.Kind == state.Listeners {
			delete(all, key.Name)
		}
	}
	for _, up := range d.change.GetUpserts() {
		add(state.Normalize(up.GetResource()))
	}
	return all
}

// checkStoredPools finds listeners of the change that come to be where a pool sends to that the change leaves as it is. Only IP
// addresses are looked at: where names lead each node sees to.
func (d *draft) checkStoredPools(w *writer, taken takenFunc) {
	come, judged := map[string]*lbdv1.Listener{}, map[string]bool{}
	for _, up := range d.change.GetUpserts() {
		switch r := up.GetResource(); {
		case d.base.Holds(up):
		case r.GetListener() != nil:
			come[r.GetListener().GetName()] = r.GetListener()
		case r.GetPool() != nil:
			judged[r.GetPool().GetName()] = true
		}
	}
	for stored := range d.current.All(state.Pools) {
		pool := stored.GetResource().GetPool()
		key := state.Key{Kind: state.Pools, Name: pool.GetName()}
		_, stays := d.resources()[key]
		if len(come) == 0 || judged[key.Name] || d.replaces && !stays || slices.Contains(d.change.GetDeletes(), key.String()) {
			continue
		}
		for _, p := range w.placesOf(pool) {
			for _, at := range p.at {
				_, name := taken(at)
				if l := come[name]; l != nil {
					delete(come, name) // one of them says enough
					d.violations = append(d.violations, d.circle(addressField(l, at.Port()), p, stored.GetResource().GetOwner()))
				}
			}
		}
	}
}

// circle says that a pool sends to a listener of the change. Of another owner's pool it is a warning: nobody keeps an address from others
// by sending there first, and nodes leave the backend out.
func (d *draft) circle(field string, p place, owner string) *lbdv1.Violation {
	if owner == d.change.GetOwner() {
		return violation(field, "on this node `%s` of pool `%s` would be the listener itself: requests would go in circles", p.text, p.pool.GetName())
	}
	return warning(field, "on this node `%s` of pool `%s` (owner `%s`) is then the listener itself: it takes no requests any more", p.text, p.pool.GetName(), owner)
}

// addressField is where a listener says the address with a port; the first one if a node has moved it.
func addressField(l *lbdv1.Listener, port uint16) string {
	i := slices.IndexFunc(l.GetAddresses(), func(address string) bool { return strings.HasSuffix(address, fmt.Sprintf(":%d", port)) })
	return fmt.Sprintf("%s.addresses[%d]", state.Key{Kind: state.Listeners, Name: l.GetName()}.Field(), max(i, 0))
}

// settings are those that the change leaves.
func (d *draft) settings() state.Settings {
	for _, up := range d.change.GetUpserts() {
		if s := up.GetResource().GetClusterSettings(); s != nil {
			return state.SettingsOf(s)
		}
	}
	return d.current.Settings()
}

// forbidden says why no pool may have a place; empty: it may. What IP addresses are forbidden by themselves is validation's.
func (p place) forbidden(settings state.Settings, taken takenFunc) string {
	for _, at := range p.at {
		ip := at.Addr()
		setting := settings.Forbids(ip)
		what, _ := taken(at)
		switch {
		case what != "":
			return p.leading(ip) + " is refused as a backend: at port " + fmt.Sprint(at.Port()) + " this is " + what + " of a node"
		case p.ask == nil:
		case setting != "":
			return p.leading(ip) + " is refused as a backend unless cluster_settings." + setting + " is true"
		case !state.OneMachine(ip):
			return p.leading(ip) + " is no address of one machine"
		}
	}
	return ""
}

// checkHealthPort refuses to ask a node's own ports whether a backend is alive.
func (d *draft) checkHealthPort(p place, taken takenFunc) {
	port := p.pool.GetHealthCheck().GetPort()
	if port <= 0 || port > 65535 {
		return
	}
	for _, at := range p.at {
		if what, _ := taken(netip.AddrPortFrom(at.Addr(), uint16(port))); what != "" {
			field, _, _ := strings.Cut(p.field, "].")
			d.violations = append(d.violations, violation(field+"].health_check.port", "%d is refused: at `%s` this is %s of a node", port, at.Addr(), what))
			return
		}
	}
}

// outside is an address that the bounds do not allow; the zero value: there is none.
func (p place) outside(b state.Bounds) netip.Addr {
	for _, at := range p.at {
		if !b.AllowsBackend(at.Addr()) {
			return at.Addr()
		}
	}
	return netip.Addr{}
}

// leading is the place in words, with the address that it leads to.
func (p place) leading(ip netip.Addr) string {
	if p.ask == nil {
		return "`" + p.text + "`"
	}
	return "`" + p.text + "` leads to " + ip.String() + ", which"
}
