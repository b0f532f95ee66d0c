//go:build linux

package backend

import (
	"bytes"
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// headBytesMax bounds what an unfinished head may hold back.
const headBytesMax = 64 << 10

// conn is one connection from a proxy.
type conn struct {
	fd     int
	closed bool
	tls    *session  // nil: in the clear
	used   time.Time // the last request, or the connection's start; kept where idle connections are closed
	// rest is an unfinished head.
	rest []byte
	// skip is how many bytes of a request body are still to come.
	skip int
	// unsent is the tail of answers that the socket did not take; blocked says that the connection waits for EPOLLOUT because of it.
	unsent  []byte
	blocked bool
	// answer is sent when skip is down to zero.
	answer []byte
	// tunnel: the connection has been upgraded, and everything is sent back.
	tunnel bool
	// last is set once the client has asked for the connection's end: it closes when unsent is empty.
	last bool
}

// receive reads once and answers every complete request in it.
func (s *server) receive(c *conn) {
	n, err := unix.Read(c.fd, s.buf[:])
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
		return
	}
	if n <= 0 || err != nil {
		s.drop(c)
		return
	}
	if c.tls != nil {
		s.decrypt(c, s.buf[:n])
		return
	}
	s.take(c, s.buf[:n])
}

// decrypt gives TLS what has come, and takes all that it makes of it: no event tells of what stays in its buffers.
func (s *server) decrypt(c *conn, in []byte) {
	for c.tls.in = in; !c.closed; {
		n, err := c.tls.read(s.plain[:])
		if out := c.tls.out; len(out) > 0 { // of the handshake
			c.tls.out = nil
			s.push(c, out)
		}
		switch {
		case errors.Is(err, errMore):
			return
		case err != nil:
			s.drop(c)
		case !c.closed:
			s.take(c, s.plain[:n])
		}
	}
}

// take answers every complete request in what a client has sent.
func (s *server) take(c *conn, in []byte) {
	if len(c.rest) > 0 {
		c.rest = append(c.rest, in...)
		in = c.rest
	}
	for !c.closed && !c.tunnel {
		if in = s.skip(c, in); c.skip > 0 || c.closed {
			break
		}
		end := bytes.Index(in, headEnd)
		if end < 0 {
			break
		}
		s.request(c, in[:end+len(headEnd)])
		in = in[end+len(headEnd):]
	}
	if c.tunnel && len(in) > 0 {
		// The input buffer belongs to the next read, so what is sent back must be a copy.
		s.send(c, bytes.Clone(in))
		in = nil
	}
	s.keep(c, in)
}

// skip drops a request's body, answers at its end, and returns what follows it.
func (s *server) skip(c *conn, in []byte) []byte {
	drop := min(c.skip, len(in))
	c.skip -= drop
	if c.skip == 0 && c.answer != nil {
		answer := c.answer
		c.answer = nil
		s.send(c, answer)
	}
	return in[drop:]
}

// keep holds an unfinished head back until the rest of it comes.
func (s *server) keep(c *conn, in []byte) {
	if c.closed {
		return
	}
	if len(in) > headBytesMax {
		s.drop(c)
		return
	}
	c.rest = append(c.rest[:0], in...)
}

// request answers one request at once, or when its delay is over.
func (s *server) request(c *conn, head []byte) {
	if s.idle > 0 {
		c.used = time.Now()
	}
	r := parse(head)
	c.skip = r.bodyBytes
	c.last = c.last || r.last
	answer := s.answers.of(r.size)
	switch {
	case r.key != nil:
		c.tunnel = true
		s.send(c, upgraded(r.key))
	case s.delay > 0:
		s.delayed.push(delayedAnswer{at: time.Now().Add(s.delay), conn: c, answer: answer})
	case c.skip > 0:
		c.answer = answer
	default:
		s.send(c, answer)
	}
}

// send encrypts where that is asked for.
func (s *server) send(c *conn, answer []byte) {
	if c.closed {
		return
	}
	if c.tls != nil {
		answer = c.tls.seal(answer, len(c.unsent) == 0)
	}
	s.push(c, answer)
}

// push writes behind what is still unsent, so that answers keep their order.
func (s *server) push(c *conn, answer []byte) {
	if len(c.unsent) > 0 {
		// The tail may be part of a shared answer: the full slice expression makes append copy it.
		c.unsent = append(c.unsent[:len(c.unsent):len(c.unsent)], answer...)
		return
	}
	c.unsent = answer
	s.flush(c)
}

// flush writes what the socket takes, asks for EPOLLOUT exactly while something is left, and closes after the last answer.
func (s *server) flush(c *conn) {
	for len(c.unsent) > 0 {
		n, err := unix.Write(c.fd, c.unsent)
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		if err != nil {
			s.drop(c)
			return
		}
		c.unsent = c.unsent[n:]
	}
	if c.last && len(c.unsent) == 0 {
		s.drop(c)
		return
	}
	if blocked := len(c.unsent) > 0; blocked != c.blocked {
		c.blocked = blocked
		events := uint32(unix.EPOLLIN)
		if blocked {
			events |= unix.EPOLLOUT
		}
		_ = s.watch(unix.EPOLL_CTL_MOD, c.fd, events)
	}
}

func (s *server) answerDelayed(now time.Time) {
	for {
		at, ok := s.delayed.next()
		if !ok || at.After(now) {
			return
		}
		d := s.delayed.pop()
		s.send(d.conn, d.answer)
	}
}

// delayedAnswer waits in the queue. Every delay is the same, so the queue is in order by itself.
type delayedAnswer struct {
	at     time.Time
	conn   *conn
	answer []byte
}

// delayQueue is first in, first out. The front is cut off when it is half of the whole, so pushing and popping stay cheap.
type delayQueue struct {
	items []delayedAnswer
	head  int
}

func (q *delayQueue) push(d delayedAnswer) { q.items = append(q.items, d) }

func (q *delayQueue) next() (time.Time, bool) {
	if q.head == len(q.items) {
		return time.Time{}, false
	}
	return q.items[q.head].at, true
}

func (q *delayQueue) pop() delayedAnswer {
	d := q.items[q.head]
	q.items[q.head] = delayedAnswer{}
	q.head++
	if q.head*2 >= len(q.items) {
		q.items = append(q.items[:0], q.items[q.head:]...)
		q.head = 0
	}
	return d
}
