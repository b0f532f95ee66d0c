package lb

import (
	"crypto/tls"
	"io"
	"math"
	"net/netip"
	"sync/atomic"
	"time"

	"lbd/lb/loop"
)

// backendConn is a connection to a backend: an exchange's, or idle in its backend's stack.
type backendConn struct {
	backend *Backend
	c       *loop.Conn
	tls     *tls.Conn      // nil in the clear
	io      io.ReadWriter  // tls or c
	address netip.AddrPort // a backend may move
	over    *backendTLS    // and its settings may change
	since   time.Time      // dialled
	loop    int            // whose stack holds it
	reused  bool           // has carried a request before
	held    atomic.Bool    // a slot of its backend's

	requests  int       // begun
	idleUntil time.Time // while idle
	probe     [1]byte
	in        window
	expire    loop.Handler // expired, bound once
}

// expired ends an idle connection: its time is up, the backend has closed it, or has sent what nobody asked for. A TLS record that
// is no data (a ticket, new keys) is no such thing: the connection stays idle.
func (bc *backendConn) expired(t *loop.Task, c *loop.Conn) {
	b := bc.backend
	b.remove(bc)
	if bc.tls != nil && !c.TimedOut() && t.Now().Before(bc.idleUntil) && bc.quiet() {
		b.push(bc, math.MaxInt)
		c.Park(bc.idleUntil, bc.expire)
		b.offer()
		return
	}
	bc.close()
}

// close ends a connection in good order and gives its slot back once the kernel has the close.
func (bc *backendConn) close() {
	if bc.tls != nil {
		if bc.c.Unacked() == 0 {
			bc.c.SetQueued(0) // so that the close is no later than the alert, which does not have to wait
		}
		bc.tls.Close() // bc.c, too
	}
	bc.c.Close()
	bc.release()
}

// reset ends a connection in whose midst we are: the backend must not take what it has for whole.
func (bc *backendConn) reset() {
	bc.c.Reset()
	bc.release()
}

func (bc *backendConn) release() {
	if bc.held.Swap(false) {
		bc.backend.slots.release()
	}
}

// connect gets a connection to the picked backend: the newest idle one of this loop, one of another loop, or a new one; see acquire
// for where there may be neither.
func (x *exchange) connect() *fault {
	if f := x.acquire(); f != nil {
		return f
	}
	x.rec.Tries = x.tries
	b := x.backend
	if x.conn == nil {
		if f := x.dial(); f != nil {
			return f
		}
	} else {
		x.conn.reused = true
		b.reuses.Add(1)
	}
	x.conn.requests++
	b.requests.Add(1)
	x.rec.Reused = x.conn.reused
	x.rec.Connect = x.t.Now().Sub(x.rec.Time) - x.rec.Head
	return nil
}

// idle returns an idle connection that is still good, or nil.
func (x *exchange) idle() *backendConn {
	b, here := x.backend, x.t.Loop()
	for bc := b.pop(here); bc != nil; bc = b.pop(here) {
		if !bc.c.Claim(x.t) {
			continue // something has come on it: its expire handler has the rest
		}
		if x.fits(bc) {
			return bc
		}
		bc.close()
	}
	return x.stolen()
}

// fits reports whether an idle connection leads where the backend is now, in the way that it is spoken to now, and is not too old.
func (x *exchange) fits(bc *backendConn) bool {
	b, age := bc.backend, x.pool.connectionAge
	return bc.address == *b.address.Load() && bc.over == b.over.Load() && (age <= 0 || x.t.Now().Sub(bc.since) < age)
}

// stolen returns an idle connection of another loop, if one says that it has any. With many loops and little traffic there
// would hardly be any reuse otherwise.
func (x *exchange) stolen() *backendConn {
	b := x.backend
	if b.idleTotal.Load() == 0 {
		return nil
	}
	x.loops = x.loops[:0]
	for i := range b.idle {
		if i != x.t.Loop() && b.idle[i].count.Load() > 0 {
			x.loops = append(x.loops, i)
		}
	}
	if len(x.loops) == 0 {
		return nil
	}
	got := x.t.Steal(x.give, x.loops...) != nil
	bc := x.taken
	x.taken = nil
	switch {
	case !got && bc != nil: // it was lost on its way, and is closed
		bc.release()
		return nil
	case !got:
		return nil
	case !x.fits(bc):
		bc.close()
		return nil
	}
	return bc
}

// giveIdle runs on the loop that gives, while the task of x waits.
func (x *exchange) giveIdle(loop int) *loop.Conn {
	if x.taken = x.backend.pop(loop); x.taken == nil {
		return nil
	}
	return x.taken.c
}

