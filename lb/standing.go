package lb

import (
	"sync/atomic"
	"time"
)

// standing is what a pool knows of a backend by experience. It belongs to the pool's name and the backend, and outlives every
// change that keeps both.
//
//	up <----------------------------> down          by health, address and the operator's word
//	 |  errors in a row   the time is over, or the operator's word
//	 +----------> ejected ----------> up, slowly
type standing struct {
	// Written by the loops; while requests succeed they are only read.
	errors atomic.Int32 // requests in a row that have failed
	row    atomic.Int32 // ejections without a success since
	out    atomic.Bool  // ejected: results of what is still under way say nothing new
	last   atomic.Pointer[failure]
	queue  queueShare

	// Under Server.mu.
	down         bool // a check of this pool says so
	ejections    int64
	ejectedUntil time.Time // zero: not ejected
	fresh        bool      // was there when the pool began: that is no reason to start slowly
	up           bool      // when it was last looked at
	rampSince    time.Time // when it came up; zero: long ago
	cut          bool      // this drain has ended its open requests
}

// look brings the standing up to date with the moment, and says whether an ejection has ended by it.
func (m *member) look(p *Pool, now time.Time) (restored bool) {
	if !m.ejectedUntil.IsZero() && (p.ejection == nil || !now.Before(m.ejectedUntil)) {
		m.restore()
		restored = true
	}
	up := !m.down && m.ejectedUntil.IsZero() && m.state != InMaintenance && m.backend.address.Load().IsValid()
	if up && !m.up && !m.fresh {
		m.rampSince = now
	}
	if up && !m.up {
		m.backend.load.Forget()
	}
	m.up, m.fresh = up, false
	if m.state == Ready {
		m.cut = false
	}
	return restored
}

// restore ends an ejection.
func (m *member) restore() {
	m.ejectedUntil = time.Time{}
	m.errors.Store(0)
	m.out.Store(false)
}

// ramp is the part of its weight that counts while it starts slowly: from a tenth to the whole, 1.
func (m *member) ramp(slowStart time.Duration, now time.Time) float64 {
	passed := now.Sub(m.rampSince)
	if slowStart <= 0 || m.rampSince.IsZero() || passed >= slowStart {
		return 1
	}
	return slowStartLeast + (1-slowStartLeast)*float64(max(passed, 0))/float64(slowStart)
}

// drainedBy is when a draining backend ends what is still open there: the zero time if it does not drain.
func (m *member) drainedBy(p *Pool) time.Time {
	switch {
	case m.state != Drain:
		return time.Time{}
	case m.cutOff:
		return m.drainSince
	}
	return m.drainSince.Add(p.drainTimeout)
}
