package lb

import (
	"time"

	"lbd/lb/loop"
)

// keep is the task that does what only time brings about: ramps, the ends of ejections and of drains. It lives as long as the
// engine.
func (s *Server) keep(t *loop.Task) {
	ended := false
	defer func() {
		if !ended { // a panic, which the loop logs: backends that are out must come back all the same
			s.options.Engine.Go(s.keep)
		}
	}()
	for t.Sleep(keepInterval) == nil {
		t.Offload(func() { s.tick(s.now()) })
	}
	ended = true
}

// tick brings every served pool up to date with the moment.
func (s *Server) tick(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leaving {
		s.forgetBackends()
	}
	for _, p := range s.table.Load().pools {
		if p.choice.Load().timed {
			p.refresh(now)
		}
		s.cutDrained(p, now)
	}
}

// cutDrained ends what is still open at members whose drain has ended. They take no requests any more, so once is enough.
// The caller holds mu.
func (s *Server) cutDrained(p *Pool, now time.Time) {
	for _, m := range p.members {
		over := m.state == Drain && !now.Before(m.drainedBy(p)) || m.state == InMaintenance && m.cutOff
		if !over || m.cut {
			continue
		}
		m.cut = true
		for i := range s.shards {
			s.options.Engine.GoOn(i, func(t *loop.Task) { s.cutOff(t, m.standing) })
		}
	}
}

// cutOff ends the exchanges of one loop that are with a member. Who has picked it has done so before, and is among them: on this
// loop tasks take turns, and the choice without the member is out since before this one began.
func (s *Server) cutOff(t *loop.Task, from *standing) {
	for _, x := range s.shards[t.Loop()].active {
		if x.member == nil || x.member.standing != from {
			continue
		}
		x.cut = true
		switch { // else it is on its way to a connection, and sees it then
		case x.conn != nil:
			x.conn.c.Abort(t)
		case x.waits.place != nil:
			x.waits.signal.Raise()
		}
	}
}

// cutFault turns what an exchange has seen of the cut into what it was: not the backend's doing. A new try goes elsewhere.
func (x *exchange) cutFault(f *fault) *fault {
	if f == nil || !x.cut || !f.ofBackend() && f.retry != fresh && x.rec.Status != 101 {
		return f
	}
	cut := *faultCut
	cut.cause = f.cause
	if f.retry != never {
		cut.retry = elsewhere
	}
	return &cut
}
