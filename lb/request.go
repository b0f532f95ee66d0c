package lb

import (
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
			return nextRequest, x.headRead()
		}
		if err != http1.ErrIncomplete {
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
	x.rec = Record{Time: x.t.Now(), Node: x.server.options.Node, Listener: l.name, Client: x.client.remote(), TLS: x.client.tls}
	x.closing, x.aborted = false, false
	x.tries, x.wantFresh = 0, false
	x.route = nil
	x.up.done, x.up.bytes = false, 0
	x.rec.RequestID = x.requestID()
}

// headRead takes from the head what the exchange needs.
func (x *exchange) headRead() *fault {
	r := &x.rec
	r.Head = x.t.Now().Sub(r.Time)
	r.Method, r.Host, r.Path, r.Query, r.Minor = x.req.Method, x.req.Host, x.req.Path, x.req.Query, x.req.Minor
	x.closing = !x.req.KeepAlive
	x.req.StartBody(&x.up.body)
	x.up.begin(&x.req)
	if x.req.EncodedSlash {
		return badRequest(http1.ErrEncodedSlash)
	}
	return nil
}

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
	if x.first == nil {
		if f := x.writeFirst(); f != nil {
			return f
		}
	}
	queued := 0
	if !x.up.done {
		queued = queuedBytesMax // both directions move from here on: neither may wait for the other
	}
	x.conn.c.SetQueued(queued)
	x.conn.c.SetWriteDeadline(x.t.Now().Add(writeStallTimeout))
	n, err := x.conn.c.Write(x.first)
	x.sentAt, x.sent, x.heard = x.t.Now(), n > 0, false
	switch {
	case err == nil:
		return nil
	case isTimeout(err):
		return &fault{reason: BackendTimeout, status: 504, detail: "send", cause: err}
	case n == 0:
		return &fault{reason: BackendAborted, status: 502, detail: "send", cause: err, retry: x.retryAfterReset()}
	}
	x.up.broken = true // it may have answered before it closed: the reader finds out
	return nil
}

// writeFirst puts the head and the first of the body into x.first.
func (x *exchange) writeFirst() *fault {
	cc := x.client
	x.edit = http1.RequestEdit{
		Host: x.hostIfNone(), ClientAddress: cc.address, Scheme: x.form.scheme, Port: cc.port, RequestID: x.rec.RequestID, Via: via,
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

// hostIfNone is the backend's name where an HTTP/1.0 client named none: HTTP/1.1 demands one.
func (x *exchange) hostIfNone() []byte {
	if x.req.HasHost {
		return nil
	}
	return []byte(x.backend.name)
}

// retryAfterReset says where a request may be sent again when its connection broke before an answer: if the kernel took
// none of it, or if doing it twice is doing it once, no harm is possible.
func (x *exchange) retryAfterReset() retry {
	switch {
	case x.heard, x.up.beyond, x.sent && !idempotent(x.req.Method):
		return never
	case x.conn.reused:
		return fresh
	}
	return elsewhere
}

// idempotent: RFC 9110 9.2.2. TRACE never comes here.
func idempotent(method []byte) bool {
	switch string(method) {
	case "GET", "HEAD", "OPTIONS", "PUT", "DELETE":
		return true
	}
	return false
}
