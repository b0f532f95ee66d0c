package lb

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"log/slog"
	"math/rand/v2"
	"time"

	"lbd/lb/balance"
	"lbd/lb/http1"
	"lbd/lb/loop"
)

// exchange is one request and its answer on their way through. A task that serves a client's connection has one for as
// long as it runs; loops keep them for reuse, so that a request allocates nothing.
//
// Buffers, each borrowed only while it holds something:
//
//	client -> in (head) ----> first (head as sent, first body bytes; kept for a retry) -> backend
//	client -> up.in (body) -> up.out (as sent) -----------------------------------------> backend
//	client <- out (head as sent, body as sent) <- backend.in (head, body) <-------------- backend
type exchange struct {
	server *Server
	t      *loop.Task
	client *clientConn
	form   *listenerForm

	in        window
	headBytes int
	grown     bool // a head was so large that what has grown with it is not worth keeping
	first     []byte
	out       []byte
	up        upload

	req  http1.Request
	resp http1.Response
	down http1.Body // the answer's body

	route     *route
	prefix    int     // how much of the path was the prefix that matched, or noPrefix
	places    int     // held under the route's concurrency limits
	pool      *Pool   // the route's that this request goes to; nil: none yet
	member    *member // its backend's place in the pool
	backend   *Backend
	conn      *backendConn
	wantFresh bool // no idle connection may be used: one was stale
	held      bool // counted as in flight at backend
	retrying  bool // holds a place in the pool's retry budget
	tried     [triedBackendsMax]*Backend
	tries     int
	sent      bool      // the kernel took some of the request in this try
	heard     bool      // some of an answer has come in this try
	interim   bool      // an interim answer has gone to the client
	wide      bool      // the large buffer of an answer was given back while the client was slow
	sentAt    time.Time // when the last of the request was given to the connection
	tryBy     time.Time // when the answer's head must be there; zero: no such limit
	requestBy time.Time // when the answer must be through; zero: no such limit

	closing bool // the connection ends after this exchange
	aborted bool // the answer is cut short, or there is none to give

	rec    Record
	id     [32]byte
	random *rand.ChaCha8 // its loop's

	give  func(loop int) *loop.Conn // giveIdle, bound once
	taken *backendConn
	wants [2]loop.Want
	loops []int
	edit  http1.RequestEdit
	reply http1.ResponseEdit

	cookies []byte // lines of ours for the answer's head
	line    []byte // a Location
	path    []byte // as rewritten

	splitAt    int  // the pool's place in the route
	splitFresh bool // the client's cookie for that is as it should be
	session    session
	scratch    [64]byte

	request balance.Request // for the pool's policy
	avoided [triedBackendsMax]int

	place int      // in its loop's active
	slot  *Backend // where a slot is held without a connection yet
	waits waiter
	cut   bool // this try is to end: its backend has drained
}

// step is what a connection does after an exchange.
type step uint8

const (
	nextRequest step = iota
	parkConn         // nothing is at hand
	lingerConn       // our answer was the last; let the client read it
	closeConn
	abortConn // the answer is cut short: the client must not take it for whole
)

// begin returns an exchange for the connection, on the loop of t.
func (s *Server) begin(t *loop.Task, cc *clientConn) *exchange {
	sh := &s.shards[t.Loop()]
	var x *exchange
	if n := len(sh.spare); n > 0 {
		x, sh.spare[n-1] = sh.spare[n-1], nil
		sh.spare = sh.spare[:n-1]
	} else {
		x = newExchange(s, t.Loop())
	}
	x.t, x.client = t, cc
	x.place = len(sh.active)
	sh.active = append(sh.active, x)
	return x
}

func newExchange(s *Server, loop int) *exchange {
	x := &exchange{server: s, random: s.shards[loop].random}
	x.give = x.giveIdle
	return x
}

// end gives everything back to the loop, and x itself.
func (x *exchange) end() {
	x.in.free(x.t)
	sh := &x.server.shards[x.t.Loop()]
	x.leave(sh)
	x.t, x.client, x.form = nil, nil, nil
	if len(sh.spare) < spareExchangesMax && !x.grown {
		sh.spare = append(sh.spare, x)
	}
}

// leave takes x out of its loop's list.
func (x *exchange) leave(sh *shard) {
	last := len(sh.active) - 1
	sh.active[x.place] = sh.active[last]
	sh.active[x.place].place = x.place
	sh.active[last] = nil
	sh.active = sh.active[:last]
}

// abandon settles the counts of an exchange that a panic has ended. Large buffers are counted, too; the small ones are left to
// the garbage collector.
func (x *exchange) abandon() {
	x.leave(&x.server.shards[x.t.Loop()])
	x.abandonConn()
	if x.held {
		x.backend.load.InFlight.Add(-1)
	}
	if x.retrying {
		x.pool.endRetry()
	}
	x.leaveLimits()
	if x.form != nil {
		x.client.listener.ended[Internal].Add(1)
	}
}

