package loop

import (
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// wantFlags say what a blocked task waits for on a connection.
type wantFlags uint8

const (
	wantRead wantFlags = 1 << iota
	wantWrite
	wantBroken
	wantEnded
)

// pollConn is a socket in a loop's epoll set, edge-triggered. readable and
// writable mean that the kernel has not yet said no: a read that does not fill
// its buffer clears readable, without a second one that would fail, because new
// data raises a new event. An end or error that came together with data raises
// none, so once ended is set readable stays.
type pollConn struct {
	Conn
	loop  *pollLoop
	task  *pollTask // nil while parked
	admit *admission

	ownedNext, ownedPrev *pollConn // among the task's connections

	resume Handler // while parked
	parkBy instant
	timer  timer // for parkBy; lazy

	queue    []byte // written, not yet taken by the kernel
	queueOff int32  // of it, already sent

	fd     int32
	slot   uint32
	waits  wantFlags
	closed bool
	parked bool

	readable bool
	writable bool
	ended    bool // RDHUP, HUP or ERR seen
	failed   bool // HUP or ERR seen, or a write has failed
	spoken   bool // something was written
}

const connEvents = unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET

// adopt makes a connection of a nonblocking socket; on error it is closed.
func (l *pollLoop) adopt(fd int, remote netip.AddrPort, admit *admission) (*pollConn, error) {
	c := &pollConn{loop: l, fd: int32(fd), admit: admit, writable: true}
	c.on, c.remote = c, remote
	c.timer.target = c
	slot, err := l.register(fd, connEvents, c)
	if err != nil {
		closeFD(fd)
		if admit != nil {
			l.served.Add(-1)
			admit.leave()
		}
		return nil, err
	}
	c.slot = slot
	l.connections.Add(1)
	return c, nil
}

// count adds n to what the connection's loop has.
func (c *pollConn) count(n int64) {
	c.loop.connections.Add(n)
	if c.admit != nil {
		c.loop.served.Add(n)
	}
}

// event notes what epoll says and wakes who waits for it.
func (c *pollConn) event(l *pollLoop, flags uint32) {
	const ends = unix.EPOLLRDHUP | unix.EPOLLHUP | unix.EPOLLERR
	if flags&ends != 0 {
		c.ended, c.readable = true, true
	}
	if flags&unix.EPOLLIN != 0 {
		c.readable = true
	}
	if flags&(unix.EPOLLOUT|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		c.writable = true
	}
	if flags&(unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		c.failed = true
	}
	switch {
	case c.parked && c.readable:
		c.unpark()
	case c.waits&wantRead != 0 && c.readable, c.waits&wantWrite != 0 && c.writable, c.waits&wantBroken != 0 && c.failed,
		c.waits&wantEnded != 0 && c.ended:
		c.task.wake(nil, c.heavy)
	}
}

// usable reports whether the running task may use the connection.
func (c *pollConn) usable() error {
	switch {
	case c.closed:
		return net.ErrClosed
	case c.task == nil || c.task != c.loop.current:
		return ErrNotOwner
	case c.loop.closing:
		return ErrClosed
	}
	return nil
}

func (c *pollConn) owner() *Task {
	if c.usable() != nil {
		return nil
	}
	return &c.task.Task
}

func (c *pollConn) want(w *Want) {
	c.waits = 0
	if w.Read {
		c.waits |= wantRead
	}
	if w.Write {
		c.waits |= wantWrite
	}
	if w.Broken {
		c.waits |= wantBroken
	}
	if w.Ended {
		c.waits |= wantEnded
	}
}

// await blocks the task until an event brings what it wants.
func (c *pollConn) await(w wantFlags, deadline instant) error {
	c.waits = w
	err := c.task.block(deadline)
	c.waits = 0
	return err
}

func (c *pollConn) read(p []byte) (int, error) {
	for {
		if err := c.usable(); err != nil {
			return 0, err
		}
		switch {
		case c.readBy.passed(c.loop.now):
			return 0, errDeadline
		case len(p) == 0:
			return 0, nil
		case c.readable:
			n, errno := readFD(int(c.fd), p)
			if errno != unix.EAGAIN {
				return c.received(n, len(p), errno)
			}
			c.readable = false
		}
		if c.nonblocking {
			return 0, ErrWouldBlock
		}
		if err := c.await(wantRead, c.readBy); err != nil {
			return 0, err
		}
	}
}

func (c *pollConn) received(n, asked int, errno syscall.Errno) (int, error) {
	if errno != 0 {
		return 0, c.fail("read", errno)
	}
	if n == 0 {
		return 0, io.EOF
	}
	if n < asked && !c.ended {
		c.readable = false
	}
	c.task.step(n)
	return n, nil
}

func (c *pollConn) write(p []byte) (int, error) {
	c.spoken = true
	if c.corked || c.queuedMax > 0 || c.pending() > 0 {
		return c.writeQueued(p)
	}
	sent := 0
	for {
		if err := c.usable(); err != nil {
			return sent, err
		}
		if c.writeBy.passed(c.loop.now) {
			return sent, errDeadline
		}
		n, errno := c.send(p[sent:])
		sent += n
		switch {
		case errno != 0 && errno != unix.EAGAIN:
			return sent, c.fail("write", errno)
		case sent == len(p):
			c.task.step(sent)
			return sent, nil
		}
		if err := c.await(wantWrite, c.writeBy); err != nil {
			return sent, err
		}
	}
}

// send hands the kernel what it takes; EAGAIN with n > 0 is possible.
func (c *pollConn) send(p []byte) (n int, errno syscall.Errno) {
	if !c.writable {
		return 0, unix.EAGAIN
	}
	if len(p) == 0 {
		return 0, 0
	}
	n, errno = sendFD(int(c.fd), p)
	if errno == unix.EAGAIN || errno == 0 && n < len(p) {
		c.writable = false
		return n, unix.EAGAIN
	}
	if errno != 0 {
		c.failed = true // before its event comes
	}
	return n, errno
}

func (c *pollConn) closeWrite() error {
	if err := c.usable(); err != nil {
		return err
	}
	if err := unix.Shutdown(int(c.fd), unix.SHUT_WR); err != nil {
		return c.fail("shutdown", err)
	}
	return nil
}

func (c *pollConn) close() error {
	if c.closed {
		return net.ErrClosed
	}
	if c.task == nil || c.task != c.loop.current {
		return ErrNotOwner
	}
	c.shut()
	return nil
}

func (c *pollConn) reset() error {
	if !c.closed && c.task != nil && c.task == c.loop.current {
		c.dropQueue()
		// It can only fail on a descriptor that is none.
		_ = unix.SetsockoptLinger(int(c.fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	}
	return c.close()
}

// abort: the kernel raises HUP for a socket that is shut both ways.
func (c *pollConn) abort() {
	if c.closed {
		return
	}
	// Neither can fail on a connection in a way that matters: it is gone then.
	_ = unix.SetsockoptLinger(int(c.fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	_ = unix.Shutdown(int(c.fd), unix.SHUT_RDWR)
}

func (c *pollConn) broken() bool { return c.failed }

func (c *pollConn) atEnd() bool { return c.ended || c.failed }

func (c *pollConn) unacked() int {
	if c.closed {
		return 0
	}
	return outQueue(int(c.fd))
}

// shut closes the socket, which also takes it out of the epoll set.
func (c *pollConn) shut() {
	if c.pending() > 0 {
		c.sendQueue()
		c.dropQueue()
	}
	c.closed = true
	if c.task != nil {
		c.task.disown(c)
	}
	c.loop.wheel.disarm(&c.timer)
	c.loop.forget(c.slot)
	c.count(-1)
	c.admit.leave()
	closeFD(int(c.fd))
	c.resume = nil
}

func (c *pollConn) localAddr() net.Addr {
	if c.closed {
		return &net.TCPAddr{}
	}
	return socketAddr(int(c.fd))
}

func (c *pollConn) fail(call string, err error) error {
	return &net.OpError{Op: call, Net: "tcp", Addr: c.RemoteAddr(), Err: os.NewSyscallError(call, err)}
}
