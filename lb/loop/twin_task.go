package loop

import (
	"errors"
	"net"
	"net/netip"
	"runtime"
	"syscall"
	"time"
)

// twinTask is a task on a goroutine. Its fields belong to the baton's holder.
type twinTask struct {
	Task
	loop     *twinLoop
	wake     chan struct{} // one token: something the task waits for has changed
	owned    map[*twinConn]struct{}
	returned bool
}

func (t *twinTask) take() {
	t.loop.mu.Lock()
	t.loop.current = t
}

func (t *twinTask) yield() {
	t.loop.current = nil
	t.loop.mu.Unlock()
}

// end is the task's outermost defer.
func (t *twinTask) end() {
	if !t.returned {
		t.loop.died(t.loop.engine.opts.Logger, t.loop.index, recover())
	}
	for c := range t.owned {
		c.close()
	}
	t.loop.tasks.Add(-1)
	t.yield()
}

// notify wakes the task if it pauses. Any goroutine may call it.
func (t *twinTask) notify() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// pause gives way until something has changed; it may return for no reason.
func (t *twinTask) pause(until instant) error {
	done := t.loop.engine.ctx.Done()
	if t.loop.engine.ctx.Err() != nil {
		return ErrClosed
	}
	var timeout <-chan time.Time
	if until != 0 {
		timer := time.NewTimer(time.Until(until.time()))
		defer timer.Stop()
		timeout = timer.C
	}
	t.yield()
	defer t.take()
	select {
	case <-t.wake:
		return nil
	case <-timeout:
		return errDeadline
	case <-done:
		return ErrClosed
	}
}

func (t *twinTask) now() instant { return now() }

func (t *twinTask) wall() time.Time { return now().time() }

func (t *twinTask) pass() error {
	if t.loop.engine.ctx.Err() != nil {
		return ErrClosed
	}
	t.yield()
	defer t.take()
	runtime.Gosched()
	return nil
}

func (t *twinTask) sleep(until instant) error {
	for !until.passed(now()) {
		if err := t.pause(until); err != nil && err != errDeadline {
			return err
		}
	}
	return nil
}

func (t *twinTask) spawn(fn func(*Task)) { t.loop.start(fn) }

func (t *twinTask) offload(fn func()) {
	t.yield()
	defer t.take()
	fn()
}

func (t *twinTask) dial(addr netip.AddrPort, deadline instant) (*Conn, error) {
	ctx := t.loop.engine.ctx
	if ctx.Err() != nil {
		return nil, ErrClosed
	}
	nc, err := t.dialNet(addr, deadline)
	var timeout net.Error
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, ErrClosed
	case errors.As(err, &timeout) && timeout.Timeout() && !errors.Is(err, syscall.ETIMEDOUT):
		return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: net.TCPAddrFromAddrPort(addr), Err: errDeadline}
	case err != nil:
		return nil, err
	}
	t.loop.connections.Add(1)
	return &newTwinConn(t, nc, nil).Conn, nil
}

func (t *twinTask) dialNet(addr netip.AddrPort, deadline instant) (net.Conn, error) {
	dialer := net.Dialer{Deadline: deadline.time(), KeepAliveConfig: twinKeepAlive}
	t.yield()
	defer t.take()
	return dialer.DialContext(t.loop.engine.ctx, "tcp", addr.String())
}

func (t *twinTask) wait(deadline instant, wants []Want) (int, error) {
	for {
		for i, w := range wants {
			if w.Signal != nil {
				if w.Signal.raised.Load() {
					return i, nil
				}
				continue
			}
			c := w.Conn.on.(*twinConn)
			if err := c.usable(); err != nil {
				return i, err
			}
			if w.Read && c.readable() || w.Broken && c.readable() && c.broken() || w.Ended && c.readable() && c.atEnd() || w.Write && c.pending() == 0 {
				return i, nil
			}
		}
		if err := t.pause(deadline); err != nil {
			return -1, err
		}
	}
}

// waker may wake the task for no reason if it has gone on meanwhile.
func (t *twinTask) waker(*Signal) func() { return t.notify }

func (t *twinTask) holds(c socket) bool {
	return c.(*twinConn).loop.Load() == t.loop && t.loop.current == t
}

// steal holds one baton at a time: first the other loop's, then its own again.
func (t *twinTask) steal(take func(loop int) *Conn, loops []int) *Conn {
	for _, i := range loops {
		if i < 0 || i >= len(t.loop.engine.loops) || i == t.loop.index {
			continue
		}
		if c := t.stealFrom(t.loop.engine.loops[i], take); c != nil {
			t.own(c)
			t.loop.conns[c] = struct{}{}
			t.loop.connections.Add(1)
			t.loop.stolen.Add(1)
			return &c.Conn
		}
	}
	return nil
}

func (t *twinTask) stealFrom(other *twinLoop, take func(loop int) *Conn) *twinConn {
	t.yield()
	defer t.take()
	other.mu.Lock()
	defer other.mu.Unlock()
	for {
		conn := take(other.index)
		if conn == nil {
			return nil
		}
		if c := conn.on.(*twinConn); c.loop.Load() == other && c.unpark() {
			delete(other.conns, c)
			other.connections.Add(-1)
			c.loop.Store(t.loop)
			return c
		}
	}
}

func (t *twinTask) own(c *twinConn) {
	c.task = t
	t.owned[c] = struct{}{}
}

func (t *twinTask) buffers() *buffers { return &t.loop.buffers }
