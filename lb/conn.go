package lb

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"lbd/lb/loop"
)

// A client's connection:
//
//	accept -> handshake -> serve <-> parked -> closed
//	                         |                   ^
//	                         +-------------------+
//
// serve runs in a task and has an exchange with its buffers; parked has neither.

// clientConn is what stays of a client's connection from accept to close.
type clientConn struct {
	listener *listener
	c        *loop.Conn
	tls      *tls.Conn     // nil on a plain connection
	facts    *TLSFacts     // of tls, for the log
	io       io.ReadWriter // tls or c
	address  string        // the client's, without port
	port     string        // the one it came to
	resume   loop.Handler  // wake, bound once
	since    time.Time     // accepted
	requests int           // begun

	idleUntil time.Time // when a parked connection is to close
	unacked   int       // bytes at the last look at it; at first those of the answers since it was woken

	// Whether form trusts the peer; worked out again when the listener has another form.
	judgedBy *listenerForm
	trust    bool

	id     int64
	link   clientLink // in the list of its loop
	x      *exchange  // while it is served
	phase  phase
	killed bool

	// While parked: neighbours in its listener's list.
	next, prev *clientConn
}

// accept is a connection's first task. Port is the listener's, as configured: 0 if the kernel has chosen it.
func (l *listener) accept(t *loop.Task, c *loop.Conn, port string) {
	l.accepted.Add(1)
	form := l.served.Load()
	if l.connections.Add(1) > form.max {
		l.connections.Add(-1)
		l.ended[Limited].Add(1)
		(&clientConn{listener: l, c: c}).record(t, t.Now(), Limited, "connections")
		return
	}
	l.server.connections.Add(1)
	if port == "0" {
		port = strconv.Itoa(c.LocalAddr().(*net.TCPAddr).Port)
	}
	cc := &clientConn{listener: l, c: c, io: c, since: t.Now(), address: c.RemoteAddrPort().Addr().String(), port: port}
	cc.resume = cc.wake
	cc.register(t)
	if form.tls && !cc.handshake(t, form) {
		cc.close(t)
		return
	}
	// From here on no call on the connection waits by itself: the exchange waits, for both its sides at once.
	c.SetNonblocking(true)
	c.SetQueued(queuedBytesMax)
	cc.serve(t)
}

// register puts the connection into the list of its loop.
func (cc *clientConn) register(t *loop.Task) {
	s := cc.listener.server
	cc.id = s.accepted.Add(1)
	cc.link.client = cc
	s.shards[t.Loop()].clients.add(&cc.link)
}

// handshake lets the terminator do it, as heavy steps, and counts why it failed.
func (cc *clientConn) handshake(t *loop.Task, form *listenerForm) bool {
	returned := false
	defer func() {
		if !returned { // a panic, which the loop logs
			cc.listener.ended[Internal].Add(1)
			cc.forget()
		}
	}()
	err := cc.shakeHands(t, form)
	returned = true
	return err == nil
}

func (cc *clientConn) shakeHands(t *loop.Task, form *listenerForm) error {
	began := t.Now()
	cc.c.SetHeavy(true)
	cc.c.SetDeadline(t.Now().Add(form.timeouts.Handshake))
	conn, err := cc.listener.server.options.Terminator.Handshake(cc.c, cc.listener.name)
	cc.c.SetHeavy(false)
	if conn != nil && cc.listener.server.options.AccessLog != nil {
		cc.facts = tlsFacts(conn)
	}
	if err == nil {
		cc.c.SetDeadline(time.Time{})
		cc.tls, cc.io = conn, conn
		return nil
	}
	reason := BadRequest
	switch {
	case isTimeout(err):
		reason = ClientTimeout
	case errors.Is(err, loop.ErrOverloaded):
		reason = Shed
	case isGone(err):
		reason = ClientAborted
	}
	detail := handshakeDetail(err)
	if cc.killed {
		reason, detail = Drained, detailKilled
	}
	cc.listener.ended[reason].Add(1)
	cc.listener.server.log.Debug("handshake failed", "listener", cc.listener.name, "client", cc.address, "cause", err)
	cc.record(t, began, reason, detail)
	return err
}

// handshakeDetail says where the terminator tells what went wrong.
func handshakeDetail(err error) string {
	var told interface{ Detail() string }
	if errors.As(err, &told) {
		return "handshake_" + told.Detail()
	}
	return "handshake"
}

// record logs a connection that never came to an exchange.
func (cc *clientConn) record(t *loop.Task, began time.Time, reason Reason, detail string) {
	s := cc.listener.server
	if s.options.AccessLog == nil {
		return
	}
	s.options.AccessLog(&Record{
		Time: began, Node: s.options.Node, Listener: cc.listener.name, Loop: t.Loop(), Client: cc.remote(), TLS: cc.facts,
		Reason: reason, Detail: detail, Total: t.Now().Sub(began),
	})
}

// scheme is the connection's own: the listener may speak another protocol by now.
func (cc *clientConn) scheme() string {
	if cc.tls != nil {
		return "https"
	}
	return "http"
}

