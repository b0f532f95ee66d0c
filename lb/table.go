package lb

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"lbd/lb/http1"
)

// Table leads from a listener and a request's head to a route. Immutable; a lookup allocates nothing, and takes the same time
// with one host as with 100,000, but for what the memory takes. What a host's routes demand besides plain paths costs time only there.
type Table struct {
	listeners map[string]*hosts
	forms     []paths // of hosts; those with one route share theirs
	pools     []*Pool
	routes    []route // each once for each of its listeners, oldest first
}

// NewTable compiles routes, given oldest first: where two cannot be told apart the older one wins. It fails on a route
// without a pool or with more or less than one action, and names every such route.
func NewTable(routes []RouteConfig, pools []*Pool) (*Table, error) {
	byName := make(map[string]*Pool, len(pools))
	for _, p := range pools {
		byName[p.name] = p
	}
	size := 0
	for i := range routes {
		size += len(routes[i].Listeners)
	}
	// There are pointers to routes, so they stay where they are.
	t := &Table{listeners: newHosts(routes), pools: slices.Clone(pools), routes: make([]route, 0, size)}
	forms := make(plainForms)
	var errs []error
	for i := range routes {
		p, err := newPlan(&routes[i], byName)
		if err != nil {
			errs = append(errs, fmt.Errorf("route %q: %w", routes[i].Name, err))
			continue
		}
		t.add(routes[i].Listeners, p, forms)
	}
	return t, errors.Join(errs...)
}

func (t *Table) add(listeners []string, p *plan, forms plainForms) {
	form := uint32(0)
	if len(p.hosts) > 0 {
		form = t.formOf(p, forms)
	}
	for _, name := range listeners {
		t.routes = append(t.routes, route{plan: p, listener: name})
		r, h := uint32(len(t.routes)-1), t.listeners[name]
		if len(p.hosts) == 0 {
			h.any.add(p, &t.routes[r])
		}
		for _, host := range p.hosts {
			in, name := h.of(host)
			t.addHost(in, name, hostEntry{form, r})
		}
	}
}

// itsRoute stands for the one route of a host.
var itsRoute = &route{plan: &plan{name: "the route of the host"}}

// manyRoutes, as the route of a host, says that it has several, and a form of its own that holds them.
const manyRoutes = math.MaxUint32

// plainForms are the forms of hosts with one route, by what it matches. Most routes match the same as others, and a form that many hosts
// share is always in the processor's caches.
type plainForms map[string]uint32

// formOf returns the form of hosts that have only this route.
func (t *Table) formOf(p *plan, forms plainForms) uint32 {
	key, plain := p.matchKey()
	if form, ok := forms[key]; ok && plain {
		return form
	}
	form := uint32(len(t.forms))
	t.forms = append(t.forms, paths{})
	t.forms[form].add(p, itsRoute)
	if plain {
		forms[key] = form
	}
	return form
}

// matchKey is the same for plans that match the same; plain says that there is one.
func (p *plan) matchKey() (key string, plain bool) {
	if p.conditions != nil {
		return "", false
	}
	for i := range p.matches {
		m := &p.matches[i]
		if m.Regex != nil {
			return "", false
		}
		key += strconv.Quote(m.Exact) + strconv.Quote(m.Prefix)
	}
	return key, true
}

func (t *Table) addHost(in *hostIndex, name string, own hostEntry) {
	there, found := in.find([]byte(name))
	switch {
	case !found:
		in.put(name, own)
		return
	case there.route == own.route: // named twice
		return
	case there.route != manyRoutes:
		first := &t.routes[there.route]
		there = hostEntry{uint32(len(t.forms)), manyRoutes}
		t.forms = append(t.forms, paths{})
		t.forms[there.form].add(first.plan, first)
		in.put(name, there)
	}
	r := &t.routes[own.route]
	t.forms[there.form].add(r.plan, r)
}

// lookup returns the route of a request, nil if there is none, and how much of the path was the prefix that matched (noPrefix: it
// was no prefix). Host: exact before wildcard before none; where no route of one level takes the request the next is asked.
// trusted says that the peer is a proxy of ours.
func (t *Table) lookup(listener string, req *http1.Request, trusted bool) (*route, int) {
	h := t.listeners[listener]
	if h == nil {
		return nil, noPrefix
	}
	host := req.Host
	if e, ok := h.exact.find(host); ok {
		if r, prefix := t.ask(e, req, trusted); r != nil {
			return r, prefix
		}
	}
	// A wildcard stands for one label, so there is one suffix to try.
	if dot := bytes.IndexByte(host, '.'); dot > 0 {
		if e, ok := h.wildcard.find(host[dot+1:]); ok {
			if r, prefix := t.ask(e, req, trusted); r != nil {
				return r, prefix
			}
		}
	}
	return h.any.lookup(req, trusted)
}

func (t *Table) ask(e hostEntry, req *http1.Request, trusted bool) (*route, int) {
	r, prefix := t.forms[e.form].lookup(req, trusted)
	if r == itsRoute {
		r = &t.routes[e.route]
	}
	return r, prefix
}

// tooLong returns a fault if a request has a part that is too long for what lookup would ask of it.
func (t *Table) tooLong(listener string, req *http1.Request, trusted bool) *fault {
	h := t.listeners[listener]
	if h == nil {
		return nil
	}
	asked := append(make([]*paths, 0, 3), &h.any)
	if e, ok := h.exact.find(req.Host); ok {
		asked = append(asked, &t.forms[e.form])
	}
	if dot := bytes.IndexByte(req.Host, '.'); dot > 0 {
		if e, ok := h.wildcard.find(req.Host[dot+1:]); ok {
			asked = append(asked, &t.forms[e.form])
		}
	}
	for _, p := range asked {
		if f := p.tested.tooLong(req, trusted); f != nil {
			return f
		}
	}
	return nil
}

// hosts are the routes of one listener.
type hosts struct {
	exact    hostIndex
	wildcard hostIndex // by what follows "*."
	any      paths
}

// newHosts makes room for all hosts at once.
func newHosts(routes []RouteConfig) map[string]*hosts {
	type size struct{ names, octets int }
	type sizes struct{ exact, wildcard size }
	all := make(map[string]*sizes)
	for i := range routes {
		for _, name := range routes[i].Listeners {
			s := all[name]
			if s == nil {
				s = &sizes{}
				all[name] = s
			}
			for _, host := range routes[i].Hosts {
				of := &s.exact
				if isWildcard(host) {
					of = &s.wildcard
				}
				of.names++
				of.octets += len(host)
			}
		}
	}
	made := make(map[string]*hosts, len(all))
	for name, s := range all {
		made[name] = &hosts{exact: newHostIndex(s.exact.names, s.exact.octets), wildcard: newHostIndex(s.wildcard.names, s.wildcard.octets)}
	}
	return made
}

// of returns the index that a route's host belongs to, and its name there.
func (h *hosts) of(host string) (*hostIndex, string) {
	if isWildcard(host) {
		return &h.wildcard, host[2:]
	}
	return &h.exact, host
}

func isWildcard(host string) bool { return len(host) > 2 && host[:2] == "*." }

// NewOfflinePool returns a pool without backends, for a table that is asked and never served.
func NewOfflinePool(name string) *Pool { return newPool(&PoolConfig{Name: name}) }
