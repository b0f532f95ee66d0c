package lb

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"lbd/lb/http1"
)

// Explanation is what would become of a request, and why.
type Explanation struct {
	Route  string // that takes it; empty: none
	Reason string // why: "host shop.example.com, path prefix /a"
	// Losers are the listener's other routes in the order in which they are asked; of those for other hosts only the first few.
	Losers []Loser

	Action   string // "forward", "redirect", "respond", "maintenance", "denied" or "refused"
	Status   int    // of an answer of ours; 0 where a backend answers
	Location string // of a redirect
	Refusal  Reason // of maintenance, denied and refused; else OK
	Detail   string // the log's, likewise
	Why      string // more than Detail says, in words: what has denied the client, which limit was passed; often empty

	BackendHost    string // empty: the backend's own name
	BackendPath    string // with the query
	RequestHeaders []HeaderChange
	// ResponseHeaders are the listener's and then the route's, without those that the route undoes. They are done in answers of ours, too.
	ResponseHeaders []HeaderChange

	Pools    []PoolShare
	Pool     *Pool // that would get the request now, without taking the turn; nil: none
	Timeouts []Setting
	Retry    string

	Request *http1.Request // as it was read; nil if it could not be
	Client  netip.Addr     // whom the listener takes for the client
}

// Loser is a route that does not take the request.
type Loser struct {
	Route  string
	Reason string // the condition that fails, "path: want prefix /b", or what the winner has before it
}

// HeaderChange is one change of a field: "remove", "set" or "add".
type HeaderChange struct{ Action, Name, Value string }

// PoolShare is one of a route's pools, and its share of new requests.
type PoolShare struct {
	Pool    string
	Percent float64
}

// Setting is a value in force.
type Setting struct{ Name, Value string }

// otherHostsMax bounds how many routes for other hosts are named: with 100,000 of them nobody reads on.
const otherHostsMax = 10

// Explain answers for a request that comes to the named listener. Nothing is counted, and no turn is taken.
func (t *Table) Explain(listener string, p *Probe) *Explanation {
	e := &Explanation{ResponseHeaders: changesOf(&p.ResponseHeaders)}
	req, f := p.request()
	if f != nil {
		e.Why = p.limited(f)
		return e.refused(f)
	}
	e.Request, e.Client = req, p.client(req)
	switch string(req.Path) {
	case "*":
		e.Reason, e.Action, e.Status = "OPTIONS * asks lbd itself", "respond", answerOptions.status
		return e
	case p.HealthPath:
		e.Reason, e.Action, e.Status = "the listener's health path", "respond", answerReady.status
		return e
	}
	if f = t.tooLong(listener, req, p.trusted()); f != nil {
		return e.refused(f)
	}
	r, prefix := t.lookup(listener, req, p.trusted())
	e.rank(t.contenders(listener, req, p.trusted()), r)
	if r == nil {
		return e.refused(faultNoRoute)
	}
	if r.changes != nil {
		e.ResponseHeaders = changesAfter(e.ResponseHeaders, &r.changes.response)
	}
	f = r.refuses(req, func() netip.Addr { return e.Client })
	switch {
	case f == faultDenied:
		e.Why = r.denial(e.Client)
		return e.refused(f)
	case f != nil:
		return e.refused(f)
	case r.respond != nil:
		e.Action, e.Status = "respond", r.respond.status
	case r.redirect != nil:
		location, f := r.redirect.appendLocation(nil, req, p.scheme(req))
		if f != nil {
			return e.refused(f)
		}
		e.Action, e.Status, e.Location = "redirect", r.redirect.code, string(location)
	default:
		e.Action = "forward"
		e.forward(r, prefix, p.now())
	}
	return e
}

func (e *Explanation) refused(f *fault) *Explanation {
	e.Action, e.Status, e.Refusal, e.Detail = "refused", f.status, f.reason, f.detail
	switch {
	case f == faultDenied:
		e.Action = "denied"
	case f.detail == "maintenance":
		e.Action = "maintenance"
	}
	return e
}

// rank names the winner and the losers.
func (e *Explanation) rank(all []contender, won *route) {
	var winner *contender
	for i := range all {
		if all[i].route == won {
			winner = &all[i]
			e.Route, e.Reason = won.name, winner.why()
		}
	}
	others := 0
	for i := range all {
		c := &all[i]
		if c.level == otherHost {
			others++
		}
		switch {
		case c == winner, others > otherHostsMax:
		case c.failed != "":
			e.Losers = append(e.Losers, Loser{c.route.name, c.failed})
		case winner != nil:
			e.Losers = append(e.Losers, Loser{c.route.name, c.behind(winner)})
		}
	}
}

