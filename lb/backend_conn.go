package lb

import (
	"net/netip"
	"time"

	"lbd/lb/loop"
)

// backendConn is a connection to a backend: an exchange's, or idle in its backend's stack.
type backendConn struct {
	backend *Backend
	c       *loop.Conn
	address netip.AddrPort // a backend may move
	loop    int            // whose stack holds it
	reused  bool           // has carried a request before
	in      window
	expire  loop.Handler // expired, bound once
}

// expired ends an idle connection: its time is up, the backend has closed it, or has sent what nobody asked for.
func (bc *backendConn) expired(_ *loop.Task, c *loop.Conn) {
	bc.backend.remove(bc)
	c.Close()
}

// pick chooses the backend of the next try: the same for a fresh connection in a stale one's place, else the pool's choice
// among those not tried.
func (x *exchange) pick() *fault {
	if !x.wantFresh {
		x.backend = x.route.pool.pick(x.tried[:x.tries])
		if x.backend == nil {
			return faultNoBackend
		}
		if x.tries > 0 {
			x.server.retries.Add(1)
		}
		x.tried[x.tries] = x.backend
		x.tries++
		x.tryBy = after(x.t.Now(), x.route.timeouts.Try)
	}
	x.backend.inFlight.Add(1)
	x.held = true
	return nil
}

// connect gets a connection to the picked backend: the newest idle one of this loop, one of another loop, or a new one.
func (x *exchange) connect() *fault {
	b := x.backend
	if !x.wantFresh {
		x.conn = x.idle()
	}
	if x.conn == nil {
		if f := x.dial(); f != nil {
			return f
		}
	} else {
		x.conn.reused = true
		b.reuses.Add(1)
	}
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
		if bc.address == *b.address.Load() {
			return bc
		}
		bc.c.Close()
	}
	return x.stolen()
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
	if len(x.loops) == 0 || x.t.Steal(x.take, x.loops...) == nil {
		return nil
	}
	bc := x.taken
	x.taken = nil
	if bc.address != *b.address.Load() {
		bc.c.Close()
		return nil
	}
	return bc
}

// takeIdle runs on the loop that gives, while the task of x waits.
func (x *exchange) takeIdle(loop int) *loop.Conn {
	if x.taken = x.backend.pop(loop); x.taken == nil {
		return nil
	}
	return x.taken.c
}

// dial opens a new connection.
func (x *exchange) dial() *fault {
	b := x.backend
	address := *b.address.Load()
	c, err := x.t.Dial(address, x.inTime(x.t.Now().Add(x.route.pool.connectTimeout)))
	if err != nil {
		f := &fault{reason: ConnectFailed, status: 502, detail: "connect", cause: err, retry: elsewhere, on: OnConnectFailure}
		if isTimeout(err) {
			f.status, f.detail = 504, "connect_timeout"
		}
		return f
	}
	c.SetNonblocking(true)
	x.conn = &backendConn{backend: b, c: c, address: address}
	x.conn.expire = x.conn.expired
	b.connects.Add(1)
	return nil
}

// leaveBackend ends a try: the connection is kept if both messages are whole on it, and closed otherwise.
func (x *exchange) leaveBackend(f *fault) {
	b, bc := x.backend, x.conn
	if x.held {
		b.inFlight.Add(-1)
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
		bc.settled(x.t)
	bc.in.free(x.t)
	if !keep || x.server.draining.Load() || !bc.park(x.t, x.route.pool, x.resp.KeepAliveSeconds) {
		bc.c.Close()
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

// park makes bc idle. It reports false if it should be closed instead.
func (bc *backendConn) park(t *loop.Task, p *Pool, announced int) bool {
	idle := p.idleTimeout
	if announced >= 0 {
		idle = min(idle, time.Duration(announced)*time.Second-keepAliveMargin)
	}
	bc.loop = t.Loop()
	if idle <= 0 || !bc.backend.push(bc, p.idlePerBackend) {
		return false
	}
	bc.c.Park(t.Now().Add(idle), bc.expire)
	return true
}
