package state

import (
	"fmt"
	"net/http"
	"strings"
	"unicode/utf8"

	lbdv1 "lbd/proto/lbd/v1"
)

// claimsMax bounds listeners times hosts times matches of one route: each is an entry of the routing table.
const claimsMax = 10_000

// claim is one combination that a route answers. Two routes with the same claim cannot be told apart, and as nothing
// else decides between routes, the later one can never win there.
type claim struct {
	listener, host string // an empty host is any host
	match, path    string // "exact" or "prefix"
	index          int    // of the match; -1 when the route has none
}

// claims are a route's combinations, at most claimsMax. No match is the prefix "/".
func claims(r *lbdv1.Route) []claim {
	var paths []claim
	for i, m := range r.GetMatches() {
		switch match := m.GetPath().GetMatch().(type) {
		case *lbdv1.PathMatch_Exact:
			paths = append(paths, claim{match: "exact", path: match.Exact, index: i})
		case *lbdv1.PathMatch_Prefix:
			paths = append(paths, claim{match: "prefix", path: match.Prefix, index: i})
		}
	}
	if len(r.GetMatches()) == 0 {
		paths = []claim{{match: "prefix", path: "/", index: -1}}
	}
	hosts := r.GetHosts()
	if len(hosts) == 0 {
		hosts = []string{""}
	}
	var all []claim
	for _, listener := range r.GetListeners() {
		for _, host := range hosts {
			for _, p := range paths {
				if len(all) == claimsMax {
					return all
				}
				p.listener, p.host = listener, host
				all = append(all, p)
			}
		}
	}
	return all
}

func (m claim) field() string {
	if m.index < 0 {
		return ""
	}
	return fmt.Sprintf("matches[%d].path.%s", m.index, m.match)
}

func (m claim) String() string {
	host := "any host"
	if m.host != "" {
		host = "host `" + m.host + "`"
	}
	return fmt.Sprintf("listener `%s`, %s, path %s `%s`", m.listener, host, m.match, m.path)
}

func checkRoute(c *checker, r *lbdv1.Route) {
	c.checkCount("listeners", "listener", len(r.GetListeners()), addressesMax*addressesMax)
	c.checkDistinct("listeners", r.GetListeners())
	for i, name := range r.GetListeners() {
		c.refer(itemPath("listeners", i), Listeners, name)
	}
	if n := len(r.GetHosts()); n > hostsMax {
		c.errorf("hosts", "are %d: at most %d", n, hostsMax)
	}
	c.checkDistinct("hosts", r.GetHosts())
	for i, host := range r.GetHosts() {
		if host == "*" {
			c.errorf(itemPath("hosts", i), "`*` is no host name: leave `hosts` out to match any host")
		} else if _, isIP := splitIP(host); !isIP {
			c.checkPattern(itemPath("hosts", i), host)
		}
	}
	c.checkMatches(r.GetMatches())
	if n := len(r.GetListeners()) * max(1, len(r.GetHosts())) * max(1, len(r.GetMatches())); n > claimsMax {
		c.errorf("", "has %d combinations of listener, host and match: at most %d; split it", n, claimsMax)
		return
	}
	c.checkClaims(r)
	c.checkPolicies(r.GetPolicies())
	switch action := r.GetAction().(type) {
	case *lbdv1.Route_Forward:
		c.checkForward(action.Forward)
	case *lbdv1.Route_Respond:
		c.checkRespond(action.Respond)
	default:
		c.errorf("", "needs an action: `forward` or `respond`")
	}
}

func (c *checker) checkDistinct(field string, values []string) {
	seen := make(map[string]bool)
	for i, v := range values {
		if seen[v] {
			c.errorf(itemPath(field, i), "`%s` is there twice", v)
		}
		seen[v] = true
	}
}

func (c *checker) checkMatches(matches []*lbdv1.RouteMatch) {
	if n := len(matches); n > matchesMax {
		c.errorf("matches", "are %d: at most %d", n, matchesMax)
	}
	seen := make(map[string]int)
	for i, m := range matches {
		path := itemPath("matches", i) + ".path"
		var id string
		switch match := m.GetPath().GetMatch().(type) {
		case *lbdv1.PathMatch_Exact:
			path, id = path+".exact", "exact "+match.Exact
			c.checkTarget(path, match.Exact)
		case *lbdv1.PathMatch_Prefix:
			path, id = path+".prefix", "prefix "+match.Prefix
			c.checkTarget(path, match.Prefix)
		default:
			c.errorf(path, "is required: `exact` or `prefix`")
			continue
		}
		if first, twice := seen[id]; twice {
			c.errorf(path, "is the same as matches[%d]", first)
			continue
		}
		seen[id] = i
	}
}

