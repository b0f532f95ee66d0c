package loop

import (
	"errors"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// pollListener has a listening socket of its own on each loop; the kernel spreads
// connections over them (SO_REUSEPORT).
type pollListener struct {
	*admission
	engine *pollEngine
	local  net.Addr
	begun  bool // the loops have the sockets; the engine's lock is for it

	mu      sync.Mutex
	closed  bool
	sockets map[*listenSocket]struct{} // those that are not closed yet
}

func (ln *pollListener) addr() net.Addr       { return ln.local }
func (ln *pollListener) limit() *atomic.Int64 { return &ln.max }

// bind binds the first socket alone: with SO_REUSEPORT from the start, a second
// process of the same user would share the port, and neither would know. Once it
// listens, nobody else can bind plainly, and it lets the other loops' sockets in.
func (ln *pollListener) bind(addr *net.TCPAddr) error {
	first, err := bindFirst(addr)
	if err != nil {
		return err
	}
	ln.local = socketAddr(first)
	bound := *ln.local.(*net.TCPAddr)
	bound.Zone = addr.Zone
	ln.add(ln.engine.loops[0], first, 0)
	for i, l := range ln.engine.loops[1:] {
		fd, err := bindNext(&bound, first)
		if err != nil {
			ln.closeUnserved()
			return err
		}
		ln.add(l, fd, i+1)
	}
	return nil
}

// adopt takes sockets that others have bound, so that each of them and each loop has
// its part: what waits in one that no loop has would wait for ever. A loop without a
// socket of its own shares one. Another would have to be bound, and for that this
// process may lack the right: it may be another user's port, or one below 1024.
func (ln *pollListener) adopt(from []*Descriptor) error {
	loops := ln.engine.loops
	for i := range max(len(from), len(loops)) {
		queue := i % len(from)
		d, err := duplicate(from[queue].fd)
		if err == nil {
			ln.add(loops[i%len(loops)], d.fd, queue).shared = queue+len(from) < len(loops)
			err = prepare(d.fd)
		}
		if err != nil {
			ln.closeUnserved()
			return err
		}
	}
	ln.local = from[0].Addr()
	return nil
}

// prepare gives a socket that others have made what bindFirst's has.
func prepare(fd int) error {
	if err := unix.SetNonblock(fd, true); err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	if err := unix.Listen(fd, listenBacklog); err != nil { // again: the queue's length
		return os.NewSyscallError("listen", err)
	}
	if err := tune(fd); err != nil && !errors.Is(err, unix.ENOPROTOOPT) { // MPTCP's, as package net makes them, lack TCP_USER_TIMEOUT
		return err
	}
	return nil
}

// descriptors duplicates each socket once, though loops may share it.
func (ln *pollListener) descriptors() ([]*Descriptor, error) {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	queues := map[int]int{} // and a descriptor that stays open while mu is held
	for s := range ln.sockets {
		queues[s.queue] = s.fd
	}
	var all []*Descriptor
	for _, queue := range slices.Sorted(maps.Keys(queues)) {
		d, err := duplicate(queues[queue])
		if err != nil {
			for _, made := range all {
				_ = made.Close()
			}
			return nil, err
		}
		all = append(all, d)
	}
	return all, nil
}

// deferAccept is for all sockets alike; those that stalled loops lend share it.
func (ln *pollListener) deferAccept(d time.Duration) error {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	seconds := int((d + time.Second - 1) / time.Second)
	for s := range ln.sockets {
		if err := unix.SetsockoptInt(s.fd, unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT, seconds); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	return nil
}

func (ln *pollListener) add(l *pollLoop, fd, queue int) *listenSocket {
	s := &listenSocket{listener: ln, loop: l, fd: fd, queue: queue, done: make(chan struct{}), batch: 1}
	s.timer.target = s
	ln.sockets[s] = struct{}{}
	return s
}

// open is a copy of the sockets that are not closed.
func (ln *pollListener) open() []*listenSocket {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	return slices.Collect(maps.Keys(ln.sockets))
}

// closeUnserved closes sockets that no loop has got yet.
func (ln *pollListener) closeUnserved() {
	for s := range ln.sockets {
		closeFD(s.fd)
	}
}

// begin gives the sockets to the loops.
func (ln *pollListener) begin() {
	ln.engine.mu.Lock()
	defer ln.engine.mu.Unlock()
	if !ln.engine.closed {
		ln.beginLocked()
	}
}

func (ln *pollListener) beginLocked() {
	if ln.begun {
		return
	}
	ln.begun = true
	for _, s := range ln.open() {
		s.loop.post(func() { s.loop.serve(s) })
	}
}

// closeHeldLocked closes the sockets where no loop has got them; else it returns false.
func (ln *pollListener) closeHeldLocked() bool {
	if ln.begun {
		return false
	}
	ln.begun = true
	ln.mu.Lock()
	defer ln.mu.Unlock()
	ln.closed = true
	ln.closeUnserved()
	clear(ln.sockets)
	return true
}

// close has every loop close its socket and waits for it.
func (ln *pollListener) close() {
	ln.engine.mu.Lock()
	held := ln.closeHeldLocked()
	if held {
		delete(ln.engine.listeners, ln)
	}
	ln.engine.mu.Unlock()
	if held {
		return
	}
	ln.mu.Lock()
	ln.closed = true
	ln.mu.Unlock()
	sockets := ln.open()
	for _, s := range sockets {
		// A loop that takes no more posts has closed its sockets.
		s.loop.post(func() { s.close(s.loop) })
	}
	for _, s := range sockets {
		<-s.done
	}
	ln.engine.mu.Lock()
	delete(ln.engine.listeners, ln)
	ln.engine.mu.Unlock()
}

// lend gives borrower a second way to the socket's queue while the socket's own
// loop is stalled, so that connections that the kernel puts there are served.
func (s *listenSocket) lend(borrower *pollLoop) *listenSocket {
	ln := s.listener
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if _, open := ln.sockets[s]; !open || ln.closed {
		return nil
	}
	fd, err := unix.FcntlInt(uintptr(s.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	lent := ln.add(borrower, fd, s.queue)
	lent.lent = true
	if !borrower.post(func() { borrower.serve(lent) }) {
		closeFD(fd)
		delete(ln.sockets, lent)
		return nil
	}
	return lent
}

func socketFor(ip net.IP) (fd, family int, err error) {
	const kind = unix.SOCK_STREAM | unix.SOCK_NONBLOCK | unix.SOCK_CLOEXEC
	family = unix.AF_INET6
	if ip.To4() != nil {
		family = unix.AF_INET
	}
	fd, err = unix.Socket(family, kind, 0)
	if ip == nil && errors.Is(err, unix.EAFNOSUPPORT) {
		family = unix.AF_INET
		fd, err = unix.Socket(family, kind, 0)
	}
	if err != nil {
		return -1, 0, os.NewSyscallError("socket", err)
	}
	if family == unix.AF_INET6 {
		only := 1
		if ip == nil || ip.IsUnspecified() {
			only = 0
		}
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, only)
	}
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	}
	if err == nil {
		err = tune(fd)
	}
	if err != nil {
		closeFD(fd)
		return -1, 0, os.NewSyscallError("setsockopt", err)
	}
	return fd, family, nil
}

func bindFirst(addr *net.TCPAddr) (int, error) {
	fd, family, err := socketFor(addr.IP)
	if err != nil {
		return -1, err
	}
	if err = bind(fd, family, addr); err == nil {
		if err = unix.Listen(fd, listenBacklog); err != nil {
			err = os.NewSyscallError("listen", err)
		}
	}
	if err != nil {
		closeFD(fd)
		return -1, describeInUse(err, addr.Port)
	}
	return fd, nil
}

// bindNext binds another socket beside first.
func bindNext(addr *net.TCPAddr, first int) (int, error) {
	if err := unix.SetsockoptInt(first, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		return -1, os.NewSyscallError("setsockopt", err)
	}
	fd, family, err := socketFor(addr.IP)
	if err != nil {
		return -1, err
	}
	if err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		err = os.NewSyscallError("setsockopt", err)
	} else if err = bind(fd, family, addr); err == nil {
		if err = unix.Listen(fd, listenBacklog); err != nil {
			err = os.NewSyscallError("listen", err)
		}
	}
	if err != nil {
		closeFD(fd)
		return -1, describeInUse(err, addr.Port)
	}
	return fd, nil
}

func bind(fd, family int, addr *net.TCPAddr) error {
	var sa unix.Sockaddr = &unix.SockaddrInet6{Port: addr.Port}
	switch {
	case family == unix.AF_INET && addr.IP == nil:
		sa = &unix.SockaddrInet4{Port: addr.Port}
	case addr.IP != nil:
		_, sa = sockaddr(addr.AddrPort())
	}
	if err := unix.Bind(fd, sa); err != nil {
		return os.NewSyscallError("bind", err)
	}
	return nil
}
