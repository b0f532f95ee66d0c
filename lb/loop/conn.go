package loop

import (
	"net"
	"net/netip"
	"time"
)

// A Handler is a task with a connection. Connections that it still owns when it
// returns are closed.
type Handler func(t *Task, c *Conn)

// A Conn is a TCP connection owned by one task, and a net.Conn for code inside
// that task: a *tls.Conn may sit on top. Calls from elsewhere get ErrNotOwner.
//
//	         Park              event or deadline
//	owned ----------> parked --------------------> owned by a new task
//	  ^                 |
//	  +-----------------+  Claim, Steal
type Conn struct {
	on          socket
	remote      netip.AddrPort
	readBy      instant
	writeBy     instant
	queuedMax   int32
	timedOut    bool
	heavy       bool
	nonblocking bool
	corked      bool
}

var _ net.Conn = (*Conn)(nil)

// Read waits for data, or answers ErrWouldBlock if the connection is set to
// nonblocking. A buffer larger than what is expected saves a system call: a read
// that does not fill it shows that nothing more is there.
func (c *Conn) Read(p []byte) (int, error) { return c.on.read(p) }

// Write returns when the kernel has taken all of p, unless SetQueued is on.
func (c *Conn) Write(p []byte) (int, error) { return c.on.write(p) }

// Close gives the kernel what is queued, as far as it takes it without waiting,
// and closes. It never waits.
func (c *Conn) Close() error { return c.on.close() }

// Reset closes without sending what is queued or still in the kernel; the peer
// gets an error instead of an end.
func (c *Conn) Reset() error { return c.on.reset() }

// Abort breaks a connection of another task of the same loop, or a parked one:
// to whoever has it, it is as if the peer had reset it, and the peer sees a reset
// when it is closed. On a connection of another loop it does nothing.
func (c *Conn) Abort(t *Task) {
	if t.on.holds(c.on) {
		c.on.abort()
	}
}

// CloseWrite sends what is queued, waiting for it up to the write deadline, and
// then a FIN; reading goes on.
func (c *Conn) CloseWrite() error {
	if err := c.on.flush(); err != nil {
		return err
	}
	return c.on.closeWrite()
}

// LocalAddr is the address the peer connected to.
func (c *Conn) LocalAddr() net.Addr { return c.on.localAddr() }

// RemoteAddr is the peer's address.
func (c *Conn) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(c.remote) }

// RemoteAddrPort is the peer's address without an allocation; IPv4 is never in
// its IPv6-mapped form.
func (c *Conn) RemoteAddrPort() netip.AddrPort { return c.remote }

// SetDeadline sets both deadlines.
func (c *Conn) SetDeadline(t time.Time) error {
	c.readBy, c.writeBy = at(t), at(t)
	return nil
}

// SetReadDeadline bounds every later Read; the zero time means none. It costs
// no more than a store. Wait and Park have deadlines of their own.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.readBy = at(t)
	return nil
}

// SetWriteDeadline bounds every later Write, Flush and CloseWrite; the zero time
// means none.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	c.writeBy = at(t)
	return nil
}

// SetHeavy says whether the next steps of this connection are expensive, like
// those of a TLS handshake. While on, its task is resumed last, at most one such
// step a round, and its Read may answer ErrOverloaded.
func (c *Conn) SetHeavy(on bool) { c.heavy = on }

// SetNonblocking says whether Read answers ErrWouldBlock instead of waiting, and
// a queued Write above the limit ErrQueueFull. The second is for a tls.Conn,
// whose Read writes when the peer wants it to (RFC 8446 4.6.3): a peer that
// wants it without end and reads nothing must not hold the task.
func (c *Conn) SetNonblocking(on bool) { c.nonblocking = on }

// SetQueued lets Write return at once while fewer than limit bytes are pending:
// what the kernel does not take is kept and sent by Wait (with Want.Write),
// Flush, later writes and Close. It is for relays over a tls.Conn, whose Write
// cannot be resumed. Zero turns it off for later writes.
func (c *Conn) SetQueued(limit int) { c.queuedMax = int32(min(max(limit, 0), 1<<30)) }

// SetCorked lets what is written from now on become pending, so that several short
// messages go to the kernel in one call and on the wire in one segment. Turning it
// off sends what the kernel takes; Flush and Close do likewise, Wait with Want.Write
// too. The twin does not wait for more.
func (c *Conn) SetCorked(on bool) {
	c.corked = on
	if !on {
		c.on.uncork()
	}
}

// Pending is the number of bytes written and not yet handed to the kernel.
func (c *Conn) Pending() int { return c.on.pending() }

// Unacked is the number of bytes written that the peer has not acknowledged: what
// is pending and what the kernel holds. While a slow peer reads it falls long
// before the kernel takes more. It costs a system call. Off Linux it is Pending.
func (c *Conn) Unacked() int { return c.on.pending() + c.on.unacked() }

// Broken reports whether the peer has reset the connection, or the kernel has
// given it up. A peer that has only ended its side has not broken it.
func (c *Conn) Broken() bool { return c.on.broken() }

// Ended reports whether the peer has ended its side, or broken the connection.
// Where more than a buffer of data comes first the twin does not see it.
func (c *Conn) Ended() bool { return c.on.atEnd() }

// Flush waits, up to the write deadline, until nothing is pending.
func (c *Conn) Flush() error { return c.on.flush() }

// Offload is Task.Offload of the task that owns c; fn runs in place if none
// does.
func (c *Conn) Offload(fn func()) {
	if t := c.on.owner(); t != nil {
		t.Offload(fn)
		return
	}
	fn()
}

// Park takes the connection out of its task: it then holds no coroutine and no
// buffer. The next data, end or error, or the deadline (zero: none), starts a
// task with resume; TimedOut tells which. Nothing may be pending. Deadlines,
// heavy, nonblocking and queued stay as they are set. A connection that is not
// the caller's stays untouched.
func (c *Conn) Park(deadline time.Time, resume Handler) { c.on.park(at(deadline), resume) }

// TimedOut reports whether it was Park's deadline that resumed the connection.
func (c *Conn) TimedOut() bool { return c.timedOut }

// Claim takes a parked connection into the task t of the same loop. It reports
// false if data, an end, an error or the deadline has come meanwhile, or if the
// connection is of another loop: resume gets it then, or has got it.
func (c *Conn) Claim(t *Task) bool { return c.on.claim(t) }