// checkTarget checks a path as requests have it once it is normalised: one that requests never have is a mistake.
func (c *checker) checkTarget(field, path string) {
	switch {
	case !strings.HasPrefix(path, "/"):
		c.errorf(field, "path must start with `/`")
	case len(path) > pathBytesMax:
		c.errorf(field, "has %d bytes: at most %d", len(path), pathBytesMax)
	case !isASCII(path):
		c.errorf(field, "has a character that no path has: percent-encode it")
	case strings.ContainsAny(path, "?#"):
		c.errorf(field, "has a query or fragment: a path ends before `?` and `#`")
	case hasDotSegment(path):
		c.errorf(field, "has a dot segment: requests are matched with these resolved")
	}
}

func hasDotSegment(path string) bool {
	for segment := range strings.SplitSeq(path, "/") {
		if segment == "." || segment == ".." {
			return true
		}
	}
	return false
}

// checkClaims finds the routes that this one cannot be told apart from, each once.
func (c *checker) checkClaims(r *lbdv1.Route) {
	reported := make(map[string]bool)
	for _, m := range claims(r) {
		c.next.indexed(matchIndex(m.listener, m.host, m.match, m.path), func(name string) bool {
			other := Key{Routes, name}
			if other == c.key || reported[name] || !c.earlier(other) {
				return true
			}
			reported[name] = true
			c.errorf(m.field(), "cannot be told apart from route `%s`, so it would never win: both match %s", name, m)
			return true
		})
	}
}

func (c *checker) checkForward(f *lbdv1.Forward) {
	if n := len(f.GetPools()); n != 1 {
		c.errorf("forward.pools", "needs exactly one pool, not %d", n)
	}
	for i, p := range f.GetPools() {
		c.refer(itemPath("forward.pools", i)+".pool", Pools, p.GetPool())
	}
	t := f.GetTimeouts()
	c.checkTimeout("forward.timeouts.first_byte", t.GetFirstByte())
	c.checkTimeout("forward.timeouts.body_idle", t.GetBodyIdle())
	c.checkTimeout("forward.timeouts.request", t.GetRequest())
	c.checkTimeout("forward.timeouts.tunnel", t.GetTunnel())
	c.checkRetry(f.GetRetry())
}

func (c *checker) checkPolicies(names []string) {
	if n := len(names); n > policiesMax {
		c.errorf("policies", "are %d: at most %d", n, policiesMax)
	}
	c.checkDistinct("policies", names)
	for i, name := range names {
		c.refer(itemPath("policies", i), Policies, name)
	}
}

// forbiddenHeaders would break the message around the answer: its framing and its connection are the codec's.
var forbiddenHeaders = map[string]bool{
	"connection": true, "content-length": true, "keep-alive": true, "proxy-connection": true, "te": true,
	"trailer": true, "transfer-encoding": true, "upgrade": true,
}

func (c *checker) checkRespond(r *lbdv1.Respond) {
	if s := r.GetStatus(); s < 200 || s > 599 {
		c.errorf("respond.status", "must be 200 to 599, not %d", s)
	}
	switch s := r.GetStatus(); {
	case len(r.GetBody()) > bodyBytesMax:
		c.errorf("respond.body", "has %d bytes: at most %d", len(r.GetBody()), bodyBytesMax)
	case r.GetBody() != "" && (s == http.StatusNoContent || s == http.StatusNotModified):
		c.errorf("respond.body", "an answer with status %d has no body", s)
	}
	if n := len(r.GetHeaders()); n > headersMax {
		c.errorf("respond.headers", "are %d: at most %d", n, headersMax)
	}
	for _, name := range sortedKeys(r.GetHeaders()) {
		c.checkHeader(mapPath("respond.headers", name), name, r.GetHeaders()[name])
	}
}

func (c *checker) checkHeader(path, name, value string) {
	switch {
	case !isToken(name):
		c.errorf(path, "is no header name")
	case forbiddenHeaders[strings.ToLower(name)]:
		c.errorf(path, "is set by lbd itself: leave it out")
	case len(name)+len(value) > headerBytesMax:
		c.errorf(path, "has %d bytes: at most %d", len(name)+len(value), headerBytesMax)
	case !isFieldValue(value):
		c.errorf(path, "has a control character in its value, or a space at its ends")
	}
}

// isToken is RFC 9110, section 5.6.2.
func isToken(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		return !letter && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
	})
}

// isFieldValue is RFC 9110, section 5.5, without obs-text.
func isFieldValue(s string) bool {
	if s != strings.Trim(s, " \t") || !utf8.ValidString(s) {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool { return r != '\t' && (r < ' ' || r > 0x7e) })
}
