//go:build linux

// Package backend is an HTTP/1.1 server that costs as little as a proxy does, so that the core that it shares with the load generator
// does not limit what the lab can measure. One thread, one epoll instance, no allocation per request but crypto/tls's few.
//
// GET /N answers with N bytes of Body, GET / with none. A body sent with Content-Length is read and dropped, and the answer comes after
// it. An upgrade to websocket is accepted, and every byte from then on is sent back as it came.
package backend

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Config says where to listen and how slow to be.
type Config struct {
	// Listen holds IPv4 "host:port" addresses; one thread serves them all.
	Listen []string
	// Certificate, if not nil, is shown to clients, which must speak TLS 1.3 then.
	Certificate *tls.Certificate
	// Delay passes between the end of a request's head and its answer. Zero: none.
	Delay time.Duration
	// Idle is after how long a connection without a request is closed, a tenth of a second late at most. Zero: never.
	Idle time.Duration
	// Accepted, if not nil, counts connections.
	Accepted *atomic.Int64
	// Stop, when closed, ends Run within a tenth of a second. Nil: never.
	Stop <-chan struct{}
	// Ready is called once every address accepts connections. Nil: nobody asks.
	Ready func()
}

const (
	eventsMax     = 256
	readBytesMax  = 16 << 10
	listenBacklog = 4096
	// How often an idle server looks at Stop.
	stopPollMillis = 100
)

// server is the state of the one thread. Nothing else touches it.
type server struct {
	epoll     int
	conns     []*conn // by file descriptor; nil where there is none
	listeners map[int]bool
	secure    *tls.Config // nil: in the clear
	delay     time.Duration
	idle      time.Duration
	swept     time.Time // when idle ones were last looked for
	accepted  *atomic.Int64
	delayed   delayQueue
	answers   answers
	buf       [readBytesMax]byte
	plain     [readBytesMax]byte // what TLS makes of buf
}

// Run serves until Stop closes, then closes every connection and returns nil. It returns an error if an address cannot be bound.
func Run(c Config) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return fmt.Errorf("create epoll instance: %w", err)
	}
	s := &server{epoll: epoll, listeners: map[int]bool{}, delay: c.Delay, idle: c.Idle, accepted: c.Accepted, answers: answers{}}
	if c.Certificate != nil {
		s.secure = &tls.Config{Certificates: []tls.Certificate{*c.Certificate}, MinVersion: tls.VersionTLS13}
	}
	if s.accepted == nil {
		s.accepted = new(atomic.Int64)
	}
	defer s.close()
	for _, address := range c.Listen {
		if err := s.listen(address); err != nil {
			return fmt.Errorf("listen on %s: %w", address, err)
		}
	}
	if c.Ready != nil {
		c.Ready()
	}
	return s.serve(c.Stop)
}

func (s *server) serve(stop <-chan struct{}) error {
	events := make([]unix.EpollEvent, eventsMax)
	for {
		n, err := unix.EpollWait(s.epoll, events, s.waitMillis())
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for events: %w", err)
		}
		for i := range max(n, 0) {
			s.handle(int(events[i].Fd), events[i].Events)
		}
		s.answerDelayed(time.Now())
		s.sweep(time.Now())
		select {
		case <-stop:
			return nil
		default:
		}
	}
}

// waitMillis is until the next delayed answer, rounded up, but no longer than Stop may wait.
func (s *server) waitMillis() int {
	at, ok := s.delayed.next()
	if !ok {
		return stopPollMillis
	}
	until := time.Until(at)
	return min(stopPollMillis, max(0, int((until+time.Millisecond-1)/time.Millisecond)))
}

// sweep closes the connections that have been without a request for too long.
func (s *server) sweep(now time.Time) {
	if s.idle == 0 || now.Sub(s.swept) < stopPollMillis*time.Millisecond {
		return
	}
	s.swept = now
	for _, c := range s.conns {
		if c != nil && now.Sub(c.used) > s.idle {
			s.drop(c)
		}
	}
}

func (s *server) handle(fd int, events uint32) {
	if s.listeners[fd] {
		s.accept(fd)
		return
	}
	c := s.conns[fd]
	if c == nil {
		return // closed earlier in this round
	}
	if events&unix.EPOLLOUT != 0 {
		s.flush(c)
	}
	if events&^unix.EPOLLOUT != 0 && !c.closed {
		s.receive(c)
	}
}

// accept takes what is waiting, one per event: epoll is level-triggered here and reports the rest again.
func (s *server) accept(listener int) {
	fd, _, err := unix.Accept4(listener, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
	if err != nil {
		return // the client is gone, or descriptors ran out: the client sees it
	}
	s.accepted.Add(1)
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	for fd >= len(s.conns) {
		s.conns = append(s.conns, nil)
	}
	s.conns[fd] = &conn{fd: fd, used: time.Now()}
	if s.secure != nil {
		s.conns[fd].tls = newSession(s.secure)
	}
	if err := s.watch(unix.EPOLL_CTL_ADD, fd, unix.EPOLLIN); err != nil {
		s.drop(s.conns[fd])
	}
}

func (s *server) listen(address string) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	if !at.Addr().Is4() {
		return errors.New("not an IPv4 address")
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	s.listeners[fd] = true
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return err
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}); err != nil {
		return err
	}
	if err := unix.Listen(fd, listenBacklog); err != nil {
		return err
	}
	return s.watch(unix.EPOLL_CTL_ADD, fd, unix.EPOLLIN)
}

func (s *server) watch(op, fd int, events uint32) error {
	return unix.EpollCtl(s.epoll, op, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)})
}

func (s *server) drop(c *conn) {
	s.conns[c.fd] = nil
	c.closed = true
	if c.tls != nil {
		c.tls.stop()
	}
	_ = unix.Close(c.fd)
}

func (s *server) close() {
	for fd := range s.listeners {
		_ = unix.Close(fd)
	}
	for _, c := range s.conns {
		if c != nil {
			s.drop(c)
		}
	}
	_ = unix.Close(s.epoll)
}
