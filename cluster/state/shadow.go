package state

import (
	"fmt"
	"strconv"
	"strings"

	lbdv1 "lbd/proto/lbd/v1"
)

// Which route answers is decided claim by claim: a claim is one listener, host and match of a route. Claims with the
// same listener and host are one group, asked in this order: higher priority; path exact, longest prefix, regex, none;
// more conditions; older; name. A host that has a group is not asked for another one's routes unless none of its own
// matches, so no claim is hidden by another group's: that of "*.example.com" still has the other names.
//
// A claim never wins if another route's in its group is asked before it and matches all that it matches. Only what the
// paths and the words of the conditions show is found: what covers a prefix is a prefix above it, what covers a regular
// expression is the same one, or all paths.

// claimsMax bounds listeners times hosts times matches of one route: each is an entry of the routing table.
const claimsMax = 10_000

type claim struct {
	route          string
	listener, host string // an empty host is any host
	path           pathRule
	conditions     conditions
	index          int // of the match; -1 when the route has none
	match          *lbdv1.RouteMatch
}

// claims are a route's, at most claimsMax.
func claims(name string, r *lbdv1.Route) []claim {
	templates := []claim{{route: name, path: pathOf(nil), index: -1}}
	if len(r.GetMatches()) > 0 {
		templates = templates[:0]
	}
	for i, m := range r.GetMatches() {
		templates = append(templates, claim{route: name, path: pathOf(m), conditions: conditionsOf(m), index: i, match: m})
	}
	hosts := r.GetHosts()
	if len(hosts) == 0 {
		hosts = []string{""}
	}
	all := make([]claim, 0, min(claimsMax, len(r.GetListeners())*len(hosts)*len(templates)))
	for _, listener := range r.GetListeners() {
		for _, host := range hosts {
			for _, m := range templates {
				if len(all) == claimsMax {
					return all
				}
				m.listener, m.host = listener, host
				all = append(all, m)
			}
		}
	}
	return all
}

// indexClaim is where a claim is found.
func indexClaim(m claim) string {
	return matchIndex(m.listener, m.host, m.path.kind, m.path.text) + join(m.conditions.id, m.route, strconv.Itoa(m.index))
}

func (m claim) field() string {
	if m.index < 0 {
		return ""
	}
	return itemPath("matches", m.index)
}

func (m claim) String() string {
	host := "any host"
	if m.host != "" {
		host = "host `" + m.host + "`"
	}
	text := fmt.Sprintf("listener `%s`, %s, %s", m.listener, host, m.path)
	if m.conditions.n > 0 {
		text += " and the same other conditions"
	}
	return text
}

// looks bounds what one check reads of other routes, and of networks.
type looks struct{ ahead, back, networks int }

// rank is where a kind of path stands among claims of one priority.
var rank = map[string]int{"exact": 3, "prefix": 2, "regex": 1, "any": 0}

// before tells whether claim a is asked before b, both of one group, and why.
func (c *checker) before(a, b claim) (first bool, why string) {
	x, y := c.route(a.route), c.route(b.route)
	switch {
	case x.GetPriority() != y.GetPriority():
		return x.GetPriority() > y.GetPriority(), "has the higher priority"
	case a.path.kind != b.path.kind:
		return rank[a.path.kind] > rank[b.path.kind], "is asked first for its path"
	case a.path.kind == "prefix" && len(a.path.text) != len(b.path.text):
		return len(a.path.text) > len(b.path.text), "has the longer prefix"
	case a.conditions.n != b.conditions.n:
		return a.conditions.n > b.conditions.n, "has more conditions"
	}
	if m, n := c.age(a.route), c.age(b.route); m != n {
		return m < n, "is older"
	}
	return a.route < b.route, "comes first by name"
}

func (c *checker) route(name string) *lbdv1.Route {
	r, _ := c.next.Get(Routes, name)
	return r.GetResource().GetRoute()
}

// age is the revision that decides which of two routes is older; that of a route which the change makes is still to come.
func (c *checker) age(name string) int64 {
	if stored, existed := c.base.Get(Routes, name); existed {
		return Created(stored)
	}
	return c.base.revision + 1
}

// hiding is a claim that wins all that another one matches.
type hiding struct {
	by   claim
	why  string
	same bool // by matches nothing else
}

// hidden finds out whether a claim can never win.
func (c *checker) hidden(m claim) (found hiding, ok bool) {
	for _, place := range above(m.path) {
		left := looksPerPlaceMax
		c.next.indexed(matchIndex(m.listener, m.host, place.kind, place.text), func(rest string) bool {
			c.looks.ahead++
			left--
			other, is := c.claimAt(m, place, rest)
			if is && other.route != m.route && covers(other.match, m.match) {
				if first, why := c.before(other, m); first {
					found, ok = hiding{other, why, other.path == m.path && other.conditions == m.conditions && why != "has the higher priority"}, true
				}
			}
			return !ok && left > 0
		})
		if c.looks.ahead++; ok || c.looks.ahead > looksMax {
			break
		}
	}
	return found, ok
}

