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
	done     chan struct{} // closed when the socket is
	lent     bool          // a duplicate that loop serves for a stalled one

	// The rest belongs to loop.
	serving bool
	slot    uint32
	batch   int   // how many to accept at the next event
	round   int64 // of the last event
	timer   timer // ends the pause after running out of files
}

// serve begins to accept.
func (l *pollLoop) serve(s *listenSocket) {
	slot, err := l.register(s.fd, unix.EPOLLIN, s)
	if err != nil {
		l.engine.log.Error("listening socket cannot be served", "loop", l.index, "error", err)
	}
	s.slot, s.serving = slot, err == nil
	if err != nil || l.closing {
		s.close(l)
	}
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
		s.listen(l, 0)
		l.wheel.arm(&s.timer, l.now+instant(acceptBackoff))
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

// listen sets the events that the loop gets of the socket.
func (s *listenSocket) listen(l *pollLoop, events uint32) {
	ev := unix.EpollEvent{Events: events, Fd: int32(s.slot), Pad: int32(l.slots[s.slot].generation)}
	// The set holds the socket, so this cannot fail.
	_ = unix.EpollCtl(l.epoll, unix.EPOLL_CTL_MOD, s.fd, &ev)
}

// expire ends the pause.
func (s *listenSocket) expire(instant) { s.listen(s.loop, unix.EPOLLIN) }

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
