package loop

import (
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"
)

// twinPumpBytes is how much a twin's connection reads ahead while nobody reads.
const twinPumpBytes = 4096

// twinFlushBytes is how much the flusher writes at once, so that pending falls as
// the kernel takes it.
const twinFlushBytes = 64 << 10

// twinCloseWait is how long queued bytes may still take after Close.
const twinCloseWait = 100 * time.Millisecond

// twinConn is a connection over a net.Conn. A net.Conn can only be waited for by
// reading it, so a connection that is parked, nonblocking or in Wait has a pump:
// one goroutine in one Read, whose result the next Read gets. Queued writes have
// a flusher likewise. All fields but loop and nc belong to the baton's holder.
type twinConn struct {
	Conn
	nc    *net.TCPConn
	loop  atomic.Pointer[twinLoop] // changes under the old loop's baton, by Steal
	admit *admission

	task   *twinTask // nil while parked
	closed bool

	aborted bool

	pumping bool
	ahead   []byte // read by the pump, not yet by the task
	space   []byte // backs ahead
	readErr error

	queue    []byte
	inFlight int // bytes the flusher is writing
	flushing bool
	writeErr error

	parked   bool
	parkings int // tells a timer of an earlier parking from this one's
	resume   Handler
	timer    *time.Timer
}

// newTwinConn makes a connection owned by t, which holds the baton. The caller
// has counted it.
func newTwinConn(t *twinTask, nc net.Conn, admit *admission) *twinConn {
	c := &twinConn{nc: nc.(*net.TCPConn), admit: admit}
	c.on = c
	c.loop.Store(t.loop)
	remote := nc.RemoteAddr().(*net.TCPAddr).AddrPort()
	c.remote = unmapped(remote)
	t.loop.conns[c] = struct{}{}
	t.own(c)
	if t.loop.engine.ctx.Err() != nil {
		nc.Close()
	}
	return c
}

// lock takes the baton of the connection's loop, for pump, flusher and timer.
func (c *twinConn) lock() *twinLoop {
	for {
		l := c.loop.Load()
		l.mu.Lock()
		if l == c.loop.Load() {
			return l
		}
		l.mu.Unlock()
	}
}

// usable reports whether the running task may use the connection.
func (c *twinConn) usable() error {
	l := c.loop.Load()
	switch {
	case c.closed:
		return net.ErrClosed
	case c.task == nil || c.task != l.current:
		return ErrNotOwner
	case l.engine.ctx.Err() != nil:
		return ErrClosed
	}
	return nil
}

// reason translates a net.Conn's error.
func (c *twinConn) reason(err error) error {
	switch {
	case err == nil:
		return nil
	case c.loop.Load().engine.ctx.Err() != nil:
		return ErrClosed
	case errors.Is(err, os.ErrDeadlineExceeded):
		return errDeadline
	}
	return err
}

func (c *twinConn) owner() *Task {
	if c.usable() != nil {
		return nil
	}
	return &c.task.Task
}

func (c *twinConn) localAddr() net.Addr { return c.nc.LocalAddr() }

func (c *twinConn) read(p []byte) (int, error) {
	for {
		if err := c.usable(); err != nil {
			return 0, err
		}
		switch {
		case c.readBy.passed(now()):
			return 0, errDeadline
		case len(p) == 0:
			return 0, nil
		case len(c.ahead) > 0:
			n := copy(p, c.ahead)
			c.ahead = c.ahead[n:]
			return n, nil
		case c.readErr != nil:
			return 0, c.reason(c.readErr)
		case c.nonblocking:
			c.pump()
			return 0, ErrWouldBlock
		case !c.pumping:
			return c.readNow(p)
		}
		if err := c.task.pause(c.readBy); err != nil {
			return 0, err
		}
	}
}

func (c *twinConn) readNow(p []byte) (int, error) {
	t := c.task
	c.nc.SetReadDeadline(c.readBy.time())
	t.yield()
	defer t.take()
	n, err := c.nc.Read(p)
	return n, c.reason(err)
}

// readable starts the pump if it has nothing to say yet.
func (c *twinConn) readable() bool {
	if len(c.ahead) > 0 || c.readErr != nil {
		return true
	}
	c.pump()
	return false
}

func (c *twinConn) pump() {
	if c.pumping {
		return
	}
	c.pumping = true
	c.nc.SetReadDeadline(time.Time{})
	if c.space == nil {
		c.space = make([]byte, twinPumpBytes)
	}
	group := &c.loop.Load().engine.group
	group.Add(1)
	go func() {
		defer group.Done()
		n, err := c.nc.Read(c.space)
		l := c.lock()
		defer l.mu.Unlock()
		c.pumping = false
		c.ahead, c.readErr = c.space[:n], err
		c.event()
	}()
}

// event tells whoever has the connection that something has changed; the caller
// holds the baton.
func (c *twinConn) event() {
	switch {
	case c.task != nil:
		c.task.notify()
	case c.unpark():
		c.loop.Load().start(func(t *Task) {
			t.on.(*twinTask).own(c)
			c.resume(t, &c.Conn)
		})
	}
}

func (c *twinConn) park(deadline instant, resume Handler) {
	if c.owner() == nil {
		if c.task != nil && c.task == c.loop.Load().current && !c.closed {
			c.parkClosing(resume)
		}
		return
	}
	delete(c.task.owned, c)
	c.task = nil
	c.parked, c.timedOut, c.resume = true, false, resume
	c.parkings++
	if c.readable() {
		c.event()
		return
	}
	if deadline != 0 {
		parking := c.parkings
		c.timer = time.AfterFunc(time.Until(deadline.time()), func() { c.expire(parking) })
	}
}