// claimAt is the claim of m's group at a place, by the rest of its index key.
func (c *checker) claimAt(m claim, place pathRule, rest string) (claim, bool) {
	id, rest, _ := strings.Cut(rest, sep)
	name, text, _ := strings.Cut(rest, sep)
	index, err := strconv.Atoi(text)
	matches := c.route(name).GetMatches()
	if err != nil || index >= len(matches) {
		return claim{}, false
	}
	other := claim{route: name, listener: m.listener, host: m.host, path: place, index: index}
	other.conditions.id = id
	if index >= 0 {
		other.match = matches[index]
		other.conditions.n, _ = strconv.Atoi(id[:min(len(id), 2)])
	}
	return other, true
}

// above are the paths that match all that a path matches, itself first.
func above(p pathRule) []pathRule {
	if p.kind == "any" {
		return []pathRule{p, {"prefix", "/"}}
	}
	all := []pathRule{p}
	if p.kind != "regex" {
		for i := 1; i < len(p.text) && len(all) < ancestorsMax; i++ {
			if p.text[i] == '/' {
				all = append(all, pathRule{"prefix", p.text[:i]})
			}
		}
	}
	if p.kind == "exact" && p.text != "/" {
		all = append(all, pathRule{"prefix", p.text})
	}
	if p != (pathRule{"prefix", "/"}) {
		all = append(all, pathRule{"prefix", "/"})
	}
	return append(all, pathRule{kind: "any"})
}

// checkShadows warns of what this route or, because of it, one that is not in the change can never win.
func (c *checker) checkShadows(r *lbdv1.Route) {
	all := claims(r.GetName(), r)
	told := make(map[string]bool)
	open := make([]bool, max(1, len(r.GetMatches()))) // by match: whether it may win somewhere
	wide := make([]hiding, len(open))                 // and what hides it besides claims that are the same
	anyOpen, anyWide := false, hiding{}
	for _, m := range all {
		if c.looks.ahead > looksMax {
			return
		}
		i := max(0, m.index)
		h, hidden := c.hidden(m)
		switch {
		case !hidden:
			open[i], anyOpen = true, true
		case !h.same:
			wide[i], anyWide = h, h
		case !told[h.by.route]:
			told[h.by.route] = true
			c.warnf(m.field(), "cannot be told apart from route `%s`, which %s and wins: both match %s: give one of them a `priority`, or delete `%s`",
				h.by.route, h.why, m, h.by.route)
		}
	}
	if !anyOpen && anyWide.by.route != "" {
		c.warnf("", "can never win: route `%s` %s and matches all that this one does", anyWide.by.route, anyWide.why)
		return
	}
	for i, h := range wide {
		if !open[i] && h.by.route != "" {
			c.warnf(itemPath("matches", i), "can never win: route `%s` %s and matches all that this does", h.by.route, h.why)
		}
	}
	c.checkShadowed(all)
}

// checkShadowed warns of routes that are not in the change and which these claims keep from ever winning.
func (c *checker) checkShadowed(all []claim) {
	seen := make(map[string]bool)
	for _, m := range all {
		for _, prefix := range below(m) {
			left := looksPerClaimBack
			c.next.indexed(prefix, func(rest string) bool {
				c.looks.back++
				left--
				parts := strings.Split(rest, sep)
				if len(parts) >= 2 {
					c.checkShadowedRoute(parts[len(parts)-2], m.route, seen)
				}
				return left > 0 && c.looks.back <= looksBackMax
			})
			if c.looks.back > looksBackMax {
				return
			}
		}
	}
}

// below are the parts of the index in which all is that a claim may keep from winning.
func below(m claim) []string {
	at := func(kind string) string { return matchIndex(m.listener, m.host, kind, m.path.text) }
	switch {
	case m.path.kind == "any" || m.path == pathRule{"prefix", "/"}:
		return []string{join("match", m.listener, m.host, "")}
	case m.path.kind == "prefix":
		return []string{strings.TrimSuffix(at("exact"), sep), strings.TrimSuffix(at("prefix"), sep)}
	default:
		return []string{at(m.path.kind)}
	}
}

func (c *checker) checkShadowedRoute(name, by string, seen map[string]bool) {
	if _, changed := c.position[Key{Routes, name}]; changed || seen[name] {
		return
	}
	seen[name] = true
	apart, ours := true, false
	for _, m := range claims(name, c.route(name)) {
		c.looks.back++
		h, hidden := c.hidden(m)
		if !hidden || c.looks.back > looksBackMax {
			return
		}
		apart = apart && !h.same
		ours = ours || h.by.route == by
	}
	switch {
	case !ours:
	case apart:
		c.warnf("", "keeps route `%s` from ever winning: it matches all that that one does and is asked first", name)
	default:
		c.warnf("", "cannot be told apart from route `%s`, which can never win: give one of them a `priority`, or delete `%s`", name, name)
	}
}