// serveRequest serves one request:
//
//	1 the head   2 a route   3 a backend   4 a connection   5 the request   6 the answer   7 keep or close, count
//
// A retry is a loop over 3 to 6, as long as no final answer has begun. One request sees one table.
func (x *exchange) serveRequest() step {
	next, f := x.readRequest()
	if next != nextRequest {
		return next
	}
	if f != nil {
		return x.refuse(f)
	}
	if string(x.req.Path) == x.form.healthPath {
		return x.respond(x.client.listener.readiness())
	}
	if len(x.req.Path) == 1 && x.req.Path[0] == '*' {
		return x.respond(answerOptions)
	}
	if f = x.findRoute(); f == nil {
		f = x.admit()
	}
	if f != nil {
		return x.refuse(f)
	}
	switch {
	case x.route.respond != nil:
		return x.respond(x.route.respond)
	case x.route.redirect != nil:
		return x.redirect()
	}
	x.choosePool()
	for {
		f = x.pick()
		if f == nil {
			f = x.connect()
		}
		if f == nil {
			f = x.sendRequest()
		}
		if f == nil {
			f = x.readResponse()
		}
		if f == nil {
			f = x.retryStatus()
		}
		if f = x.cutFault(f); f == nil {
			break
		}
		x.leaveBackend(f)
		if f != faultStatus && !x.mayRetry(f) { // that one is decided, and its answer given up
			return x.refuse(f)
		}
	}
	f = x.sendResponse()
	if f == nil && x.resp.Status == 101 {
		f = x.tunnel()
	}
	f = x.cutFault(f)
	x.leaveBackend(f)
	x.aborted = f != nil
	return x.finish(f)
}

// finish ends an exchange: counts and logs it, gives buffers back and says what the connection does next.
func (x *exchange) finish(f *fault) step {
	x.client.phase = isIdle
	x.count(f)
	behind := !x.in.empty() || !x.up.in.empty()
	x.releaseBuffers()
	if x.retrying {
		x.pool.endRetry()
		x.retrying = false
	}
	x.leaveLimits()
	x.form, x.pool, x.member, x.backend = nil, nil, nil, nil
	clear(x.tried[:])
	switch {
	case x.aborted:
		return abortConn
	case !x.closing:
		if !x.up.in.empty() { // read behind the body: the next request's
			x.in.free(x.t)
			x.in, x.up.in = x.up.in, window{}
		}
		return nextRequest
	case !x.up.done, behind:
		return lingerConn
	}
	return closeConn
}

// count completes the record, counts it and hands it to the log.
func (x *exchange) count(f *fault) {
	l, r := x.client.listener, &x.rec
	if f != nil {
		r.Reason, r.Detail = f.reason, f.detail
	}
	if x.client.killed && (f != nil || r.Status == 101) { // to a tunnel it looks like an orderly end
		r.Reason, r.Detail = Drained, detailKilled
	}
	r.Total = x.t.Now().Sub(r.Time)
	r.RequestBytes = x.up.bytes
	if x.route != nil {
		r.Route = x.route.name
	}
	if x.pool != nil {
		r.Pool = x.pool.name
	}
	if x.backend != nil {
		r.Backend = x.backend.name
	}
	l.requests[r.Status/100].Add(1)
	x.countTraffic()
	l.ended[r.Reason].Add(1)
	if f != nil && f.cause != nil {
		x.explain(f)
	}
	if log := x.server.options.AccessLog; log != nil {
		log(r)
	}
}

// countTraffic counts the exchange on its route. A tunnel took as long as its 101.
func (x *exchange) countTraffic() {
	r, tr := &x.rec, &x.client.listener.unrouted
	if x.route != nil {
		tr = x.route.traffic
	}
	took := r.Total
	if r.Status == 101 {
		took = r.Head + r.Connect + r.FirstByte
	}
	tr.count(x.server, x.t.Loop(), r.Status/100, x.pool, x.backend, took)
}

// explain writes down the cause of a failure, which the access log's fixed words leave out.
func (x *exchange) explain(f *fault) {
	level, r := slog.LevelDebug, &x.rec
	if f.reason == Internal {
		level = slog.LevelError
	}
	x.server.log.Log(context.Background(), level, "exchange failed", "request_id", string(r.RequestID), "listener", r.Listener,
		"backend", r.Backend, "reason", f.reason.String(), "detail", f.detail, "cause", f.cause)
}

// releaseBuffers gives back all but what the client's next request needs.
func (x *exchange) releaseBuffers() {
	release(x.t, x.first)
	release(x.t, x.out)
	release(x.t, x.up.out)
	x.first, x.out, x.up.out = nil, nil, nil
	if x.up.in.empty() || x.closing || x.aborted {
		x.up.in.free(x.t)
	}
}

// requestID makes a new id: 128 random bits in hex, without a system call.
func (x *exchange) requestID() []byte {
	var raw [16]byte // by words: Read goes through a buffer of bytes
	binary.NativeEndian.PutUint64(raw[:8], x.random.Uint64())
	binary.NativeEndian.PutUint64(raw[8:], x.random.Uint64())
	hex.Encode(x.id[:], raw[:])
	return x.id[:]
}
