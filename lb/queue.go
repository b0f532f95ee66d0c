package lb

import (
	"container/list"
	"math/rand/v2"
	"slices"
	"time"

	"lbd/lb/loop"
)

// acquire gets the try an idle connection, or a slot for a new one. Where the backend has neither, it is another backend of the pool
// that has, then a place in the backend's queue, and else nobody: the steps are
//
//	1 what is there, unless others wait for it   2 another backend with room   3 the queue
//
// A client that is bound to its backend waits there and goes nowhere else: that would end its session. Where the backend goes out of
// service meanwhile, they begin again at another one. Limits are those of the pool's latest form, for they bind all that is open.
func (x *exchange) acquire() *fault {
	for deadline := (time.Time{}); ; {
		p := x.pool.latest()
		if (p.maxPerBackend == 0 || x.backend.waiting.Load() == 0) && x.take() {
			return nil
		}
		for range roomTriesMax { // who saw the same room may have been faster
			if !x.moveToRoom() {
				break
			}
			if x.take() {
				return nil
			}
		}
		if p.queue == nil {
			x.backend.queueFull.Add(1)
			return faultQueueFull
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

// moveToRoom changes to another backend that takes new requests and has room. What the try has been counted as moves along.
func (x *exchange) moveToRoom() bool {
	if x.wantFresh || x.pool.persistence != nil && x.session.mark == x.member.mark {
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
	return b.waiting.Load() == 0 && (limit == 0 || b.open.Load() < int64(limit) || b.idleTotal.Load() > 0)
}

// queue waits in the backend's line until it is this request's turn and there is something to take. A client that ends its side
// meanwhile gives up its place: who waits for a loaded service and goes must not be served at the cost of others.
func (x *exchange) queue(length int, deadline time.Time) *fault {
	b, began := x.backend, x.t.Now()
	signal := x.t.Signal()
	place := b.join(signal, length)
	if place == nil {
		return faultQueueFull
	}
	x.turn = place
	f := x.awaitTurn(signal, place, deadline)
	x.turn = nil
	b.leave(place)
	x.rec.Queued += x.t.Now().Sub(began)
	x.tryBy = after(x.t.Now(), x.route.timeouts.Try)
	if f == faultQueueTimeout {
		b.queueTimeouts.Add(1)
	}
	return f
}

func (x *exchange) awaitTurn(signal *loop.Signal, place *list.Element, deadline time.Time) *fault {
	b, c := x.backend, x.client.c
	for {
		signal.Lower()
		switch {
		case x.cut:
			return faultCut
		case x.unseated():
			return faultUnseated
		}
		until := deadline
		if b.first(place) {
			if x.take() {
				return nil
			}
			if b.idleTotal.Load() > 0 { // a loop that has one did not give it in time
				until = earliest(until, x.t.Now().Add(stealAgain))
			}
		}
		_, err := x.t.Wait(until, loop.Want{Signal: signal}, loop.Want{Conn: c, Ended: true})
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
