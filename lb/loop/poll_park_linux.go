package loop

import (
	"os"

	"golang.org/x/sys/unix"
)

// park: see Conn.Park. If the kernel may have something to read, one look tells
// whether it has: the connection must not count as idle with bytes waiting, nor
// as dead because its last read happened to fill the buffer.
func (c *pollConn) park(deadline instant, resume Handler) {
	if c.closed || c.task == nil || c.task != c.loop.current {
		return
	}
	c.task.disown(c)
	c.parked, c.timedOut = true, false
	c.resume, c.parkBy = resume, deadline
	switch {
	case c.readable && !c.ended && nothingToRead(int(c.fd)):
		c.readable = false
	case c.readable || c.loop.closing:
		c.unpark()
		return
	}
	if deadline != 0 {
		c.loop.wheel.arm(&c.timer, deadline)
	}
}

// unpark starts the task that resume asked for.
func (c *pollConn) unpark() {
	resume := c.resume
	c.parked, c.resume, c.parkBy = false, nil, 0
	c.loop.handle(c, resume, c.heavy, false)
}

// expire is called by the wheel. The timer may be left over from an earlier
// parking.
func (c *pollConn) expire(now instant) {
	switch {
	case !c.parked || c.parkBy == 0:
	case c.parkBy.passed(now):
		c.timedOut = true
		c.unpark()
	default:
		c.loop.wheel.arm(&c.timer, c.parkBy)
	}
}

func (c *pollConn) claim(t *Task) bool {
	pt, ok := t.on.(*pollTask)
	if !ok || pt.loop != c.loop || pt.loop.current != pt || !c.parked {
		return false
	}
	c.parked, c.resume, c.parkBy = false, nil, 0
	pt.own(c)
	return true
}

// leave takes a parked connection out of its loop, for another one to enter.
func (c *pollConn) leave() {
	l := c.loop
	c.parked, c.resume, c.parkBy = false, nil, 0
	l.wheel.disarm(&c.timer)
	l.forget(c.slot)
	c.count(-1)
	// The set holds the socket, so this cannot fail.
	_ = unix.EpollCtl(l.epoll, unix.EPOLL_CTL_DEL, int(c.fd), nil)
}

// enter puts a connection that has left another loop into l, for t. If there is
// data or an end by now, registering raises the event.
func (c *pollConn) enter(l *pollLoop, t *pollTask) error {
	c.loop = l
	c.readable, c.ended, c.failed, c.writable = false, false, false, true
	slot, err := l.register(int(c.fd), connEvents, c)
	if err != nil {
		c.closed = true
		c.admit.leave()
		closeFD(int(c.fd))
		return os.NewSyscallError("epoll_ctl", err)
	}
	c.slot = slot
	c.count(1)
	t.own(c)
	return nil
}
