package lb

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
)

// RouteConfig says what happens to the requests that it matches. Exactly one of Forward and Respond is set.
type RouteConfig struct {
	Name      string
	Listeners []string // names
	Hosts     []string // lower case; exact, or "*." and a suffix (one label); none: any host
	Matches   []Match  // any of them; none: any request
	Forward   *Forward
	Respond   *Respond

	BodyBytesMax int64 // of a request's body; 0: no limit
	EncodedSlash bool  // a path may hold %2F or %5C
}

// Match is a condition on the normalised path: the whole of it, or its first segments. Both empty: any path.
type Match struct {
	Exact  string
	Prefix string
}

// Forward sends the request to a pool.
type Forward struct {
	Pool     string
	Timeouts RouteTimeouts
	Retry    Retry
}

// Respond is a fixed answer.
type Respond struct {
	Status  int // 200 to 599
	Body    string
	Headers []Header // neither framing nor connection fields
}

// Header is one field of a fixed answer.
type Header struct{ Name, Value string }

// route is a compiled RouteConfig on one of its listeners: immutable once served, shared by every place of the table that
// leads to it there.
type route struct {
	name     string
	listener string
	traffic  *traffic // from the server, when the table is set
	pool     *Pool    // nil: respond
	timeouts RouteTimeouts
	retry    Retry
	respond  *answer

	bodyBytesMax int64
	encodedSlash bool
}

func newRoute(cfg *RouteConfig, pools map[string]*Pool) (*route, error) {
	r := &route{name: cfg.Name, bodyBytesMax: cmp.Or(cfg.BodyBytesMax, math.MaxInt64), encodedSlash: cfg.EncodedSlash}
	switch {
	case (cfg.Forward == nil) == (cfg.Respond == nil):
		return nil, fmt.Errorf("route %q: needs exactly one action", cfg.Name)
	case cfg.Respond != nil:
		r.respond = newAnswer(cfg.Respond)
		return r, nil
	}
	r.pool = pools[cfg.Forward.Pool]
	if r.pool == nil {
		return nil, fmt.Errorf("route %q: no pool %q", cfg.Name, cfg.Forward.Pool)
	}
	r.timeouts, r.retry = cfg.Forward.Timeouts.withDefaults(), cfg.Forward.Retry.withDefaults()
	return r, nil
}

// Table leads from listener, host and path to a route. Immutable; a lookup allocates nothing and takes the same time with
// one host as with 100,000.
type Table struct {
	listeners map[string]*hosts
	pools     []*Pool
	routes    []*route // each once for each of its listeners
}

// NewTable compiles routes, given oldest first: where two cannot be told apart the older one wins. It fails on a route
// without a pool or with more or less than one action, and names every such route.
func NewTable(routes []RouteConfig, pools []*Pool) (*Table, error) {
	byName := make(map[string]*Pool, len(pools))
	for _, p := range pools {
		byName[p.name] = p
	}
	t := &Table{listeners: make(map[string]*hosts), pools: slices.Clone(pools)}
	var errs []error
	for i := range routes {
		r, err := newRoute(&routes[i], byName)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		t.add(&routes[i], r)
	}
	return t, errors.Join(errs...)
}

// on returns the route as one of its listeners has it: what it counts is that listener's.
func (r *route) on(listener string) *route {
	c := *r
	c.listener = listener
	return &c
}

func (t *Table) add(cfg *RouteConfig, r *route) {
	for _, name := range cfg.Listeners {
		r := r.on(name)
		t.routes = append(t.routes, r)
		h := t.listeners[name]
		if h == nil {
			h = &hosts{exact: make(map[string]*paths), wildcard: make(map[string]*paths)}
			t.listeners[name] = h
		}
		if len(cfg.Hosts) == 0 {
			h.any.add(cfg.Matches, r)
		}
		for _, host := range cfg.Hosts {
			h.of(host).add(cfg.Matches, r)
		}
	}
}

// lookup returns the route of a request, nil if there is none. host is lower case without port, empty if the request named
// none; path is normalised. Host: exact before wildcard before none; in each, path: exact before the longest prefix.
func (t *Table) lookup(listener string, host, path []byte) *route {
	h := t.listeners[listener]
	if h == nil {
		return nil
	}
	if r := h.exact[string(host)].lookup(path); r != nil {
		return r
	}
	// A wildcard stands for one label, so there is one suffix to try.
	if dot := bytes.IndexByte(host, '.'); dot > 0 {
		if r := h.wildcard[string(host[dot+1:])].lookup(path); r != nil {
			return r
		}
	}
	return h.any.lookup(path)
}

// hosts are the routes of one listener.
type hosts struct {
	exact    map[string]*paths
	wildcard map[string]*paths // by what follows "*."
	any      paths
}

func (h *hosts) of(host string) *paths {
	in := h.exact
	if len(host) > 2 && host[:2] == "*." {
		in, host = h.wildcard, host[2:]
	}
	p := in[host]
	if p == nil {
		p = &paths{}
		in[host] = p
	}
	return p
}

// paths are the routes of one host. Most hosts have only a root, so that is a field and the maps may be nil.
type paths struct {
	exact     map[string]*route
	prefixes  map[string]*route // without the slash at the end; never empty
	prefixMax int               // length of the longest: bounds what a long path can make us hash
	root      *route
}

func (p *paths) add(matches []Match, r *route) {
	if len(matches) == 0 {
		matches = []Match{{}}
	}
	for _, m := range matches {
		prefix := trimSlash(m.Prefix)
		switch {
		case m.Exact != "":
			p.exact = addIfNew(p.exact, m.Exact, r)
		case prefix != "":
			p.prefixes = addIfNew(p.prefixes, prefix, r)
			p.prefixMax = max(p.prefixMax, len(prefix))
		case p.root == nil:
			p.root = r
		}
	}
}

func addIfNew(m map[string]*route, key string, r *route) map[string]*route {
	if m == nil {
		m = make(map[string]*route)
	}
	if m[key] == nil {
		m[key] = r
	}
	return m
}

func trimSlash(prefix string) string {
	if n := len(prefix); n > 0 && prefix[n-1] == '/' {
		return prefix[:n-1]
	}
	return prefix
}

func (p *paths) lookup(path []byte) *route {
	if p == nil {
		return nil
	}
	if p.exact != nil {
		if r := p.exact[string(path)]; r != nil {
			return r
		}
	}
	if p.prefixes != nil {
		// Every place where a whole segment ends, from the right.
		for end := min(len(path), p.prefixMax); end > 0; end-- {
			if end < len(path) && path[end] != '/' {
				continue
			}
			if r := p.prefixes[string(path[:end])]; r != nil {
				return r
			}
		}
	}
	return p.root
}