// parkClosing resumes at once, because the engine is closing.
func (c *twinConn) parkClosing(resume Handler) {
	delete(c.task.owned, c)
	c.task = nil
	c.parked, c.timedOut, c.resume = true, false, resume
	c.event()
}

func (c *twinConn) expire(parking int) {
	l := c.lock()
	defer l.mu.Unlock()
	if c.parked && c.parkings == parking {
		c.timedOut = true
		c.event()
	}
}

// unpark ends a parking; the caller holds the baton.
func (c *twinConn) unpark() bool {
	if !c.parked {
		return false
	}
	c.parked = false
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
	return true
}

func (c *twinConn) claim(t *Task) bool {
	tt, ok := t.on.(*twinTask)
	if !ok || tt.loop != c.loop.Load() || tt.loop.current != tt || !c.unpark() {
		return false
	}
	tt.own(c)
	return true
}

func (c *twinConn) write(p []byte) (int, error) {
	for {
		if err := c.usable(); err != nil {
			return 0, err
		}
		switch {
		case c.writeErr != nil:
			return 0, c.reason(c.writeErr)
		case c.writeBy.passed(now()):
			return 0, errDeadline
		case c.queuedMax > 0 && c.pending() < int(c.queuedMax):
			c.queue = append(c.queue, p...)
			c.flushSoon()
			return len(p), nil
		case c.queuedMax > 0 && c.nonblocking:
			return 0, ErrQueueFull
		case c.pending() == 0:
			return c.writeNow(p)
		}
		if err := c.task.pause(c.writeBy); err != nil {
			return 0, err
		}
	}
}

func (c *twinConn) writeNow(p []byte) (int, error) {
	t := c.task
	c.nc.SetWriteDeadline(c.writeBy.time())
	t.yield()
	defer t.take()
	n, err := c.nc.Write(p)
	return n, c.reason(err)
}

// abort: pump, flusher and whoever reads or writes meet the end.
func (c *twinConn) abort() {
	if c.closed {
		return
	}
	c.aborted = true
	// They fail where the peer was first.
	_ = c.nc.SetLinger(0)
	_ = c.nc.CloseRead()
	_ = c.nc.CloseWrite()
}

// uncork has nothing to send: the flusher does not wait for it.
func (c *twinConn) uncork() {}

// broken knows what the pump has met, which starts with the first wait.
func (c *twinConn) broken() bool {
	return c.aborted || c.writeErr != nil || c.readErr != nil && c.readErr != io.EOF
}

func (c *twinConn) atEnd() bool { return c.broken() || c.readErr != nil }

// unacked counts what the flusher is writing twice, as far as the kernel has it.
func (c *twinConn) unacked() int {
	n := 0
	if raw, err := c.nc.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { n = outQueue(int(fd)) }) // fails when closed: then nothing is held
	}
	return n
}

func (c *twinConn) reset() error {
	if c.usable() == nil {
		c.queue, c.flushing = nil, false
		_ = c.nc.SetLinger(0) // fails when closed
	}
	return c.close()
}

func (c *twinConn) pending() int { return len(c.queue) + c.inFlight }

// flushSoon sees to it that a flusher runs.
func (c *twinConn) flushSoon() {
	if c.flushing {
		return
	}
	c.flushing = true
	c.nc.SetWriteDeadline(time.Time{})
	group := &c.loop.Load().engine.group
	group.Add(1)
	go func() {
		defer group.Done()
		for c.flushOnce() {
		}
	}()
}

// flushOnce writes what is queued now; false means that the flusher is done.
func (c *twinConn) flushOnce() bool {
	l := c.lock()
	out := c.queue[:min(len(c.queue), twinFlushBytes)]
	c.queue, c.inFlight = c.queue[len(out):], len(out)
	if len(c.queue) == 0 {
		c.queue = nil
	}
	l.mu.Unlock()
	_, err := c.nc.Write(out)
	l = c.lock()
	defer l.mu.Unlock()
	c.inFlight = 0
	if err != nil {
		c.writeErr, c.queue = err, nil
	}
	c.flushing = len(c.queue) > 0
	if c.closed && !c.flushing {
		c.nc.Close()
	}
	if c.task != nil {
		c.task.notify()
	}
	return c.flushing
}

func (c *twinConn) flush() error {
	for {
		if err := c.usable(); err != nil {
			return err
		}
		switch {
		case c.writeErr != nil:
			return c.reason(c.writeErr)
		case c.pending() == 0:
			return nil
		}
		if err := c.task.pause(c.writeBy); err != nil {
			return err
		}
	}
}

func (c *twinConn) closeWrite() error { return c.reason(c.nc.CloseWrite()) }

func (c *twinConn) close() error {
	l := c.loop.Load()
	if c.closed {
		return net.ErrClosed
	}
	if c.task == nil || c.task != l.current {
		return ErrNotOwner
	}
	c.closed = true
	delete(c.task.owned, c)
	delete(l.conns, c)
	c.task = nil
	l.connections.Add(-1)
	if c.admit != nil {
		l.served.Add(-1)
		c.admit.leave()
	}
	if c.flushing {
		c.nc.SetWriteDeadline(time.Now().Add(twinCloseWait))
		return nil
	}
	return c.nc.Close()
}
