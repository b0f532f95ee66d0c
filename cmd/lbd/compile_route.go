package main

import (
	"cmp"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"

	"lbd/cluster/state"
	"lbd/lb"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

type route struct {
	created  int64          // the revision that made it
	config   lb.RouteConfig // without what policies say: they change on their own
	policies []string
}

// routePolicy is one rule: only what it says is set.
type routePolicy struct {
	bodyBytesMax int64
	addresses    *lbdv1.Addresses // compiled with the address lists that it names, in compileRules
	rule         *lb.AddressRule
	concurrency  *lb.Concurrency // kept from form to form: what is in flight stays counted
}

func compileRoute(s *raftv1.StoredResource) (route, error) {
	r := s.GetResource().GetRoute()
	c := lb.RouteConfig{
		Name: r.GetName(), Listeners: r.GetListeners(), Hosts: r.GetHosts(), Priority: int(r.GetPriority()),
		EncodedSlash:    r.GetAllowEncodedSlash(),
		RequestHeaders:  compileHeaderChanges(r.GetRequestHeaders()),
		ResponseHeaders: compileHeaderChanges(r.GetResponseHeaders()),
		Maintenance:     compileMaintenance(r.GetMaintenance()),
	}
	for _, m := range r.GetMatches() {
		match, err := compileMatch(m)
		if err != nil {
			return route{}, err
		}
		c.Matches = append(c.Matches, match)
	}
	switch a := r.GetAction().(type) {
	case *lbdv1.Route_Forward:
		c.Forward = compileForward(a.Forward)
	case *lbdv1.Route_Respond:
		c.Respond = &lb.Respond{Status: int(a.Respond.GetStatus()), Body: a.Respond.GetBody(), Headers: headers(a.Respond.GetHeaders())}
	case *lbdv1.Route_Redirect:
		c.Redirect = &lb.Redirect{
			Scheme: a.Redirect.GetScheme(), Host: a.Redirect.GetHost(), Port: int(a.Redirect.GetPort()),
			Path: a.Redirect.GetPath(), Code: cmp.Or(int(a.Redirect.GetCode()), redirectCode),
		}
	}
	for _, p := range r.GetErrorPages() {
		c.ErrorPages = append(c.ErrorPages, lb.ErrorPage{
			Status: p.GetStatus(), ContentType: cmp.Or(p.GetContentType(), "text/html; charset=utf-8"), Body: p.GetBody(),
		})
	}
	return route{created: state.Created(s), config: c, policies: r.GetPolicies()}, nil
}

// redirectCode is Found: a browser does not keep it, so a mistake in a document can be mended.
const redirectCode = 302

func compileMatch(m *lbdv1.RouteMatch) (lb.Match, error) {
	c := lb.Match{Exact: m.GetPath().GetExact(), Prefix: m.GetPath().GetPrefix(), Methods: m.GetMethods()}
	var err error
	if text := m.GetPath().GetRegex(); text != "" {
		if c.Regex, err = state.CompileRegex(text); err != nil {
			return c, err
		}
	}
	for _, f := range m.GetHeaders() {
		field, err := compileFieldMatch(f)
		if err != nil {
			return c, err
		}
		field.Name = strings.ToLower(field.Name)
		c.Headers = append(c.Headers, field)
	}
	for _, f := range m.GetQuery() {
		field, err := compileFieldMatch(f)
		if err != nil {
			return c, err
		}
		c.Query = append(c.Query, field)
	}
	return c, nil
}

func compileFieldMatch(f *lbdv1.FieldMatch) (lb.FieldMatch, error) {
	c := lb.FieldMatch{Name: f.GetName(), Invert: f.GetInvert()}
	var err error
	switch m := f.GetMatch().(type) {
	case *lbdv1.FieldMatch_Exact:
		c.Kind, c.Text = lb.FieldExact, m.Exact
	case *lbdv1.FieldMatch_Prefix:
		c.Kind, c.Text = lb.FieldPrefix, m.Prefix
	case *lbdv1.FieldMatch_Regex:
		c.Kind = lb.FieldRegex
		c.Regex, err = state.CompileRegex(m.Regex)
	case *lbdv1.FieldMatch_Present:
		c.Invert = c.Invert != !m.Present
	}
	return c, err
}

func compileForward(f *lbdv1.Forward) *lb.Forward {
	t, r := f.GetTimeouts(), f.GetRetry()
	c := &lb.Forward{
		Rewrite: lb.Rewrite{Host: f.GetRewrite().GetHost(), Prefix: f.GetRewrite().GetPrefix()},
		Timeouts: lb.RouteTimeouts{
			FirstByte: timeout(t.GetFirstByte()),
			BodyIdle:  timeout(t.GetBodyIdle()),
			Request:   timeout(t.GetRequest()),
			Try:       r.GetPerTryTimeout().AsDuration(),
			Tunnel:    timeout(t.GetTunnel()),
		},
		Retry: lb.Retry{
			Attempts: int(r.GetAttempts()), NonIdempotent: r.GetNonIdempotent(), BudgetPercent: int(r.GetBudgetPercent()),
		},
	}
	for _, p := range f.GetPools() {
		weight := 1
		if p.Weight != nil {
			weight = int(p.GetWeight())
		}
		c.Pools = append(c.Pools, lb.WeightedPool{Pool: p.GetPool(), Weight: weight})
	}
	if p := f.GetSplitPersistence(); p != nil {
		c.Persistence = &lb.SplitPersistence{Cookie: p.GetCookie(), IdleTimeout: p.GetIdleTimeout().AsDuration()}
	}
	if r != nil && r.Attempts != nil && r.GetAttempts() == 0 {
		c.Retry.Attempts = -1 // said so, not left out
	}
	for _, cause := range r.GetOn() {
		c.Retry.On |= retryCauses[cause]
	}
	return c
}

var retryCauses = map[lbdv1.RetryCause]lb.RetryOn{
	lbdv1.RetryCause_RETRY_CAUSE_CONNECT_FAILURE:       lb.OnConnectFailure,
	lbdv1.RetryCause_RETRY_CAUSE_RESET_BEFORE_RESPONSE: lb.OnReset,
	lbdv1.RetryCause_RETRY_CAUSE_FIRST_BYTE_TIMEOUT:    lb.OnFirstByteTimeout,
	lbdv1.RetryCause_RETRY_CAUSE_STATUS_5XX:            lb.OnStatus5xx,
}

func compileHeaderChanges(h *lbdv1.HeaderChanges) lb.HeaderChanges {
	c := lb.HeaderChanges{Set: headers(h.GetSet()), Add: headers(h.GetAdd())}
	for _, name := range h.GetRemove() {
		c.Remove = append(c.Remove, strings.ToLower(name))
	}
	return c
}

// headers are in the same order every time.
func headers(fields map[string]string) []lb.Header {
	var all []lb.Header
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		all = append(all, lb.Header{Name: name, Value: fields[name]})
	}
	return all
}