// forward says what a backend would get, and how.
func (e *Explanation) forward(r *route, prefix int, now time.Time) {
	req := e.Request
	e.BackendHost = string(req.Authority)
	if len(r.rewrite.host) > 0 {
		e.BackendHost = string(r.rewrite.host)
	}
	e.BackendPath = string(req.Path)
	if rewritten := r.rewrite.appendPath(nil, req.Path, prefix); len(rewritten) > 0 {
		e.BackendPath = string(rewritten)
	}
	if req.Query != nil {
		e.BackendPath += "?" + string(req.Query)
	}
	if r.changes != nil {
		e.RequestHeaders = changesOf(&r.changes.request)
	}
	at := 0
	if s := r.split; s == nil {
		e.Pools = []PoolShare{{r.pools[0].name, 100}}
	} else {
		if at, _ = s.bound(&req.Fields, now); at < 0 {
			at = s.shares.Pick(s.turn.Load() + 1)
		}
		sum := 0
		for _, w := range s.weights {
			sum += w
		}
		for i, w := range s.weights {
			e.Pools = append(e.Pools, PoolShare{r.pools[i].name, 100 * float64(w) / float64(sum)})
		}
	}
	e.Pool = r.pools[at]
	t := &r.timeouts
	e.Timeouts = []Setting{
		{"connect", timeoutWords(e.Pool.connectTimeout)}, {"first_byte", timeoutWords(t.FirstByte)}, {"body_idle", timeoutWords(t.BodyIdle)},
		{"request", timeoutWords(t.Request)}, {"tunnel", timeoutWords(t.Tunnel)},
	}
	if t.Try > 0 {
		e.Timeouts = append(e.Timeouts, Setting{"per_try", timeoutWords(t.Try)})
	}
	e.Retry = r.retry.words()
}

// denial says in words who of the plan's address rules denies a client.
func (p *plan) denial(client netip.Addr) string {
	for _, a := range p.addresses {
		if !a.permits(client) {
			return a.why(client)
		}
	}
	return ""
}

// changesAfter adds changes to those before them, of which it drops what they undo.
func changesAfter(before []HeaderChange, then *HeaderChanges) []HeaderChange {
	all := slices.DeleteFunc(before, func(b HeaderChange) bool {
		return slices.ContainsFunc(then.Remove, func(name string) bool { return strings.EqualFold(name, b.Name) }) ||
			slices.ContainsFunc(then.Set, func(h Header) bool { return strings.EqualFold(h.Name, b.Name) })
	})
	return append(all, changesOf(then)...)
}

func changesOf(c *HeaderChanges) []HeaderChange {
	var all []HeaderChange
	for _, name := range c.Remove {
		all = append(all, HeaderChange{"remove", name, ""})
	}
	for _, h := range c.Set {
		all = append(all, HeaderChange{"set", h.Name, h.Value})
	}
	for _, h := range c.Add {
		all = append(all, HeaderChange{"add", h.Name, h.Value})
	}
	return all
}

// timeoutWords is a duration as documents write it.
func timeoutWords(d time.Duration) string {
	if d < 0 {
		return "disabled"
	}
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = text[:len(text)-2]
	}
	if strings.HasSuffix(text, "h0m") {
		text = text[:len(text)-2]
	}
	return text
}

// words are those of the document.
func (r Retry) words() string {
	if r.Attempts < 0 {
		return "none"
	}
	times := "1 retry"
	if r.Attempts > 1 {
		times = fmt.Sprintf("%d retries", r.Attempts)
	}
	var on []string
	for i, word := range [...]string{"CONNECT_FAILURE", "RESET_BEFORE_RESPONSE", "FIRST_BYTE_TIMEOUT", "STATUS_5XX"} {
		if r.On&(1<<i) != 0 {
			on = append(on, word)
		}
	}
	methods := "idempotent methods only"
	if r.NonIdempotent {
		methods = "any method"
	}
	return fmt.Sprintf("%s on %s, %s, at most %d %% of the pool's requests", times, strings.Join(on, ", "), methods, r.BudgetPercent)
}
