package loop

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// The queue of a connection with SetQueued. Its bytes live in one of the loop's
// buffers while they fit and only as long as there are any, so that an idle
// tunnel holds none.

func (c *pollConn) pending() int { return len(c.queue) - int(c.queueOff) }

func (c *pollConn) writeQueued(p []byte) (int, error) {
	for {
		if err := c.usable(); err != nil {
			return 0, err
		}
		if c.writeBy.passed(c.loop.now) {
			return 0, errDeadline
		}
		if c.corked {
			c.enqueue(p)
			return len(p), nil
		}
		if errno := c.sendQueue(); errno != 0 && errno != unix.EAGAIN {
			return 0, c.fail("write", errno)
		}
		if n := c.pending(); n == 0 || n < int(c.queuedMax) {
			break
		}
		if c.nonblocking && c.queuedMax > 0 {
			return 0, ErrQueueFull
		}
		if err := c.await(wantWrite, c.writeBy); err != nil {
			return 0, err
		}
	}
	if c.pending() == 0 {
		n, errno := c.send(p)
		if errno != 0 && errno != unix.EAGAIN {
			return n, c.fail("write", errno)
		}
		c.enqueue(p[n:])
	} else {
		c.enqueue(p)
	}
	c.task.step(len(p))
	if c.queuedMax == 0 && c.pending() > 0 {
		return len(p), c.flush()
	}
	return len(p), nil
}

func (c *pollConn) enqueue(p []byte) {
	if len(p) == 0 {
		return
	}
	switch {
	case c.queue != nil:
	case len(p) <= BufferBytes:
		c.queue = c.loop.buffers.get()[:0]
	default: // a full TLS record is a little more than a buffer
		c.queue = make([]byte, 0, len(p))
	}
	if c.queueOff > 0 && len(c.queue)+len(p) > cap(c.queue) {
		c.queue = c.queue[:copy(c.queue, c.queue[c.queueOff:])]
		c.queueOff = 0
	}
	c.queue = append(c.queue, p...)
}

// sendQueue hands the kernel what it takes: 0 if nothing is left, EAGAIN if
// something is.
func (c *pollConn) sendQueue() syscall.Errno {
	if c.pending() == 0 {
		return 0
	}
	n, errno := c.send(c.queue[c.queueOff:])
	c.queueOff += int32(n)
	if c.pending() == 0 {
		c.dropQueue()
	}
	return errno
}

func (c *pollConn) dropQueue() {
	if cap(c.queue) == BufferBytes {
		c.loop.buffers.put(c.queue)
	}
	c.queue, c.queueOff = nil, 0
}

// uncork sends what was kept. An error is the next call's to tell, or the wait's.
func (c *pollConn) uncork() {
	if c.pending() > 0 && c.usable() == nil {
		c.sendQueue()
	}
}

// drained sends what it can and reports whether a waiter for Want.Write has
// something to do: nothing is pending any more, or the socket has failed, which
// its next Write or Flush returns.
func (c *pollConn) drained() bool { return c.sendQueue() != unix.EAGAIN }

func (c *pollConn) flush() error {
	for {
		if err := c.usable(); err != nil {
			return err
		}
		switch errno := c.sendQueue(); {
		case errno == 0:
			return nil
		case errno != unix.EAGAIN:
			return c.fail("write", errno)
		case c.writeBy.passed(c.loop.now):
			return errDeadline
		}
		if err := c.await(wantWrite, c.writeBy); err != nil {
			return err
		}
	}
}
