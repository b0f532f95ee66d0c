package lb

import (
	"math"
	"strings"
	"time"

	"lbd/lb/http1"
	"lbd/lb/loop"
)

// readRequest reads the next head into x.in and parses it. Without a byte at hand the connection is parked instead: step
// says so. Once there is a first byte the head has its deadline.
func (x *exchange) readRequest() (step, *fault) {
	form := x.client.listener.served.Load()
	x.form = form
	x.req.Reset()
	if x.in.empty() {
		if next := x.firstBytes(); next != nextRequest {
			x.form = nil
			return next, nil
		}
	}
	x.begun()
	deadline := x.rec.Time.Add(form.timeouts.RequestHead)
	for {
		n, err := x.req.Parse(x.in.bytes(), &form.limits)
		if err == nil {
			x.in.skip(n)
			x.headBytes = n
			x.grown = x.grown || n > loop.BufferBytes
			return nextRequest, x.headRead()
		}
		if err != http1.ErrIncomplete {
			x.rec.Line = refusedLine(x.in.bytes())
			return nextRequest, badRequest(err)
		}
		room := x.in.room(x.t, form.limits.HeadBytes)
		for {
			n, err = x.client.io.Read(room)
			if n > 0 || err != loop.ErrWouldBlock {
				break
			}
			if _, err = x.t.Wait(deadline, loop.Want{Conn: x.client.c, Read: true}); err != nil {
				break
			}
		}
		if n == 0 {
			x.rec.Line = refusedLine(x.in.bytes())
			return nextRequest, clientFault(err, "head")
		}
		x.in.filled(n)
	}
}

// firstBytes reads what has come of a next request.
func (x *exchange) firstBytes() step {
	n, err := x.client.io.Read(x.in.room(x.t, 1))
	x.in.filled(n)
	switch {
	case n > 0:
		return nextRequest
	case err == loop.ErrWouldBlock:
		return parkConn
	}
	return closeConn
}

// begun starts the record of a request.
func (x *exchange) begun() {
	l := x.client.listener
	r := &x.rec
	*r = Record{} // in place: a literal with calls in it is made elsewhere and copied
	r.Time, r.Node, r.Listener, r.Loop = x.t.Now(), x.server.options.Node, l.name, x.t.Loop()
	r.Client, r.TLS = x.client.remote(), x.client.facts
	x.closing, x.aborted, x.interim = false, false, false
	x.tries, x.wantFresh, x.cookies = 0, false, x.cookies[:0]
	x.route, x.pool, x.member, x.requestBy, x.tryBy = nil, nil, nil, time.Time{}, time.Time{}
	x.up.done, x.up.bytes, x.up.bytesMax = false, 0, math.MaxInt64
	x.client.requests++
	x.client.phase = inRequest
	r.RequestID = x.requestID()
}

// headRead takes from the head what the exchange needs.
func (x *exchange) headRead() *fault {
	r := &x.rec
	r.Head = x.t.Now().Sub(r.Time)
	r.Target = x.req.Target
	if x.client.trusted(x.form) {
		if id, ok := x.req.Fields.Get("x-request-id"); ok && isRequestID(id) {
			r.RequestID = id
		}
	}
	r.Method, r.Host, r.Path, r.Query, r.Minor = x.req.Method, x.req.Host, x.req.Path, x.req.Query, x.req.Minor
	if x.server.options.AccessLog != nil {
		r.UserAgent, _ = x.req.Fields.Get("user-agent")
		r.Referer, _ = x.req.Fields.Get("referer")
	}
	x.closing = !x.req.KeepAlive
	x.req.StartBody(&x.up.body)
	x.up.begin(&x.req)
	return nil
}

// isRequestID reports whether a trusted peer's id may stand in a log and in an answer as it is.
func isRequestID(id []byte) bool {
	if len(id) == 0 || len(id) > requestIDBytesMax {
		return false
	}
	for _, c := range id {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte("-._~:/+=@", c) >= 0:
		default:
			return false
		}
	}
	return true
}

// inTime returns the deadline of what a try waits for: the given one, or the try's or the request's own if that is earlier.
func (x *exchange) inTime(deadline time.Time) time.Time {
	return earliest(earliest(deadline, x.tryBy), x.requestBy)
}

// overdue reports whether the request's own time is over.
func (x *exchange) overdue() bool { return !x.requestBy.IsZero() && !x.t.Now().Before(x.requestBy) }

// badRequest turns the parser's refusal into a fault.
func badRequest(err error) *fault {
	e, ok := err.(*http1.Error)
	if !ok {
		return &fault{reason: Internal, status: 500, detail: "parser", cause: err}
	}
	return &fault{reason: BadRequest, status: e.Status, detail: e.Reason}
}

// sendRequest sends the head, and with it what is at hand of the body. On a retry it sends the same bytes again.
func (x *exchange) sendRequest() *fault {
	if x.cut {
		return faultCut
	}
	if x.first == nil {
		if f := x.writeFirst(); f != nil {
			return f
		}
	}
	queued, deadline := 0, x.inTime(x.t.Now().Add(writeStallTimeout))
	if !x.up.done {
		// Both directions move from here on, and neither may wait for the other: await has the deadlines.
		queued, deadline = queuedBytesMax, time.Time{}
	}
	if x.conn.tls != nil { // a read may write, and must not wait for that
		queued, deadline = queuedBytesMax+2*len(x.first), time.Time{}
	}
	x.conn.c.SetQueued(queued)
	x.conn.c.SetWriteDeadline(deadline)
	x.up.broken = false // it may have been, in the try before
	n, err := x.conn.io.Write(x.first)
	x.sentAt, x.sent, x.heard = x.t.Now(), n > 0, false
	switch {
	case err == nil:
		return nil
	case isTimeout(err):
		return &fault{reason: BackendTimeout, status: 504, detail: "send", cause: err, retry: x.retryAfterSilence(), on: OnFirstByteTimeout}
	case n == 0 && x.conn.tls == nil:
		return &fault{reason: BackendAborted, status: 502, detail: "send", cause: err, retry: x.retryAfterReset(), on: OnReset}
	}
	x.up.broken = true // it may have answered before it closed, or said why: the reader finds out
	return nil
}

// writeFirst puts the head and the first of the body into x.first.
func (x *exchange) writeFirst() *fault {
	cc := x.client
	x.path = x.route.rewrite.appendPath(x.path[:0], x.req.Path, x.prefix)
	x.edit = http1.RequestEdit{
		Host: x.backendHost(), Path: x.path, Rules: x.route.request, ClientAddress: cc.address, Scheme: cc.scheme(), Port: cc.port, RequestID: x.rec.RequestID, Via: via,
		Trusted: cc.trusted(x.form), Forwarded: x.form.forwarded, AllowUnderscores: x.form.underscores,
	}
	x.first = x.req.Append(x.t.Buffer()[:0], &x.edit)
	if x.up.done {
		return nil
	}
	room := cap(x.first) - len(x.first) - chunkOverhead
	if room <= 0 || x.in.empty() {
		return nil
	}
	data, f := x.up.decode(&x.in, room)
	if f != nil {
		return f
	}
	x.first = x.up.frame(x.first, data)
	return nil
}
