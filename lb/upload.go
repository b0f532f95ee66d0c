package lb

import (
	"io"
	"os"
	"time"

	"lbd/lb/http1"
	"lbd/lb/loop"
)

// upload is the request's body on its way.
type upload struct {
	body    http1.Body
	chunked bool
	done    bool   // all of it has been given to the backend's connection
	broken  bool   // the backend takes no more
	beyond  bool   // some of it is gone from our buffers: no replay
	in      window // read after the first buffer
	out     []byte // as sent
	bytes   int64

	bytesMax int64 // of payload
}

// chunkOverhead is what framing may add to one piece: size line, CRLF, last chunk. Trailers are appended beyond.
const chunkOverhead = 32

func (u *upload) begin(req *http1.Request) {
	u.chunked = req.Framing == http1.Chunked
	u.done, u.broken, u.beyond, u.bytes = u.body.Done(), false, false, 0
}

// decode takes up to limit bytes off w and returns the payload among them.
func (u *upload) decode(w *window, limit int) ([]byte, *fault) {
	src := w.bytes()
	if len(src) > limit {
		src = src[:limit]
	}
	data, n, err := u.body.Decode(src)
	w.skip(n)
	u.bytes += int64(len(data))
	switch {
	case err != nil:
		return nil, badRequest(err)
	case u.bytes > u.bytesMax:
		return nil, faultBodySize
	}
	return data, nil
}

// frame appends a piece of payload as it goes to the backend, and the end if it was the last.
func (u *upload) frame(dst, data []byte) []byte {
	u.done = u.body.Done()
	if !u.chunked {
		return append(dst, data...)
	}
	return appendChunk(dst, data, u.done, u.body.Trailer())
}

// appendChunk appends a piece of a chunked body.
func appendChunk(dst, data []byte, last bool, trailer []byte) []byte {
	if len(data) > 0 {
		dst = http1.AppendChunkSize(dst, len(data))
		dst = append(dst, data...)
		dst = append(dst, '\r', '\n')
	}
	if last {
		dst = http1.AppendLastChunk(dst, trailer)
	}
	return dst
}

// moveUpload passes on what has come of the request's body, without waiting, and reports whether anything moved.
func (x *exchange) moveUpload() (bool, *fault) {
	u := &x.up
	if x.conn == nil || u.done || u.broken || x.conn.c.Pending() > 0 {
		return false, nil
	}
	w := &x.in
	if w.empty() {
		w = &u.in
		if moved, f := x.readUpload(); !moved || f != nil {
			return false, f
		}
	}
	keep := !u.beyond && len(w.bytes())+chunkOverhead <= cap(x.first)-len(x.first)
	data, f := u.decode(w, loop.BufferBytes-chunkOverhead)
	if f != nil {
		return false, f
	}
	out := x.frameUpload(data, keep)
	if len(out) == 0 {
		return true, nil
	}
	u.beyond = !keep
	if _, err := x.conn.io.Write(out); err != nil {
		// The backend takes no more. It may have answered before, so the answer's reader is to find out.
		u.broken = true
	}
	return true, nil
}

// frameUpload puts a piece of the body into its own buffer, or behind what is kept for a retry as long as that has room:
// many clients send a small body in a packet of its own.
func (x *exchange) frameUpload(data []byte, keep bool) []byte {
	if keep {
		before := len(x.first)
		x.first = x.up.frame(x.first, data)
		return x.first[before:]
	}
	if x.up.out == nil {
		x.up.out = x.t.Buffer()
	}
	return x.up.frame(x.up.out[:0], data)
}

// readUpload reads more of the body.
func (x *exchange) readUpload() (bool, *fault) {
	w := &x.up.in
	if !w.empty() {
		return true, nil
	}
	n, err := x.client.io.Read(w.room(x.t, 1))
	w.filled(n)
	switch {
	case n > 0:
		return true, nil
	case err == loop.ErrWouldBlock:
		return false, nil
	case err == io.EOF:
		return false, &fault{reason: ClientAborted, status: 400, detail: "body", cause: err}
	}
	return false, clientFault(err, "body")
}

// await waits until want is ready, or a piece of the request's body has moved; the caller looks again. Whatever an exchange
// waits for once its head is read, it waits here: so the upload goes on meanwhile, in the same task.
func (x *exchange) await(want loop.Want, deadline time.Time) *fault {
	if x.conn != nil && x.conn.c.Broken() {
		x.up.broken = true // what is pending for it never becomes less: not to be waited for
	}
	moved, f := x.moveUpload()
	switch {
	case f != nil:
		return f
	case x.overdue():
		return x.late(want, os.ErrDeadlineExceeded)
	case x.client.c.Broken():
		return faultGone
	case moved:
		return nil
	}
	wants := also(append(x.wants[:0], want), loop.Want{Conn: x.client.c, Broken: true})
	switch {
	case x.conn == nil, x.up.broken: // an answer of our own, or none of the body is wanted
	case x.conn.c.Pending() > 0:
		wants = also(wants, loop.Want{Conn: x.conn.c, Write: true})
	case !x.up.done:
		wants = also(wants, loop.Want{Conn: x.client.c, Read: true})
	}
	if _, err := x.t.Wait(earliest(deadline, x.requestBy), wants...); err != nil {
		return x.late(want, err)
	}
	return nil
}

// also adds w to what a task waits for. A connection is named once there, so what is wanted of it is put together.
func also(wants []loop.Want, w loop.Want) []loop.Want {
	for i := range wants {
		if wants[i].Conn == w.Conn {
			wants[i].Read, wants[i].Write = wants[i].Read || w.Read, wants[i].Write || w.Write
			wants[i].Broken = wants[i].Broken || w.Broken
			return wants
		}
	}
	return append(wants, w)
}

// late says whose fault it is that nothing moved.
func (x *exchange) late(want loop.Want, err error) *fault {
	f := &fault{reason: BackendTimeout, status: 504, detail: "answer", cause: err}
	switch {
	case !isTimeout(err):
		return &fault{reason: Drained, status: 503, detail: "closing", cause: err}
	case want.Conn == x.client.c && !x.overdue():
		return faultStalled
	case want.Conn == x.client.c:
		f.reason, f.status = ClientTimeout, 0
	case x.conn.c.Pending() > 0:
		f.detail = "send"
	case !x.up.done && !x.up.broken:
		f.reason, f.status, f.detail = ClientTimeout, 408, "body"
	default:
		f.retry, f.on = x.retryAfterSilence(), OnFirstByteTimeout
	}
	if x.overdue() {
		f.detail = "request_time"
	}
	return f
}
