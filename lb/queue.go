package lb

import (
	"container/list"
	"math/rand/v2"
	"slices"
	"time"

	"lbd/lb/loop"
)

// acquire gets the try an idle connection, or a slot for a new one. Where the backend has neither, it is another backend of the pool
// that has, then a place in the line of the backend that was picked, and else nobody: the steps are
//
//	1 what is there, unless others wait for it   2 another backend with room   3 the line, until 1 or 2 is possible
//
// A client that is bound to its backend waits there and goes nowhere else: that would end its session. Where the backend goes out of
// service meanwhile, they begin again at another one. Limits are those of the pool's latest form, for they bind all that is open.
func (x *exchange) acquire() *fault {
	for deadline := (time.Time{}); ; {
		p := x.pool.latest()
		if (p.maxPerBackend == 0 || x.backend.line.length.Load() == 0) && x.take() {
			return nil
		}
		if took, _ := x.takeElsewhere(); took {
			return nil
		}
		if p.queue == nil {
			return faultConnections
		}
		if deadline.IsZero() {
			deadline = earliest(x.t.Now().Add(p.queue.Timeout), x.requestBy)
		}
		if f := x.queue(p.queue.Length, deadline); f != faultUnseated || !x.moveOn() {
			return f
		}
	}
}

// take gets what is there now. A fresh connection in a stale one's place may cost an idle one its slot.
func (x *exchange) take() bool {
	b := x.backend
	if !x.wantFresh {
		if x.conn = x.idle(); x.conn != nil {
			return true
		}
	}
	for !b.acquire(x.pool.latest().maxPerBackend) {
		var idle *backendConn
		if x.wantFresh {
			idle = x.idle()
		}
		if idle == nil {
			return false
		}
		idle.close()
	}
	x.slot = b
	return true
}

// takeElsewhere gets what another backend of the pool has. Else the exchange is where it was, and seen says whether there was something
// that others may have been faster to take.
func (x *exchange) takeElsewhere() (took, seen bool) {
	here := x.member
	for range roomTriesMax {
		if !x.moveToRoom() {
			break
		}
		if x.take() {
			return true, true
		}
		seen = true
	}
	if x.member != here {
		x.moveTo(here)
	}
	return false, seen
}

// roams reports whether another backend will do: neither a session nor a stale connection binds the request to its own.
func (x *exchange) roams() bool {
	return !x.wantFresh && (x.pool.persistence == nil || x.session.mark != x.member.mark)
}

// moveToRoom changes to another backend that takes new requests and has room. What the try has been counted as moves along.
func (x *exchange) moveToRoom() bool {
	if !x.roams() {
		return false
	}
	p := x.pool.latest()
	m := p.choice.Load().withRoom(p, x.tried[:x.tries])
	if m == nil {
		return false
	}
	x.moveTo(m)
	return true
}

// moveOn changes to another backend because this one takes no requests any more.
func (x *exchange) moveOn() bool {
	p := x.pool.latest()
	m := x.choose(p, p.choice.Load())
	if m == nil {
		return false
	}
	x.wantFresh = false
	x.moveTo(m)
	return true
}

func (x *exchange) moveTo(m *member) {
	x.backend.load.InFlight.Add(-1)
	x.member, x.backend = m, m.backend
	x.backend.load.InFlight.Add(1)
	x.tried[x.tries-1] = x.backend // the other one has not been asked
}

// unseated reports whether the backend takes neither new requests nor this one.
func (x *exchange) unseated() bool {
	p := x.pool.latest()
	c := p.choice.Load()
	for i, m := range p.members {
		if m.backend == x.backend && i < len(c.seats) {
			return !c.seats[i].takes && (x.session.mark != m.mark || c.bound[m.mark] == nil)
		}
	}
	return c.policy != nil // it has left the pool, for others
}

// withRoom returns a member that takes new requests, has not been tried and has an idle connection or a free slot; nil if there is
// none.
func (c *choice) withRoom(p *Pool, tried []*Backend) *member {
	n := len(p.members)
	start := rand.IntN(max(1, n))
	for i := range min(n, len(c.seats)) {
		at := (start + i) % n
		if m := p.members[at]; c.seats[at].takes && m.backend.hasRoom(p.maxPerBackend) && !slices.Contains(tried, m.backend) {
			return m
		}
	}
	return nil
}

func (b *Backend) hasRoom(limit int) bool {
	return b.line.length.Load() == 0 && (limit == 0 || b.open.Load() < int64(limit) || b.idleTotal.Load() > 0)
}

// waiter is a request in line.
type waiter struct {
	signal  *loop.Signal
	member  *member       // whose backend it waits for
	place   *list.Element // in that one's line; nil: it does not wait
	roamers *line         // of the pool; nil: it may go nowhere else
	roaming *list.Element // its place among them
}

// joinLine takes a place at the end of the backend's line. A request that may go to other backends stands among the pool's roamers, too,
// but not one that has failed at some: what the others have room for, it may not be able to take.
func (x *exchange) joinLine(length int) bool {
	m := x.member
	if !m.queue.join(length) {
		return false
	}
	w := waiter{signal: x.t.Signal(), member: m}
	if w.place = m.backend.line.join(w.signal); x.tries == 1 && x.roams() {
		w.roamers = x.pool.roamers
		w.roaming = w.roamers.join(w.signal)
	}
	x.waits = w
	return true
}

// leaveLine gives its places up. Those behind are told: there may be more than was taken.
func (x *exchange) leaveLine() {
	w := x.waits
	x.waits = waiter{}
	if w.roamers != nil && w.roamers.leave(w.roaming) {
		w.roamers.tell()
	}
	if b := w.member.backend; b.line.leave(w.place) {
		b.offer()
	}
	w.member.queue.leave()
}

// queue waits in the backend's line until it is this request's turn and there is something to take, there or elsewhere. A client that
// ends its side meanwhile gives up its place: who waits for a loaded service and goes must not be served at the cost of others.
func (x *exchange) queue(length int, deadline time.Time) *fault {
	began, share := x.t.Now(), &x.member.queue
	if !x.joinLine(length) {
		return faultQueueFull
	}
	f := x.awaitTurn(deadline)
	x.leaveLine()
	x.rec.Queued += x.t.Now().Sub(began)
	x.tryBy = after(x.t.Now(), x.route.timeouts.Try)
	if f == faultQueueTimeout {
		share.timeouts.Add(1)
	}
	return f
}

func (x *exchange) awaitTurn(deadline time.Time) *fault {
	b, c, w := x.backend, x.client.c, &x.waits
	for {
		w.signal.Lower()
		switch {
		case x.cut:
			return faultCut
		case x.unseated():
			return faultUnseated
		}
		until := deadline
		if b.line.first(w.place) {
			if x.take() {
				return nil
			}
			if b.idleTotal.Load() > 0 { // a loop that has one did not give it in time
				until = earliest(until, x.t.Now().Add(stealAgain))
			}
		}
		if w.roamers != nil && w.roamers.first(w.roaming) {
			took, seen := x.takeElsewhere()
			if took {
				return nil
			}
			if seen {
				until = earliest(until, x.t.Now().Add(stealAgain))
			}
		}
		_, err := x.t.Wait(until, loop.Want{Signal: w.signal}, loop.Want{Conn: c, Ended: true})
		switch {
		case err == nil && c.Ended():
			return faultGone
		case err == nil:
		case !isTimeout(err):
			return &fault{reason: Drained, status: 503, detail: "closing", cause: err}
		case !x.t.Now().Before(deadline):
			return faultQueueTimeout
		}
	}
}
