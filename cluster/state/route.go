package state

import (
	"strings"

	lbdv1 "lbd/proto/lbd/v1"
)

func checkRoute(c *checker, r *lbdv1.Route) {
	c.checkRouteListeners(r)
	c.checkRouteHosts(r.GetHosts())
	c.checkMatches(r.GetMatches())
	if p := r.GetPriority(); p < -priorityMax || p > priorityMax {
		c.errorf("priority", "must be %d to %d, not %d", -priorityMax, priorityMax, p)
	}
	c.checkAction(r)
	c.checkPolicies(r.GetPolicies())
	c.checkHeaderChanges("request_headers", r.GetRequestHeaders(), requestFieldsOfOurs)
	c.checkHeaderChanges("response_headers", r.GetResponseHeaders(), responseFieldsOfOurs)
	c.checkErrorPages(r.GetErrorPages())
	c.checkMaintenance(r.GetMaintenance())
	if n := len(r.GetListeners()) * max(1, len(r.GetHosts())) * max(1, len(r.GetMatches())); n > claimsMax {
		c.errorf("", "has %d combinations of listener, host and match: at most %d; split it", n, claimsMax)
		return
	}
	c.checkShadows(r)
	c.checkRegexes(r)
}

// checkRouteListeners checks that the listeners are there, and are there for this owner.
func (c *checker) checkRouteListeners(r *lbdv1.Route) {
	c.checkCount("listeners", "listener", len(r.GetListeners()), addressesMax*addressesMax)
	c.checkDistinct("listeners", r.GetListeners())
	self, _ := c.next.Get(Routes, r.GetName())
	owner := self.GetResource().GetOwner()
	for i, name := range r.GetListeners() {
		path := itemPath("listeners", i)
		c.refer(path, Listeners, name)
		if l, ok := c.next.Get(Listeners, name); ok && !mayUse(l.GetResource(), owner) {
			c.errorf(path, "listener `%s` belongs to owner `%s`, whose allowed_owners do not name `%s`", name, l.GetResource().GetOwner(), owner)
		}
	}
}

func (c *checker) checkRouteHosts(hosts []string) {
	c.checkMost("hosts", len(hosts), hostsMax)
	c.checkDistinct("hosts", hosts)
	for i, host := range hosts {
		if host == "*" {
			c.errorf(itemPath("hosts", i), "`*` is no host name: leave `hosts` out to match any host")
		} else if _, isIP := splitIP(host); !isIP {
			c.checkPattern(itemPath("hosts", i), host)
		}
	}
}

