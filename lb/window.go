package lb

import "lbd/lb/loop"

// window is what was read from a connection and not yet used. It has a buffer only while it holds something or is about to.
type window struct {
	buf  []byte
	r, w int
	bulk bool // buf is one of the loop's large ones
}

// bytes returns what is there. It stays valid until the next call of room or free.
func (w *window) bytes() []byte { return w.buf[w.r:w.w] }

// empty reports whether nothing is there.
func (w *window) empty() bool { return w.r == w.w }

// full reports whether the last read filled the buffer to its end.
func (w *window) full() bool { return w.buf != nil && w.w == len(w.buf) }

// skip drops the first n bytes.
func (w *window) skip(n int) { w.r += n }

// room returns where to read to: at least one byte, unless limit bytes are held already (then nil). It borrows the loop's
// buffer for the first time, moves what is there to the front when the end is reached, and grows beyond one buffer only for
// a head that does not fit.
func (w *window) room(t *loop.Task, limit int) []byte {
	if w.buf == nil {
		w.buf = t.Buffer()
	}
	if w.r == w.w {
		w.r, w.w = 0, 0
	}
	if w.w < len(w.buf) {
		return w.buf[w.w:]
	}
	if w.r > 0 {
		w.w = copy(w.buf, w.bytes())
		w.r = 0
		return w.buf[w.w:]
	}
	if w.w >= limit {
		return nil
	}
	larger := make([]byte, 2*len(w.buf))
	w.w = copy(larger, w.bytes())
	w.giveBack(t)
	w.buf, w.bulk = larger, false
	return w.buf[w.w:]
}

// filled says that n bytes were read into room.
func (w *window) filled(n int) { w.w += n }

// free gives the buffer back and forgets what is there.
func (w *window) free(t *loop.Task) {
	w.giveBack(t)
	*w = window{}
}

func (w *window) giveBack(t *loop.Task) {
	if w.bulk {
		t.ReleaseBulk(w.buf)
		return
	}
	release(t, w.buf)
}

// widen lets an empty window read more at once, where the loop has the room.
func (w *window) widen(t *loop.Task) {
	if !w.empty() || len(w.buf) >= loop.BulkBytes {
		return
	}
	if bulk := t.Bulk(); bulk != nil {
		release(t, w.buf)
		*w = window{buf: bulk, bulk: true}
	}
}

// release gives a buffer back to the loop if it came from there; one that has grown is left to the garbage collector.
func release(t *loop.Task, b []byte) {
	if cap(b) == loop.BufferBytes {
		t.Release(b)
	}
}