func (cc *clientConn) remote() netip.AddrPort { return cc.c.RemoteAddrPort() }

// serve serves requests until there is none at hand, then parks, or closes if the connection is at its end.
func (cc *clientConn) serve(t *loop.Task) {
	x := cc.listener.server.begin(t, cc)
	cc.x, cc.phase = x, isIdle
	whole := false
	defer func() {
		if !whole { // a panic, which the loop logs: nothing may leak, and x is not to be used again
			x.abandon()
			cc.forget()
		}
	}()
	next, before, answered := nextRequest, cc.requests, 0
	for next == nextRequest {
		if next = x.serveRequest(); next == nextRequest {
			answered += int(x.rec.ResponseBytes)
		}
	}
	switch next {
	case lingerConn:
		x.in.skip(len(x.in.bytes()))
		cc.linger(t, x.in.room(t, 1))
	case abortConn:
		cc.tls = nil // no farewell: over TLS it would say that the answer was whole
	}
	if cc.requests > before { // else x.rec is still that of another connection's exchange
		cc.unacked = answered
	}
	x.end()
	cc.x, cc.phase = nil, isIdle
	whole = true
	if next != parkConn || cc.listener.beyond(ending) {
		cc.close(t)
		return
	}
	cc.park(t)
}

// park leaves the connection to the loop until its next request, or its idle time.
func (cc *clientConn) park(t *loop.Task) {
	form := cc.listener.served.Load()
	cc.idleUntil = earliest(t.Now().Add(form.timeouts.KeepAliveIdle), after(cc.since, form.age))
	cc.parkUntil(t, earliest(cc.idleUntil, t.Now().Add(form.timeouts.WriteStall)))
}

func (cc *clientConn) parkUntil(t *loop.Task, deadline time.Time) {
	cc.listener.parked[t.Loop()].add(cc)
	cc.c.Park(deadline, cc.resume)
}

// trusted reports whether the peer is a proxy of ours.
func (cc *clientConn) trusted(form *listenerForm) bool {
	if cc.judgedBy != form {
		address := cc.remote().Addr().WithZone("")
		cc.judgedBy = form
		cc.trust = slices.ContainsFunc(form.trusted, func(p netip.Prefix) bool { return p.Contains(address) })
	}
	return cc.trust
}

// lastRequest reports whether the client's connection is to end with the request that it is at.
func (x *exchange) lastRequest() bool {
	cc, form := x.client, x.form
	return cc.listener.beyond(gentle) || cc.killed || cc.requests >= form.requestsMax || form.age >= 0 && x.t.Now().Sub(cc.since) >= form.age
}

// wake is the first task after parking.
func (cc *clientConn) wake(t *loop.Task, c *loop.Conn) {
	cc.listener.parked[t.Loop()].remove(cc)
	switch {
	case !c.TimedOut():
		cc.serve(t)
	case !t.Now().Before(cc.idleUntil) || cc.listener.beyond(ending):
		cc.close(t)
	default:
		cc.look(t)
	}
}

// look is what happens to a parked connection once it has been idle for the write stall's time: the kernel may still hold
// all of an answer that the client does not read. One that has taken nothing since the last look is given up.
func (cc *clientConn) look(t *loop.Task) {
	before := cc.unacked
	cc.unacked = cc.c.Unacked()
	switch {
	case cc.unacked == 0:
		cc.parkUntil(t, cc.idleUntil)
	case cc.unacked < before:
		now, stall := t.Now(), cc.listener.served.Load().timeouts.WriteStall
		cc.parkUntil(t, earliest(cc.idleUntil, longer(now.Add(stall), now, stall, before-cc.unacked)))
	default:
		cc.c.Reset()
		cc.tls = nil
		cc.close(t)
	}
}

// close ends the connection and counts it. A TLS peer is told, if its window takes an alert.
func (cc *clientConn) close(t *loop.Task) {
	if cc.tls != nil {
		cc.c.SetDeadline(t.Now().Add(closeTimeout))
		cc.tls.Close()
	}
	cc.c.Close()
	cc.forget()
}

// forget counts one connection less.
func (cc *clientConn) forget() {
	cc.link.remove()
	cc.listener.connections.Add(-1)
	cc.listener.server.gone()
}

// linger ends our side and reads what the client still sends, for a while: closing with unread bytes would make the kernel
// reset the connection, and the client might lose the answer that it has not read.
func (cc *clientConn) linger(t *loop.Task, scratch []byte) {
	deadline := t.Now().Add(lingerTimeout)
	cc.c.SetWriteDeadline(deadline)
	if cc.tls != nil {
		cc.tls.CloseWrite()
		cc.c.SetWriteDeadline(deadline) // crypto/tls leaves one in the past
	}
	if cc.c.CloseWrite() != nil {
		return
	}
	for left := lingerBytesMax; left > 0; {
		n, err := cc.c.Read(scratch) // ciphertext will do
		left -= n
		if err == nil {
			continue
		}
		if err != loop.ErrWouldBlock {
			return
		}
		if _, err := t.Wait(deadline, loop.Want{Conn: cc.c, Read: true}); err != nil {
			return
		}
	}
}
