package lb

import (
	"fmt"
	"time"
)

// judge counts how a try ended in what the pool knows of its backend. A client's fault, or ours, says nothing about it.
func (x *exchange) judge(f *fault) {
	m, p := x.member, x.pool
	if m == nil {
		return // it has not come to a backend
	}
	failed := f != nil && f.ofBackend() || (f == nil || f == faultStatus) && x.resp.Status >= 500
	if failed && p.measures() {
		m.backend.load.Fail(x.t.Now().UnixMilli())
	}
	// A status says something only where it counts.
	if failed && (p.ejection != nil || f != nil && f != faultStatus) {
		m.last.Store(newFailure(x.t.Now(), f, x.resp.Status))
	}
	switch {
	case p.ejection == nil:
	case failed:
		if int(m.errors.Add(1)) >= p.ejection.ConsecutiveErrors && !m.out.Load() {
			x.t.Offload(func() { x.server.eject(p, m) }) // it takes a lock
		}
	case f == nil && (m.errors.Load() != 0 || m.row.Load() != 0) && !m.out.Load():
		m.errors.Store(0)
		m.row.Store(0)
	}
}

// eject takes a member out of its pool for a while, if the others allow it.
func (s *Server) eject(p *Pool, m *member) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p = s.pools[p.name] // a request may come from a form that has been replaced
	if p == nil || p.ejection == nil || !m.ejectedUntil.IsZero() {
		return
	}
	if int(m.errors.Load()) < p.ejection.ConsecutiveErrors {
		return // a request has succeeded since, or an operator has ended an ejection: that was another row
	}
	now := s.now()
	failed := m.errors.Swap(0) // what comes next is counted anew, ejected or not
	if !p.maySpare(m.standing) {
		return
	}
	m.out.Store(true)
	m.ejections++
	row := m.row.Add(1)
	pause := p.ejection.BaseTime * time.Duration(min(row, ejectionRowMax))
	m.ejectedUntil = now.Add(pause)
	p.tell(now, BackendEjected, m, fmt.Sprintf("%d errors in a row, the last: %s; no requests for %v", failed, m.last.Load().words(), pause))
	m.backend.refreshPools(now)
}

// EndEjection ends the ejection of a pool's backend with that key before its time, and reports whether there was one. The next one
// is as short as a first one. It may be called from any goroutine but a loop's.
func (s *Server) EndEjection(pool, key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pools[pool]
	if p == nil {
		return false
	}
	for _, m := range p.members {
		if m.backend.key != key || m.ejectedUntil.IsZero() {
			continue
		}
		now := s.now()
		m.restore()
		m.row.Store(0) // whoever says so has mended it
		p.tell(now, BackendRestored, m, "takes requests again: its ejection was ended by an operator")
		m.backend.refreshPools(now)
		return true
	}
	return false
}

// maySpare reports whether the pool can do without one more: it is not the last that takes requests, and no more are out than
// the configured share, but one may always be, of several.
func (p *Pool) maySpare(out *standing) bool {
	c := p.choice.Load()
	ejected, others, taking := 0, 0, false
	for i, m := range p.members {
		switch {
		case !m.ejectedUntil.IsZero():
			ejected++
		case m.standing == out:
			taking = c.seats[i].obstacle == noObstacle && c.seats[i].takes
		case c.seats[i].takes:
			others++
		}
	}
	return taking && others > 0 && ejected < max(1, len(p.members)*p.ejection.MaxPercent/100)
}
