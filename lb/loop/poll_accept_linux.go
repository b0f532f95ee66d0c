package loop

import (
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// listenSocket is a listening socket in one loop's epoll set, level-triggered.
type listenSocket struct {
	listener *pollListener
	loop     *pollLoop
	fd       int
	queue    int           // which of its listener's sockets in the kernel this is a descriptor of
	done     chan struct{} // closed when the socket is
	lent     bool          // a duplicate that loop serves for a stalled one
	shared   bool          // other loops have a descriptor of the same socket: one of them is woken

	// The rest belongs to loop.
	serving bool
	slot    uint32
	batch   int   // how many to accept at the next event
	round   int64 // of the last event
	timer   timer // ends the pause after running out of files
}

// serve begins to accept.
func (l *pollLoop) serve(s *listenSocket) {
	slot, err := l.register(s.fd, s.events(), s)
	if err != nil {
		l.engine.log.Error("listening socket cannot be served", "loop", l.index, "error", err)
	}
	s.slot, s.serving = slot, err == nil
	if err != nil || l.closing {
		s.close(l)
	}
}

// events are what the loop wants to know of the socket. Loops that share it would all
// wake for each connection.
func (s *listenSocket) events() uint32 {
	if s.shared {
		return unix.EPOLLIN | unix.EPOLLEXCLUSIVE
	}
	return unix.EPOLLIN
}

// event accepts a batch. It begins with one connection, the usual case, which
// then costs no second call that fails; while events come round after round the
// batch grows.
func (s *listenSocket) event(l *pollLoop, _ uint32) {
	round := l.rounds.Load()
	if round == s.round+1 {
		s.batch = min(2*s.batch, acceptsMax)
	} else {
		s.batch = 1
	}
	s.round = round
	for range s.batch {
		if !s.accept(l) {
			return
		}
	}
}

// accept takes one connection and reports whether there may be more.
func (s *listenSocket) accept(l *pollLoop) bool {
	fd, remote, errno := acceptFD(s.fd)
	switch errno {
	case 0:
	case unix.EAGAIN:
		return false
	case unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM:
		l.acceptErrors.Add(1)
		s.listener.refuse(RefusedOpenFiles)
		s.pause(l)
		return false
	default: // an error of that one connection
		l.acceptErrors.Add(1)
		return true
	}
	l.accepted.Add(1)
	if !s.listener.admit() {
		closeFD(fd)
		return true
	}
	to := l.engine.homeFor(l)
	to.served.Add(1) // now, so that loops that accept at this moment see it
	if to == l {
		l.start(fd, remote, s.listener)
		return true
	}
	l.moved.Add(1)
	if !to.post(func() { to.start(fd, remote, s.listener) }) {
		closeFD(fd)
		to.served.Add(-1)
		s.listener.leave()
	}
	return true
}

// start begins the task of an accepted connection.
func (l *pollLoop) start(fd int, remote netip.AddrPort, ln *pollListener) {
	c, err := l.adopt(fd, remote, ln.admission)
	if err != nil {
		l.acceptErrors.Add(1)
		ln.refuse(RefusedOpenFiles)
		return
	}
	l.handle(c, ln.opts.Handler, ln.opts.Heavy, true)
}

// pause ends accepting for a while. The socket leaves the set for it: events of one
// that loops share cannot be changed.
func (s *listenSocket) pause(l *pollLoop) {
	_ = unix.EpollCtl(l.epoll, unix.EPOLL_CTL_DEL, s.fd, nil) // it is in the set, or has been taken out by the last of a batch
	l.wheel.arm(&s.timer, l.now+instant(acceptBackoff))
}

// expire ends the pause, or prolongs it where the kernel has no memory.
func (s *listenSocket) expire(now instant) {
	l := s.loop
	ev := unix.EpollEvent{Events: s.events(), Fd: int32(s.slot), Pad: int32(l.slots[s.slot].generation)}
	if err := unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, s.fd, &ev); err != nil {
		l.wheel.arm(&s.timer, now+instant(acceptBackoff))
	}
}

// close serves what is in the kernel's queue, which closing would reset, and
// closes. It is called on the loop, once or more.
func (s *listenSocket) close(l *pollLoop) {
	ln := s.listener
	ln.mu.Lock()
	_, open := ln.sockets[s]
	delete(ln.sockets, s)
	ln.mu.Unlock()
	if !open {
		return
	}
	if !s.lent && !l.closing {
		s.drain(l)
	}
	if s.serving {
		l.forget(s.slot)
	}
	l.wheel.disarm(&s.timer)
	closeEpolled(l.epoll, s.fd)
	close(s.done)
}

func (s *listenSocket) drain(l *pollLoop) {
	for range listenBacklog {
		if !s.accept(l) {
			return
		}
	}
}

// closeEpolled takes a file out of the set before it closes it: a duplicate of
// it elsewhere would keep the registration alive.
func closeEpolled(epoll, fd int) {
	syscall.RawSyscall6(unix.SYS_EPOLL_CTL, uintptr(epoll), unix.EPOLL_CTL_DEL, uintptr(fd), 0, 0, 0)
	closeFD(fd)
}