func (c *checker) checkAction(r *lbdv1.Route) {
	switch action := r.GetAction().(type) {
	case *lbdv1.Route_Forward:
		c.checkForward(r, action.Forward)
	case *lbdv1.Route_Respond:
		c.checkRespond(action.Respond)
	case *lbdv1.Route_Redirect:
		c.checkRedirect(r, action.Redirect)
	default:
		c.errorf("", "needs an action: `forward`, `redirect` or `respond`")
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

func (c *checker) checkForward(r *lbdv1.Route, f *lbdv1.Forward) {
	c.checkForwardPools(f.GetPools())
	t := f.GetTimeouts()
	c.checkTimeout("forward.timeouts.first_byte", t.GetFirstByte())
	c.checkTimeout("forward.timeouts.body_idle", t.GetBodyIdle())
	c.checkTimeout("forward.timeouts.request", t.GetRequest())
	c.checkTimeout("forward.timeouts.tunnel", t.GetTunnel())
	c.checkRetry(f.GetRetry())
	if s := f.GetSplitPersistence(); s != nil {
		c.checkCookie("forward.split_persistence.cookie", s.GetCookie())
		c.checkSpan("forward.split_persistence.idle_timeout", s.GetIdleTimeout(), bindingMin, bindingMax)
		c.checkCookieClash(f)
	}
	c.checkBindings(r)
	if f.GetRewrite() != nil {
		c.checkRewrite(r, f.GetRewrite())
	}
}

func (c *checker) checkForwardPools(pools []*lbdv1.ForwardPool) {
	const base = "forward.pools"
	c.checkCount(base, "pool", len(pools), poolsMax)
	seen := make(map[string]bool)
	idle := len(pools) > 0
	for i, p := range pools {
		path := itemPath(base, i)
		c.refer(path+".pool", Pools, p.GetPool())
		if seen[p.GetPool()] && p.GetPool() != "" {
			c.errorf(path+".pool", "`%s` is there twice", p.GetPool())
		}
		seen[p.GetPool()] = true
		if w := p.GetWeight(); w < 0 || w > poolWeightMax {
			c.errorf(path+".weight", "must be 0 to %d, not %d", poolWeightMax, w)
		}
		idle = idle && p != nil && p.Weight != nil && p.GetWeight() == 0
	}
	if idle {
		c.errorf(base, "all have weight 0: no pool is left for new requests")
	}
}

// checkCookieClash refuses one name for the cookie that binds to a pool and the one that binds to a backend in it: each
// would overwrite the other. A pool that is changed looks for the routes that are not.
func (c *checker) checkCookieClash(f *lbdv1.Forward) {
	cookie := f.GetSplitPersistence().GetCookie()
	for _, p := range f.GetPools() {
		stored, _ := c.next.Get(Pools, p.GetPool())
		if session := stored.GetResource().GetPool().GetSessionPersistence(); session != nil && session.GetCookie() == cookie {
			c.errorf("forward.split_persistence.cookie", "is that of session_persistence of pool `%s` too: each needs its own", p.GetPool())
		}
	}
}

func (c *checker) checkRewrite(r *lbdv1.Route, w *lbdv1.Rewrite) {
	const base = "forward.rewrite."
	if w.GetHost() != "" {
		if fault := authorityFault(w.GetHost()); fault != "" {
			c.errorf(base+"host", "`%s` %s", w.GetHost(), fault)
		}
	}
	if w.GetPrefix() == "" {
		return
	}
	c.checkTarget(base+"prefix", w.GetPrefix())
	if len(r.GetMatches()) == 0 {
		c.errorf(base+"prefix", "replaces the prefix of a match, and the route has none: add `matches: [{ path: { prefix: / } }]`")
	}
	for i, m := range r.GetMatches() {
		if pathOf(m).kind != "prefix" {
			c.errorf(base+"prefix", "replaces the prefix of a match, and matches[%d] has none", i)
			return
		}
	}
}

func (c *checker) checkPolicies(names []string) {
	c.checkMost("policies", len(names), policiesMax)
	c.checkDistinct("policies", names)
	for i, name := range names {
		c.refer(itemPath("policies", i), Policies, name)
	}
}

// indexRoute finds a route by what it refers to and by its claims.
func indexRoute(name string, r *lbdv1.Route) []string {
	var keys []string
	for _, listener := range r.GetListeners() {
		keys = append(keys, useIndex(Listeners, listener)+join(string(Routes), name))
	}
	for _, p := range r.GetForward().GetPools() {
		keys = append(keys, useIndex(Pools, p.GetPool())+join(string(Routes), name))
	}
	for _, policy := range r.GetPolicies() {
		keys = append(keys, useIndex(Policies, policy)+join(string(Routes), name))
	}
	for _, m := range claims(name, r) {
		keys = append(keys, indexClaim(m))
	}
	return keys
}

func normalizeRoute(r *lbdv1.Route) {
	for i, host := range r.GetHosts() {
		r.Hosts[i] = normalHost(host)
	}
	for _, m := range r.GetMatches() {
		normalizeMatch(m)
	}
	if w := r.GetForward().GetRewrite(); w != nil {
		w.Host, w.Prefix = strings.ToLower(w.GetHost()), normalPrefix(w.GetPrefix())
	}
	if d := r.GetRedirect(); d != nil {
		d.Scheme, d.Host = strings.ToLower(d.GetScheme()), normalHost(d.GetHost())
	}
	normalizeHeaderChanges(r.GetRequestHeaders())
	normalizeHeaderChanges(r.GetResponseHeaders())
	for _, page := range r.GetErrorPages() {
		for i, status := range page.GetStatus() {
			page.Status[i] = strings.ToLower(status)
		}
	}
	normalizeNetworks(r.GetMaintenance().GetBypass())
}

// normalPrefix drops the slash at the end: a prefix matches whole segments with and without it.
func normalPrefix(prefix string) string {
	for len(prefix) > 1 && strings.HasSuffix(prefix, "/") {
		prefix = prefix[:len(prefix)-1]
	}
	return prefix
}
