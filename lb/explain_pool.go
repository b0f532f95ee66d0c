package lb

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"time"

	"lbd/lb/balance"
)

// PoolExplanation says where a request of a pool would go now.
type PoolExplanation struct {
	FailOpen bool
	Backends []BackendExplanation // in configured order
	Backend  string               // that would be picked; empty: none takes requests
	Reason   string               // why that one, or why none, in words
}

// BackendExplanation is one backend of a pool.
type BackendExplanation struct {
	Name  string
	Takes bool // new requests
	// Why is as in PoolBackendStats.
	Why    string
	Weight int // as in PoolBackendStats, also while it starts slowly or takes no requests
}

// Explain tells which backend a request with these header fields from this client would get just now. It takes no turn: where
// chance decides, the next request may get another.
func (p *Pool) Explain(headers []Header, client netip.Addr) *PoolExplanation {
	c := p.choice.Load()
	e := &PoolExplanation{FailOpen: c.failOpen}
	for i, m := range p.members {
		e.Backends = append(e.Backends, BackendExplanation{
			Name: m.backend.name, Takes: c.seats[i].takes, Why: p.explain(c, i), Weight: m.weight,
		})
	}
	m := p.explainBound(c, headers, e)
	if m == nil {
		m = p.explainPick(c, headers, client, e)
	}
	if m != nil {
		e.Backend = m.backend.name
	}
	return e
}

// explain says why a member does not take requests, or does in spite of something.
func (p *Pool) explain(c *choice, i int) string {
	s := &c.seats[i]
	why := s.words()
	switch {
	case s.takes && why != "" && c.failOpen:
		return why + ", but the pool fails open"
	case s.takes && why != "":
		return why + ", but no other is eligible"
	case !s.takes && why == "":
		return "backup"
	}
	return why
}

func (s *seat) words() string {
	switch s.obstacle {
	case isWeightless:
		return "weight 0"
	case isEjected:
		return "ejected until " + s.until.UTC().Format(time.RFC3339)
	case isDown:
		return "down"
	case drains:
		return "drains"
	case hasDrained:
		return "drained"
	case hasNoAddress:
		return "no address"
	case inMaintenance:
		return "maintenance"
	}
	return ""
}

// explainBound looks for the backend that the request's session is bound to.
func (p *Pool) explainBound(c *choice, headers []Header, e *PoolExplanation) *member {
	sp := p.persistence
	if sp == nil {
		return nil
	}
	value, ok := headerCookie(headers, sp.Cookie)
	if !ok {
		return nil
	}
	s, ok := parseSession(value)
	switch m := c.bound[s.mark]; {
	case !ok:
		e.Reason = fmt.Sprintf("its cookie %s names no backend; ", sp.Cookie)
	case sp.over(s, time.Now().Unix()):
		e.Reason = fmt.Sprintf("the session of its cookie %s has ended; ", sp.Cookie)
	case m == nil:
		e.Reason = fmt.Sprintf("the backend of its cookie %s is gone or takes no requests; ", sp.Cookie)
	default:
		e.Reason = "bound to it by the cookie " + sp.Cookie
		return m
	}
	return nil
}

func (p *Pool) explainPick(c *choice, headers []Header, client netip.Addr, e *PoolExplanation) *member {
	if c.policy == nil {
		e.Reason += "no backend is eligible"
		return nil
	}
	r := balance.Request{Random: rand.Uint64(), Now: time.Now().UnixMilli(), Turn: p.turn.Load() + 1}
	switch p.balance {
	case LeastConnections:
		e.Reason += "fewest requests in flight for its weight"
	case P2CEWMA:
		e.Reason += "the better by latency and requests in flight of two drawn at random"
	case Maglev:
		var on string
		r.Hash, on = p.explainHash(headers, client)
		e.Reason += "hash of " + on
	default:
		e.Reason += "its turn"
	}
	return c.members[c.policy.Pick(&r)]
}

func (p *Pool) explainHash(headers []Header, client netip.Addr) (hash uint64, on string) {
	for _, h := range headers {
		if p.hashOn.Header != "" && strings.EqualFold(h.Name, p.hashOn.Header) {
			return balance.Hash([]byte(h.Value)), "the header " + p.hashOn.Header
		}
	}
	if p.hashOn.Cookie != "" {
		if value, ok := headerCookie(headers, p.hashOn.Cookie); ok {
			return balance.Hash(value), "the cookie " + p.hashOn.Cookie
		}
	}
	return addressHash(client), "the client's address"
}

func headerCookie(headers []Header, name string) ([]byte, bool) {
	for _, h := range headers {
		if !strings.EqualFold(h.Name, "cookie") {
			continue
		}
		if value, ok := cookieIn([]byte(h.Value), name); ok {
			return value, true
		}
	}
	return nil, false
}