func compileMaintenance(m *lbdv1.Maintenance) *lb.Maintenance {
	if m == nil {
		return nil
	}
	return &lb.Maintenance{
		RetryAfter: cmp.Or(m.GetRetryAfter().AsDuration(), maintenanceRetryAfter), Bypass: networks(m.GetBypass()),
		Body: m.GetBody(), ContentType: m.GetContentType(),
	}
}

func compilePolicy(s *raftv1.StoredResource, before routePolicy) routePolicy {
	p := s.GetResource().GetPolicy()
	c := routePolicy{bodyBytesMax: p.GetBodySize().GetMaxBytes(), addresses: p.GetAddresses()}
	if limit := int(p.GetConcurrency().GetMaxRequests()); limit > 0 {
		c.concurrency = before.concurrency
		if c.concurrency == nil {
			c.concurrency = lb.NewConcurrency(p.GetName(), limit)
		}
		c.concurrency.SetMax(limit)
	}
	return c
}

// compileAddresses puts a policy and the lists that it names together.
func compileAddresses(policy string, a *lbdv1.Addresses, lists map[string][]netip.Prefix) *lb.AddressRule {
	named := func(names []string) []lb.AddressList {
		var all []lb.AddressList
		for _, name := range names {
			all = append(all, lb.AddressList{Name: name, Networks: lists[name]})
		}
		return all
	}
	return &lb.AddressRule{
		Policy: policy, Allow: networks(a.GetAllow()), Deny: networks(a.GetDeny()), DenyExcept: networks(a.GetDenyExcept()),
		AllowLists: named(a.GetAllowLists()), DenyLists: named(a.GetDenyLists()),
		Closed: len(a.GetAllow()) > 0 || len(a.GetAllowLists()) > 0,
	}
}

// withPolicies is the route as it is served: of several body limits the least counts, of the others each.
func (c *compiled) withPolicies(r route) lb.RouteConfig {
	config := r.config
	least := int64(math.MaxInt64)
	for _, name := range r.policies {
		p := c.policies[name]
		if p.bodyBytesMax > 0 {
			least = min(least, p.bodyBytesMax)
			config.BodyBytesMax = least
		}
		if p.rule != nil {
			config.Addresses = append(config.Addresses, p.rule)
		}
		if p.concurrency != nil {
			config.Concurrency = append(config.Concurrency, p.concurrency)
		}
	}
	return config
}

// oldestFirst orders routes as the table wants them: where two cannot be told apart the older one wins.
func (c *compiled) oldestFirst() []lb.RouteConfig {
	type age struct {
		created int64
		name    string
	}
	all := make([]age, 0, len(c.routes)) // a route is a large thing to sort ten thousand of
	for name, r := range c.routes {
		all = append(all, age{r.created, name})
	}
	slices.SortFunc(all, func(a, b age) int {
		return cmp.Or(cmp.Compare(a.created, b.created), strings.Compare(a.name, b.name))
	})
	configs := make([]lb.RouteConfig, 0, len(all))
	for _, r := range all {
		configs = append(configs, c.withPolicies(c.routes[r.name]))
	}
	return configs
}
