package vectest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
)

// Backend records every octet that a proxy sends it. It reads strictly: the first malformed
// request on a connection gets a 400 and a close.
//
// To a sound request it answers 200 with a body of three lines, "T:target", "M:method" and
// "B:length of the body". What else talks to it is recorded as well, so the proxy must not
// check its health by requests; a TCP check is fine.
type Backend struct {
	listener net.Listener
	wg       sync.WaitGroup

	mu     sync.Mutex
	conns  map[*recorded]bool
	answer *answer // given to targets that begin with /resp, if set
}

type answer struct {
	octets []byte
	close  bool
}

// recorded is one connection from the proxy; Backend.mu guards it.
type recorded struct {
	net.Conn
	backend *Backend
	octets  []byte
	mark    int  // where those of the current vector begin
	whole   int  // where the last whole request ended
	earlier bool // was in the midst of an earlier vector's request when the current one began: none of this one's concern
}

// NewBackend starts a backend on a loopback port. It ends with the test.
func NewBackend(t testing.TB) *Backend {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &Backend{listener: l, conns: map[*recorded]bool{}}
	b.wg.Go(b.accept)
	t.Cleanup(b.close)
	return b
}

// Address is the host and port to give to the proxy.
func (b *Backend) Address() string { return b.listener.Addr().String() }

func (b *Backend) close() {
	b.listener.Close()
	b.mu.Lock()
	for c := range b.conns {
		c.Close()
	}
	b.mu.Unlock()
	b.wg.Wait()
}

func (b *Backend) accept() {
	for {
		c, err := b.listener.Accept()
		if err != nil {
			return
		}
		r := &recorded{Conn: c, backend: b}
		b.mu.Lock()
		b.conns[r] = true
		b.mu.Unlock()
		b.wg.Go(func() { b.serve(r) })
	}
}

// Read records what it reads.
func (c *recorded) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.backend.mu.Lock()
	c.octets = append(c.octets, p[:n]...)
	c.backend.mu.Unlock()
	return n, err
}

func (b *Backend) serve(c *recorded) {
	defer c.Close()
	r := bufio.NewReader(c)
	for {
		q, err := strict.read(r, func() { io.WriteString(c, "HTTP/1.1 100 Continue\r\n\r\n") })
		if err != nil {
			if bad := malformed(""); errors.As(err, &bad) {
				io.WriteString(c, "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
			}
			return
		}
		b.mu.Lock()
		a := b.answer
		c.whole = len(c.octets) - r.Buffered()
		b.mu.Unlock()
		if a != nil && strings.HasPrefix(q.target, "/resp") {
			c.Write(a.octets)
			if a.close {
				return
			}
			continue
		}
		body := fmt.Sprintf("T:%s\nM:%s\nB:%d\n", q.target, q.method, q.bodyLen)
		head := fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n", len(body))
		if q.method == "HEAD" {
			body = ""
		}
		io.WriteString(c, head+body)
	}
}

// begin starts the record of a vector. A connection on which the vector before left a request unfinished is ended: the rest of it
// may still be on its way, and must not count as this one's.
func (b *Backend) begin(a *answer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answer = a
	for c := range b.conns {
		c.mark = len(c.octets)
		if len(c.octets) != c.whole && !c.earlier {
			c.earlier = true
			c.Close()
		}
	}
}

// taken returns what each connection got since begin, and forgets the answer.
func (b *Backend) taken() (all [][]byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answer = nil
	for c := range b.conns {
		if len(c.octets) > c.mark && !c.earlier {
			all = append(all, append([]byte(nil), c.octets[c.mark:]...))
		}
	}
	return all
}
