package lb

import (
	"io"
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
			return &fault{reason: BackendAborted, status: 502, detail: err.Error(), cause: x.conn.mistaken(nil)}
		}
		in.skip(n)
		if !x.resp.Interim() {
			x.resp.StartBody(&x.down)
			x.rec.FirstByte = x.t.Now().Sub(x.rec.Time) - x.rec.Head - x.rec.Connect
			x.measure()
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
	// What TLS has decrypted already no socket knows of: there the first look is at once.
	for look := x.conn.tls != nil; ; look = true {
		if look {
			if done, f := x.readHead(in); done || f != nil {
				return f
			}
		}
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
	}
}

// readHead reads what has come of the answer's head, and reports whether anything has. It holds no buffer otherwise: a thousand
// requests that wait for slow backends need none for their answers.
func (x *exchange) readHead(in *window) (bool, *fault) {
	n, err := x.conn.read(in.room(x.t, http1.DefaultLimits.HeadBytes))
	in.filled(n)
	switch {
	case n > 0:
		x.heard = true
		return true, nil
	case err == loop.ErrWouldBlock:
		if in.empty() {
			in.free(x.t)
		}
		return false, nil
	case x.conn.tls != nil && x.conn.requests == 1 && !x.heard && isAlert(err):
		return false, x.tlsFault(err, x.retryAfterReset())
	case !x.heard:
		return false, &fault{reason: BackendAborted, status: 502, detail: "no_answer", cause: err, retry: x.retryAfterReset(), on: OnReset}
	}
	return false, &fault{reason: BackendAborted, status: 502, detail: "answer_head", cause: x.conn.mistaken(err)}
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
	x.bindSplit()
	x.bindSession()
	x.reply = http1.ResponseEdit{
		Framing: framing, Close: x.closing, Minor: x.req.Minor, Date: x.date(), Via: via,
		Rules: x.route.responseAfter(x.form.response), Lines: x.cookies,
	}
	if x.out == nil { // the request will not be sent again: its buffer is free
		x.out, x.first = x.first[:0], nil
	}
	x.out, x.wide = x.resp.Append(x.out, &x.reply), false
	x.rec.Status = x.resp.Status
	for {
		p, f := x.takeBody()
		if f != nil {
			return f
		}
		if x.closing && x.down.Done() && x.resp.Status != 101 {
			f = x.putLast(p)
		} else {
			f = x.put(p)
		}
		if f != nil {
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

// takeBody returns what to send now: what is in x.out, and with it what is at hand of the body, in the client's framing. What
// needs no framing and has nothing before it is passed on as it lies.
func (x *exchange) takeBody() ([]byte, *fault) {
	in := &x.conn.in
	if len(x.out) == 0 && x.reply.Framing != http1.Chunked && !in.empty() && !x.down.Done() {
		return x.decodeBody(len(in.bytes()))
	}
	for !in.empty() && !x.down.Done() {
		x.borrowOut()
		room := cap(x.out) - len(x.out) - chunkOverhead
		if room <= 0 {
			break
		}
		data, f := x.decodeBody(room)
		if f != nil {
			return nil, f
		}
		x.frameBody(data)
	}
	return x.out, nil
}

// decodeBody takes at most limit bytes of what was read, and returns what of them is body.
func (x *exchange) decodeBody(limit int) ([]byte, *fault) {
	in := &x.conn.in
	src := in.bytes()
	data, n, err := x.down.Decode(src[:min(limit, len(src))])
	in.skip(n)
	x.rec.ResponseBytes += int64(len(data))
	if err != nil {
		return nil, &fault{reason: BackendTruncated, status: 502, detail: err.Error()}
	}
	return data, nil
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

// moreBody reads more of the answer's body. A backend that fills a buffer has more to say than one read takes.
func (x *exchange) moreBody() *fault {
	in := &x.conn.in
	for {
		if !in.empty() {
			return nil
		}
		if in.full() || x.wide {
			in.widen(x.t)
			x.wide = false
		}
		n, err := x.conn.read(in.room(x.t, 1))
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
		case err == io.EOF, err == errNoFarewell:
			return faultTruncated
		default:
			return &fault{reason: BackendTruncated, status: 502, detail: "body", cause: err}
		}
	}
}

// put writes p, which lies in x.out or in what was read, to the client. It returns when the kernel has all of it, so that what a slow client does not read is not
// read from the backend either. Slow is no fault: only a client that acknowledges nothing for the listener's time is given up.
func (x *exchange) put(p []byte) *fault {
	c := x.client.c
	for len(p) > 0 {
		n := min(len(p), x.pieceBytes())
		if _, err := x.client.io.Write(p[:n]); err != nil {
			return clientFault(err, "answer")
		}
		p = p[n:]
		if c.Pending() > 0 {
			if len(p) == 0 {
				x.lend()
			}
			if f := x.drain(); f != nil {
				return f
			}
		}
	}
	return nil
}

// putLast writes the end of the connection's last answer. Over TLS the farewell goes with it, in one call and one segment.
func (x *exchange) putLast(p []byte) *fault {
	cc := x.client
	if cc.tls == nil || len(p) > lastBytesMax {
		return x.put(p)
	}
	cc.c.SetCorked(true)
	_, err := cc.tls.Write(p)
	if err == nil {
		err = cc.tls.CloseWrite()
		cc.c.SetWriteDeadline(time.Time{}) // crypto/tls leaves one in the past
	}
	cc.c.SetCorked(false)
	if err != nil {
		return clientFault(err, "answer")
	}
	if cc.c.Pending() == 0 {
		return nil
	}
	x.lend()
	return x.drain()
}

// pieceBytes is how much is written to the client at once; the queue has room for it. Over TLS that is a record: more would save no
// system call, and would lie in memory for each slow reader.
func (x *exchange) pieceBytes() int {
	if x.client.tls != nil {
		return loop.BufferBytes
	}
	return loop.BulkBytes
}

// lend gives back, until a client takes what is queued for it, the buffers of which nothing is needed any more.
func (x *exchange) lend() {
	release(x.t, x.out)
	x.out = nil
	if x.conn != nil && x.conn.in.empty() {
		x.wide = x.conn.in.bulk
		x.conn.in.free(x.t)
	}
}

// drain waits until the kernel has what is pending for the client. The kernel takes more only when a large part of its buffer,
// which may be megabytes, is free: at 1 kB/s that is minutes. So what the client has acknowledged is looked at meanwhile.
func (x *exchange) drain() *fault {
	c, stall := x.client.c, x.form.timeouts.WriteStall
	left, giveUp := int(x.rec.ResponseBytes), x.t.Now().Add(stall)
	for c.Pending() > 0 {
		f := x.await(loop.Want{Conn: c, Write: true}, x.t.Now().Add(stall/stallLooks))
		if f != nil && f != faultStalled {
			return f
		}
		before := left
		if left = c.Unacked(); left < before {
			giveUp = longer(giveUp, x.t.Now(), stall, before-left)
		} else if !x.t.Now().Before(giveUp) {
			c.Reset() // an orderly end would wait behind what it does not read
			return faultStalled
		}
	}
	return nil
}

// longer moves the moment at which a client is given up that has just acknowledged n bytes. A kernel acknowledges what it takes,
// and then says nothing until the program behind it has read most of that: a client that reads slowly but fairly is silent
// meanwhile.
func longer(giveUp, now time.Time, stall time.Duration, n int) time.Time {
	giveUp = giveUp.Add(time.Duration(min(n, 1<<30)) * time.Second / fairBytesPerSecond)
	if least := now.Add(stall); giveUp.Before(least) {
		return least
	}
	return earliest(giveUp, now.Add((1+stallCredits)*stall))
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
