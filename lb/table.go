package lb

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"lbd/lb/http1"
)

// Table leads from a listener and a request's head to a route. Immutable; a lookup allocates nothing, and takes the same time
// with one host as with 100,000. What a host's routes demand besides plain paths costs time only there.
type Table struct {
	listeners map[string]*hosts
	pools     []*Pool
	routes    []*route // each once for each of its listeners, oldest first
}

// NewTable compiles routes, given oldest first: where two cannot be told apart the older one wins. It fails on a route
// without a pool or with more or less than one action, and names every such route.
func NewTable(routes []RouteConfig, pools []*Pool) (*Table, error) {
	byName := make(map[string]*Pool, len(pools))
	for _, p := range pools {
		byName[p.name] = p
	}
	t := &Table{listeners: newHosts(routes), pools: slices.Clone(pools)}
	var errs []error
	for i := range routes {
		p, err := newPlan(&routes[i], byName)
		if err != nil {
			errs = append(errs, fmt.Errorf("route %q: %w", routes[i].Name, err))
			continue
		}
		t.add(routes[i].Listeners, p)
	}
	return t, errors.Join(errs...)
}

func (t *Table) add(listeners []string, p *plan) {
	conditions, tested := newConditions(p.matches), newTested(p.matches)
	for _, name := range listeners {
		r := &route{plan: p, listener: name}
		t.routes = append(t.routes, r)
		h := t.listeners[name]
		if len(p.hosts) == 0 {
			h.any.add(p.matches, conditions, r)
			h.any.tested = h.any.tested.with(tested)
		}
		for _, host := range p.hosts {
			paths := h.of(host)
			paths.add(p.matches, conditions, r)
			paths.tested = paths.tested.with(tested)
		}
	}
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
	if r, prefix := h.exact[string(host)].lookup(req, trusted); r != nil {
		return r, prefix
	}
	// A wildcard stands for one label, so there is one suffix to try.
	if dot := bytes.IndexByte(host, '.'); dot > 0 {
		if r, prefix := h.wildcard[string(host[dot+1:])].lookup(req, trusted); r != nil {
			return r, prefix
		}
	}
	return h.any.lookup(req, trusted)
}

// tooLong returns a fault if a request has a part that is too long for what lookup would ask of it.
func (t *Table) tooLong(listener string, req *http1.Request, trusted bool) *fault {
	h := t.listeners[listener]
	if h == nil {
		return nil
	}
	asked := []*paths{h.exact[string(req.Host)], nil, &h.any}
	if dot := bytes.IndexByte(req.Host, '.'); dot > 0 {
		asked[1] = h.wildcard[string(req.Host[dot+1:])]
	}
	for _, p := range asked {
		if p == nil {
			continue
		}
		if f := p.tested.tooLong(req, trusted); f != nil {
			return f
		}
	}
	return nil
}

// hosts are the routes of one listener.
type hosts struct {
	exact    map[string]*paths
	wildcard map[string]*paths // by what follows "*."
	any      paths
}

// newHosts makes room for all hosts at once: a map that grows is filled again and again.
func newHosts(routes []RouteConfig) map[string]*hosts {
	type count struct{ exact, wildcard int }
	counts := make(map[string]*count)
	for i := range routes {
		for _, name := range routes[i].Listeners {
			c := counts[name]
			if c == nil {
				c = &count{}
				counts[name] = c
			}
			for _, host := range routes[i].Hosts {
				if isWildcard(host) {
					c.wildcard++
				} else {
					c.exact++
				}
			}
		}
	}
	all := make(map[string]*hosts, len(counts))
	for name, c := range counts {
		all[name] = &hosts{exact: make(map[string]*paths, c.exact), wildcard: make(map[string]*paths, c.wildcard)}
	}
	return all
}

func (h *hosts) of(host string) *paths {
	in := h.exact
	if isWildcard(host) {
		in, host = h.wildcard, host[2:]
	}
	p := in[host]
	if p == nil {
		p = &paths{}
		in[host] = p
	}
	return p
}

func isWildcard(host string) bool { return len(host) > 2 && host[:2] == "*." }

// NewOfflinePool returns a pool without backends, for a table that is asked and never served.
func NewOfflinePool(name string) *Pool { return newPool(&PoolConfig{Name: name}) }