// dial opens a new connection, in the slot that the exchange holds.
func (x *exchange) dial() *fault {
	b := x.backend
	address := *b.address.Load()
	deadline := x.inTime(x.t.Now().Add(x.pool.connectTimeout))
	c, err := x.t.Dial(address, deadline)
	if err != nil {
		x.slot = nil
		b.slots.release()
		f := &fault{reason: ConnectFailed, status: 502, detail: "connect", cause: err, retry: elsewhere, on: OnConnectFailure}
		if isTimeout(err) {
			f.status, f.detail = 504, "connect_timeout"
		}
		return f
	}
	bc := &backendConn{backend: b, c: c, io: c, address: address, over: b.over.Load(), since: x.t.Now()}
	bc.expire = bc.expired
	bc.held.Store(true)
	x.conn, x.slot = bc, nil
	if bc.over != nil {
		if err := bc.handshake(deadline); err != nil {
			return x.tlsFault(err, elsewhere)
		}
		c.SetQueued(queuedBytesMax)
	}
	c.SetNonblocking(true)
	b.connects.Add(1)
	return nil
}

// leaveBackend ends a try: the connection is kept if both messages are whole on it, and closed otherwise.
func (x *exchange) leaveBackend(f *fault) {
	b, bc := x.backend, x.conn
	x.judge(f) // before it is out of flight: who sees nothing in flight has seen all of what it taught
	if x.held {
		b.load.InFlight.Add(-1)
		x.held = false
	}
	if f != nil && f.ofBackend() {
		b.failures.Add(1)
	}
	if bc == nil {
		return
	}
	x.conn = nil
	keep := f == nil && x.resp.KeepAlive && x.up.done && !x.up.broken && x.resp.Status != 101 &&
		bc.in.empty() && // bytes behind the answer must never be taken for the next one
		bc.settled(x.t) && bc.quiet()
	bc.in.free(x.t)
	if keep && x.server.at() < ending && bc.park(x.t, x.pool, x.resp.KeepAliveSeconds) {
		b.offer()
		return
	}
	x.drop(bc, f == nil)
}

// drop closes a connection. One backend that may have so many connections and no more must not still read an old one when it gets
// a new one: so what it has not acknowledged is waited for, or reset.
func (x *exchange) drop(bc *backendConn, whole bool) {
	if x.pool.latest().maxPerBackend > 0 {
		for end := x.t.Now().Add(settleTimeout); whole && bc.c.Unacked() > 0 && x.t.Now().Before(end); {
			if x.t.Sleep(settlePause) != nil {
				break
			}
		}
		whole = whole && bc.c.Unacked() == 0
	} else if !whole {
		bc.c.Close() // without a farewell
		bc.release()
		return
	}
	if whole {
		bc.close()
	} else {
		bc.reset()
	}
}

// abandonConn is for an exchange that a panic has ended.
func (x *exchange) abandonConn() {
	if x.waits.place != nil {
		x.leaveLine()
	}
	if x.slot != nil {
		x.slot.slots.release()
		x.slot = nil
	}
	if x.conn != nil {
		x.conn.in.free(x.t)
		x.conn.reset()
		x.conn = nil
	}
}

// settled reports whether the kernel has the whole request. A backend may answer before it has taken the last of it, and then
// gets a moment.
func (bc *backendConn) settled(t *loop.Task) bool {
	if bc.c.Pending() == 0 {
		return true
	}
	bc.c.SetWriteDeadline(t.Now().Add(settleTimeout))
	return bc.c.Flush() == nil
}

func overLimit(b *Backend, limit int) bool { return limit > 0 && b.open.Load() > int64(limit) }

// park makes bc idle. It reports false if it should be closed instead.
func (bc *backendConn) park(t *loop.Task, p *Pool, announced int) bool {
	idle := p.idleTimeout
	if announced >= 0 {
		idle = min(idle, time.Duration(announced)*time.Second-keepAliveMargin)
	}
	if p.connectionAge > 0 {
		idle = min(idle, p.connectionAge-t.Now().Sub(bc.since))
	}
	switch {
	case p.connectionRequests > 0 && bc.requests >= p.connectionRequests:
		return false
	case overLimit(bc.backend, p.latest().maxPerBackend): // it was higher
		return false
	}
	bc.loop = t.Loop()
	if idle <= 0 || !bc.backend.push(bc, p.idlePerBackend) {
		return false
	}
	bc.idleUntil = t.Now().Add(idle)
	bc.c.Park(bc.idleUntil, bc.expire)
	return true
}
