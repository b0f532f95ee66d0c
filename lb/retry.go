package lb

import "cmp"

// RetryOn is a set of ways in which a try may end.
type RetryOn uint8

// The causes that a route can name.
const (
	// OnConnectFailure: no connection came about.
	OnConnectFailure RetryOn = 1 << iota
	// OnReset: the connection broke before a byte of an answer.
	OnReset
	// OnFirstByteTimeout: no answer in time.
	OnFirstByteTimeout
	// OnStatus5xx: an answer with status 500 to 599.
	OnStatus5xx
)

// Retry says when a request goes to another backend. Zero fields mean the defaults.
type Retry struct {
	Attempts      int     // after the first try; 1, at most 5, negative: none
	On            RetryOn // OnConnectFailure and OnReset
	NonIdempotent bool    // also what may do harm when it is done twice
	BudgetPercent int     // of the pool's requests in flight; 20
}

func (r Retry) withDefaults() Retry {
	r.Attempts = min(cmp.Or(r.Attempts, retryAttempts), retryAttemptsMax)
	r.On = cmp.Or(r.On, OnConnectFailure|OnReset)
	r.BudgetPercent = cmp.Or(r.BudgetPercent, retryBudgetPercent)
	return r
}

// mayRetry decides whether another try follows, and prepares it.
func (x *exchange) mayRetry(f *fault) bool {
	x.wantFresh = f.retry == fresh
	rules := &x.route.retry
	switch {
	case f.retry == fresh:
		return true
	case f.retry == never, rules.On&f.on == 0, x.tries > rules.Attempts, x.overdue(), x.server.at() == ending:
		return false
	case !x.retrying:
		x.retrying = x.pool.beginRetry(rules.BudgetPercent, !x.held)
	}
	return x.retrying
}

// retryAfterReset says where a request may be sent again when its connection broke before an answer: if the kernel took
// none of it, or if doing it twice is doing it once, no harm is possible.
func (x *exchange) retryAfterReset() retry {
	switch {
	case x.heard, x.up.beyond, x.sent && !x.repeatable():
		return never
	case x.conn.reused && (!x.sent || idempotent(x.req.Method)):
		return fresh
	}
	return elsewhere
}

// retryAfterSilence says so when the backend took too long to answer a request that it has.
func (x *exchange) retryAfterSilence() retry {
	if x.heard || x.up.beyond || !x.repeatable() {
		return never
	}
	return elsewhere
}

// retryStatus returns a fault if the answer at hand is one that the route wants from another backend, and that can be. Else
// it is the client's.
func (x *exchange) retryStatus() *fault {
	f := faultStatus
	if x.resp.Status < 500 || x.route.retry.On&f.on == 0 || x.up.beyond || x.interim || !x.repeatable() || !x.mayRetry(f) {
		return nil
	}
	return f
}

// repeatable reports whether the request may be done twice.
func (x *exchange) repeatable() bool { return x.route.retry.NonIdempotent || idempotent(x.req.Method) }

// idempotent: RFC 9110 9.2.2. TRACE never comes here.
func idempotent(method []byte) bool {
	switch string(method) {
	case "GET", "HEAD", "OPTIONS", "PUT", "DELETE":
		return true
	}
	return false
}
