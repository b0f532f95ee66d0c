package lb

import (
	"io"
	"math"
	"time"

	"lbd/lb/http1"
	"lbd/lb/loop"
)

// via is our name in Via: the same on every node, for a client has no business with them.
const via = "lbd"

// readResponse reads the head of the final answer, and passes on what comes before it (1xx).
func (x *exchange) readResponse() *fault {
	in := &x.conn.in
	x.resp.Reset()
	for interim := 0; ; {
		n, err := x.resp.Parse(in.bytes(), &http1.DefaultLimits, &x.req)
		switch {
		case err == http1.ErrIncomplete:
			if f := x.moreHead(); f != nil {
				return f
			}
			continue
		case err != nil:
			return &fault{reason: BackendAborted, status: 502, detail: err.Error()}
		}
		in.skip(n)
		if !x.resp.Interim() {
			x.resp.StartBody(&x.down)
			x.rec.FirstByte = x.t.Now().Sub(x.rec.Time) - x.rec.Head - x.rec.Connect
			return nil
		}
		if interim++; interim > interimAnswersMax {
			return faultInterim
		}
		if f := x.relayInterim(); f != nil {
			return f
		}
		x.resp.Reset()
	}
}

// moreHead reads more of the answer's head.
func (x *exchange) moreHead() *fault {
	in := &x.conn.in
	for {
		timeouts := &x.route.timeouts
		deadline := after(x.sentAt, timeouts.FirstByte)
		if !x.up.done {
			x.sentAt = x.t.Now()
			x.tryBy = after(x.sentAt, timeouts.Try)
			deadline = after(x.sentAt, timeouts.BodyIdle)
		}
		if f := x.await(loop.Want{Conn: x.conn.c, Read: true}, x.inTime(deadline)); f != nil {
			return f
		}
		// Only now: a thousand requests that wait for slow backends hold no buffers for their answers.
		n, err := x.conn.c.Read(in.room(x.t, http1.DefaultLimits.HeadBytes))
		in.filled(n)
		switch {
		case n > 0:
			x.heard = true
			return nil
		case err == loop.ErrWouldBlock:
			if in.empty() {
				in.free(x.t)
			}
			continue
		case !x.heard:
			return &fault{reason: BackendAborted, status: 502, detail: "no_answer", cause: err, retry: x.retryAfterReset(), on: OnReset}
		}
		return &fault{reason: BackendAborted, status: 502, detail: "answer_head", cause: err}
	}
}

// relayInterim passes an interim answer on. A client of HTTP/1.0 does not know them (RFC 9110 15.2).
func (x *exchange) relayInterim() *fault {
	if x.req.Minor == 0 {
		return nil
	}
	x.interim = true
	x.reply = http1.ResponseEdit{Minor: x.req.Minor, Via: via}
	x.borrowOut()
	x.out = x.resp.Append(x.out, &x.reply)
	f := x.put(x.out)
	x.out = x.out[:0]
	return f
}

// sendResponse sends the final answer: its head together with what is at hand of its body, then the rest as it comes.
func (x *exchange) sendResponse() *fault {
	framing := x.resp.ClientFraming(x.req.Minor)
	// An answer that comes before the request's end is the last: what follows on the connection is nobody's request.
	x.closing = x.closing || !x.up.done || x.up.broken || framing == http1.UntilClose || x.lastRequest()
	x.reply = http1.ResponseEdit{
		Framing: framing, Close: x.closing, Minor: x.req.Minor, Date: x.date(), Via: via,
	}
	if x.out == nil { // the request will not be sent again: its buffer is free
		x.out, x.first = x.first[:0], nil
	}
	x.out = x.resp.Append(x.out, &x.reply)
	x.rec.Status = x.resp.Status
	for {
		if f := x.takeBody(); f != nil {
			return f
		}
		if f := x.put(x.out); f != nil {
			return f
		}
		x.out = x.out[:0]
		switch {
		case x.down.Done():
			return nil
		case x.overdue(): // a body that never makes us wait
			return &fault{reason: BackendTimeout, detail: "request_time"}
		}
		if f := x.moreBody(); f != nil {
			return f
		}
	}
}

