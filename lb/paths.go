package lb

import (
	"regexp"
	"slices"

	"lbd/lb/http1"
)

// paths are the routes of hosts with one priority; next are those of a lower one. Most hosts have one priority, and only
// plain places, so what they need are fields, and the maps and slices may be nil.
//
// The order of questions is that of the rules: exact, prefixes from the longest to "/", regexes, any.
type paths struct {
	priority  int
	exact     map[string]place
	prefixes  map[string]place // without the slash at the end; never empty
	prefixMax int              // length of the longest: bounds what a long path can make us hash
	root      place            // prefix "/"
	regexes   []regexPlace
	any       place // no condition on the path
	next      *paths
	tested    *tested // of all priorities, in the first
}

// place is who takes a path: the first whose conditions hold. Those with more conditions come first, then the older; behind one
// without conditions nobody is kept.
type place struct {
	route *route     // nil: nobody
	when  *condition // nil: always
	next  *place
}

type regexPlace struct {
	regex *regexp.Regexp // anchored
	place
}

// noPrefix, as the length of the prefix that matched, says that it was no prefix.
const noPrefix = -1

func (p *place) with(r *route, when *condition) place {
	first := *p
	switch {
	case first.route == nil:
		return place{route: r, when: when}
	case when.count() > first.when.count():
		return place{route: r, when: when, next: &first}
	}
	at := &first
	for at.next != nil && at.next.when.count() >= when.count() {
		at = at.next
	}
	if at.when != nil {
		at.next = &place{route: r, when: when, next: at.next}
	}
	return first
}

func (p *place) take(req *http1.Request, trusted bool) *route {
	if p.when == nil {
		return p.route
	}
	return p.takeIf(req, trusted)
}

func (p *place) takeIf(req *http1.Request, trusted bool) *route {
	for ; p != nil; p = p.next {
		if p.when == nil || p.when.holds(req, trusted) {
			return p.route
		}
	}
	return nil
}

// of returns the paths with the given priority, made if need be, in the list that begins at p.
func (p *paths) of(priority int) *paths {
	if p.isEmpty() {
		p.priority = priority
	}
	if priority > p.priority {
		lower := *p
		*p = paths{priority: priority, next: &lower, tested: lower.tested}
	}
	for p.priority != priority {
		if p.next == nil || p.next.priority < priority {
			p.next = &paths{priority: priority, next: p.next}
		}
		p = p.next
	}
	return p
}

func (p *paths) isEmpty() bool {
	return p.next == nil && p.exact == nil && p.prefixes == nil && p.root.route == nil && p.regexes == nil && p.any.route == nil
}

// add has a route take what a plan matches.
func (p *paths) add(plan *plan, r *route) {
	p.tested = p.tested.with(plan.tested)
	p = p.of(plan.priority)
	if len(plan.matches) == 0 {
		p.any = p.any.with(r, nil)
	}
	for i := range plan.matches {
		m, when := &plan.matches[i], (*condition)(nil)
		if plan.conditions != nil {
			when = plan.conditions[i]
		}
		prefix := trimSlash(m.Prefix)
		switch {
		case m.Exact != "":
			p.exact = addPlace(p.exact, m.Exact, r, when)
		case prefix != "":
			p.prefixes = addPlace(p.prefixes, prefix, r, when)
			p.prefixMax = max(p.prefixMax, len(prefix))
		case m.Prefix != "":
			p.root = p.root.with(r, when)
		case m.Regex != nil:
			p.addRegex(m.Regex, r, when)
		default:
			p.any = p.any.with(r, when)
		}
	}
}

func addPlace(m map[string]place, key string, r *route, when *condition) map[string]place {
	if m == nil {
		m = make(map[string]place)
	}
	at := m[key]
	m[key] = at.with(r, when)
	return m
}

// addRegex keeps those with more conditions before those with less, and the older before the newer.
func (p *paths) addRegex(regex *regexp.Regexp, r *route, when *condition) {
	i := len(p.regexes)
	for i > 0 && p.regexes[i-1].when.count() < when.count() {
		i--
	}
	p.regexes = slices.Insert(p.regexes, i, regexPlace{regex, place{route: r, when: when}})
}

func trimSlash(prefix string) string {
	if n := len(prefix); n > 0 && prefix[n-1] == '/' {
		return prefix[:n-1]
	}
	return prefix
}

// lookup returns the route, and how much of the path was its prefix.
func (p *paths) lookup(req *http1.Request, trusted bool) (*route, int) {
	for ; p != nil; p = p.next {
		if r, prefix := p.lookupHere(req, trusted); r != nil {
			return r, prefix
		}
	}
	return nil, noPrefix
}

func (p *paths) lookupHere(req *http1.Request, trusted bool) (*route, int) {
	path := req.Path
	if p.exact != nil {
		at := p.exact[string(path)]
		if r := at.take(req, trusted); r != nil {
			return r, noPrefix
		}
	}
	if p.prefixes != nil {
		// Every place where a whole segment ends, from the right.
		for end := min(len(path), p.prefixMax); end > 0; end-- {
			if end < len(path) && path[end] != '/' {
				continue
			}
			at := p.prefixes[string(path[:end])]
			if r := at.take(req, trusted); r != nil {
				return r, end
			}
		}
	}
	if r := p.root.take(req, trusted); r != nil {
		return r, 0
	}
	for i := range p.regexes {
		if at := &p.regexes[i]; at.regex.Match(path) {
			if r := at.take(req, trusted); r != nil {
				return r, noPrefix
			}
		}
	}
	return p.any.take(req, trusted), noPrefix
}
