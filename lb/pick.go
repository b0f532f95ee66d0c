package lb

import (
	"net/netip"
	"slices"

	"lbd/lb/balance"
)

// pick chooses the backend of the next try: the same for a fresh connection in a stale one's place, else the one that the
// client is bound to, else the pool's choice among those not tried.
func (x *exchange) pick() *fault {
	x.cut = false
	if !x.wantFresh {
		p := x.pool
		if x.tries > 0 {
			p = p.latest() // who failed may have left meanwhile
		}
		c := p.choice.Load()
		x.member = x.bound(c)
		if x.member == nil {
			x.member = x.choose(p, c)
		}
		if x.member == nil {
			return faultNoBackend
		}
		if x.tries > 0 {
			x.server.retries.Add(1)
		}
		x.backend = x.member.backend
		x.tried[x.tries] = x.backend
		x.tries++
		x.tryBy = after(x.t.Now(), x.route.timeouts.Try)
	}
	x.backend.load.InFlight.Add(1)
	x.held = true
	return nil
}

// choose asks the policy; nil if nobody takes requests. A retry takes no turn: else the backend behind the one that fails would
// get nothing but retries, and that one every first try.
func (x *exchange) choose(p *Pool, c *choice) *member {
	if c.policy == nil {
		return nil
	}
	r := &x.request
	*r = balance.Request{Random: x.random.Uint64(), Avoid: x.avoid(c)}
	switch p.balance {
	case RoundRobin:
		if r.Turn = r.Random; x.tries == 0 {
			r.Turn = p.turn.Add(1)
		}
	case Maglev:
		r.Hash = x.hash(&p.hashOn)
	case P2CEWMA:
		r.Now = x.t.Now().UnixMilli()
	}
	return c.members[c.policy.Pick(r)]
}

// avoid returns the places of the backends that were tried.
func (x *exchange) avoid(c *choice) []int {
	avoid := x.avoided[:0]
	for _, b := range x.tried[:x.tries] {
		if i := slices.IndexFunc(c.members, func(m *member) bool { return m.backend == b }); i >= 0 && !slices.Contains(avoid, i) {
			avoid = append(avoid, i)
		}
	}
	return avoid
}

// hash is what the request is known by, for Maglev.
func (x *exchange) hash(on *HashOn) uint64 {
	if on.Header != "" {
		if value, ok := x.req.Fields.Get(on.Header); ok {
			return balance.Hash(value)
		}
	}
	if on.Cookie != "" {
		if value, ok := cookieValue(&x.req.Fields, on.Cookie); ok {
			return balance.Hash(value)
		}
	}
	return addressHash(x.clientAddress())
}

func addressHash(address netip.Addr) uint64 {
	bytes := address.As16()
	return balance.Hash(bytes[:])
}

// measures reports whether the pool needs to know how fast its backends answer.
func (p *Pool) measures() bool { return p.balance == P2CEWMA }

// measure counts how long the answer's head took, from the last byte of the request.
func (x *exchange) measure() {
	if x.pool.measures() && x.resp.Status < 500 {
		x.backend.load.Observe(x.t.Now().Sub(x.sentAt), x.t.Now().UnixMilli())
	}
}