// takeBody moves what is at hand of the body to x.out, in the client's framing.
func (x *exchange) takeBody() *fault {
	in := &x.conn.in
	for !in.empty() && !x.down.Done() {
		src := in.bytes()
		if room := cap(x.out) - len(x.out) - chunkOverhead; len(src) > room {
			if room <= 0 {
				break
			}
			src = src[:room]
		}
		data, n, err := x.down.Decode(src)
		in.skip(n)
		x.rec.ResponseBytes += int64(len(data))
		if err != nil {
			return &fault{reason: BackendTruncated, status: 502, detail: err.Error()}
		}
		x.frameBody(data)
	}
	return nil
}

func (x *exchange) frameBody(data []byte) {
	if x.reply.Framing != http1.Chunked {
		x.out = append(x.out, data...)
		return
	}
	var trailer []byte
	if x.down.Done() && x.req.Trailers {
		trailer = x.down.Trailer()
	}
	x.out = appendChunk(x.out, data, x.down.Done(), trailer)
}

// moreBody reads more of the answer's body.
func (x *exchange) moreBody() *fault {
	in := &x.conn.in
	for {
		if !in.empty() {
			return nil
		}
		n, err := x.conn.c.Read(in.room(x.t, 1))
		in.filled(n)
		switch {
		case n > 0:
			return nil
		case err == loop.ErrWouldBlock:
			f := x.await(loop.Want{Conn: x.conn.c, Read: true}, after(x.t.Now(), x.route.timeouts.BodyIdle))
			if f != nil {
				return f
			}
		case err == io.EOF && x.down.EOF() == nil:
			x.frameBody(nil) // the last chunk, if the client gets chunks
			return nil
		case err == io.EOF:
			return faultTruncated
		default:
			return &fault{reason: BackendTruncated, status: 502, detail: "body", cause: err}
		}
	}
}

// put writes p to the client. It returns when the kernel has all of it, so that what a slow client does not read is not
// read from the backend either. Slow is no fault: only a client that acknowledges nothing for the listener's time is given up.
func (x *exchange) put(p []byte) *fault {
	c := x.client.c
	if len(p) > 0 {
		if _, err := x.client.io.Write(p); err != nil {
			return clientFault(err, "answer")
		}
	}
	if c.Pending() == 0 {
		return nil
	}
	return x.drain()
}

// drain waits until the kernel has what is pending for the client. The kernel takes more only when a large part of its buffer,
// which may be megabytes, is free: at 1 kB/s that is minutes. So what the client has acknowledged is looked at meanwhile.
func (x *exchange) drain() *fault {
	c, stall := x.client.c, x.form.timeouts.WriteStall
	left, moved := math.MaxInt, x.t.Now()
	for c.Pending() > 0 {
		f := x.await(loop.Want{Conn: c, Write: true}, x.t.Now().Add(stall/stallLooks))
		if f != nil && f != faultStalled {
			return f
		}
		if _, err := c.Write(nil); err != nil {
			return clientFault(err, "answer")
		}
		before := left
		if left = c.Unacked(); left < before {
			moved = x.t.Now()
		} else if x.t.Now().Sub(moved) >= stall {
			c.Reset() // an orderly end would wait behind what it does not read
			return faultStalled
		}
	}
	return nil
}

func (x *exchange) borrowOut() {
	if x.out == nil {
		x.out = x.t.Buffer()[:0]
	}
}

// date is the time in the form of Date (RFC 9110 5.6.7), made once a second by each loop.
func (x *exchange) date() []byte {
	return x.server.shards[x.t.Loop()].date.at(x.t.Now())
}

// httpDate keeps the text of one second.
type httpDate struct {
	second int64
	text   []byte
}

func (d *httpDate) at(now time.Time) []byte {
	if s := now.Unix(); s != d.second {
		d.second = s
		d.text = now.UTC().AppendFormat(d.text[:0], "Mon, 02 Jan 2006 15:04:05 GMT")
	}
	return d.text
}
