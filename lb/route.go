package lb

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"strconv"
	"sync/atomic"
	"time"

	"lbd/lb/http1"
)

// route is a plan on one of its listeners: what it counts is that listener's. Immutable once served.
type route struct {
	*plan
	listener string
	traffic  *traffic // from the server, when the table is set

	// The last rules that responseAfter has made.
	joined atomic.Pointer[joinedRules]
}

// joinedRules are a listener's rules and, after them, those of a route.
type joinedRules struct{ listener, both *http1.Rules }

// responseAfter is what changes in the fields of an answer: the listener's changes, then the route's. They are put together once for
// each form of a listener, by the first request that needs them.
func (r *route) responseAfter(listener *http1.Rules) *http1.Rules {
	switch {
	case r == nil, r.response == nil:
		return listener
	case listener == nil:
		return r.response
	}
	if j := r.joined.Load(); j != nil && j.listener == listener {
		return j.both
	}
	both := listener.Then(r.response)
	r.joined.Store(&joinedRules{listener, both})
	return both
}

// plan is a compiled RouteConfig: what happens to the requests that it takes. Immutable but for the turn of a split, and shared by
// the listeners of its route.
type plan struct {
	name     string
	hosts    []string
	matches  []Match
	priority int

	conditions []*condition // of the matches; nil: none
	tested     *tested

	pools    []*Pool // with redirect and respond nil: at least one
	split    *split  // nil: the one pool, always
	rewrite  rewrite
	timeouts RouteTimeouts
	retry    Retry
	redirect *redirect
	respond  *answer

	request, response *http1.Rules  // nil: none
	changes           *fieldChanges // nil: none
	errorPages        []errorPage

	maintenance  *maintenance
	addresses    []*AddressRule
	concurrency  []*Concurrency
	bodyBytesMax int64
	encodedSlash bool
}

func newPlan(cfg *RouteConfig, pools map[string]*Pool) (*plan, error) {
	p := &plan{
		name: cfg.Name, hosts: cfg.Hosts, matches: cfg.Matches, priority: cfg.Priority,
		bodyBytesMax: cmp.Or(cfg.BodyBytesMax, math.MaxInt64), encodedSlash: cfg.EncodedSlash,
		addresses: cfg.Addresses, concurrency: cfg.Concurrency,
		conditions: newConditions(cfg.Matches), tested: newTested(cfg.Matches),
	}
	err1, err2 := p.planAction(cfg, pools), p.planFields(cfg)
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	for _, a := range p.addresses {
		a.compile()
	}
	p.maintenance = newMaintenance(cfg.Maintenance)
	return p, nil
}

// planAction compiles the one action.
func (p *plan) planAction(cfg *RouteConfig, pools map[string]*Pool) error {
	actions := 0
	for _, there := range [...]bool{cfg.Forward != nil, cfg.Redirect != nil, cfg.Respond != nil} {
		if there {
			actions++
		}
	}
	switch {
	case actions != 1:
		return errors.New("needs exactly one action")
	case cfg.Respond != nil:
		p.respond = newAnswer(cfg.Respond)
		return nil
	case cfg.Redirect != nil:
		p.redirect = newRedirect(cfg.Redirect)
		return nil
	}
	f := cfg.Forward
	if len(f.Pools) == 0 {
		return errors.New("needs a pool")
	}
	for _, w := range f.Pools {
		pool := pools[w.Pool]
		if pool == nil {
			return fmt.Errorf("no pool %q", w.Pool)
		}
		p.pools = append(p.pools, pool)
	}
	p.timeouts, p.retry = f.Timeouts.withDefaults(), f.Retry.withDefaults()
	var err1, err2 error
	p.split, err1 = newSplit(f)
	p.rewrite, err2 = newRewrite(&f.Rewrite)
	return errors.Join(err1, err2)
}

// planFields compiles what changes in the fields, and the error pages.
func (p *plan) planFields(cfg *RouteConfig) error {
	var err1, err2, err3 error
	p.request, err1 = newRules(&cfg.RequestHeaders)
	p.response, err2 = newRules(&cfg.ResponseHeaders)
	p.errorPages, err3 = newErrorPages(cfg.ErrorPages)
	if p.request != nil || p.response != nil {
		p.changes = &fieldChanges{cfg.RequestHeaders, cfg.ResponseHeaders}
	}
	return errors.Join(err1, err2, err3)
}

// fieldChanges are the rules as they were given, for explanations.
type fieldChanges struct{ request, response HeaderChanges }

func newRules(c *HeaderChanges) (*http1.Rules, error) {
	if len(c.Set)+len(c.Add)+len(c.Remove) == 0 {
		return nil, nil
	}
	set, add := map[string]string{}, map[string]string{}
	for _, h := range c.Set {
		set[h.Name] = h.Value
	}
	for _, h := range c.Add {
		add[h.Name] = h.Value
	}
	return http1.CompileRules(set, add, c.Remove)
}

// maintenance is who is sent away, and with what.
type maintenance struct {
	bypass networks
	fault  fault
}

func newMaintenance(cfg *Maintenance) *maintenance {
	if cfg == nil {
		return nil
	}
	var page *errorPage
	if cfg.Body != "" {
		page = newErrorPage(cfg.ContentType, cfg.Body)
	}
	seconds := int64((cmp.Or(cfg.RetryAfter, maintenanceRetryAfter) + time.Second - 1) / time.Second)
	return &maintenance{
		bypass: newNetworks(cfg.Bypass),
		fault:  fault{reason: Denied, status: 503, detail: "maintenance", retryAfter: strconv.FormatInt(seconds, 10), page: page},
	}
}
