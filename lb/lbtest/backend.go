// Package lbtest holds scripted fake backends: real TCP servers that do, byte for byte, what a test's script says, and write
// down what reached them.
package lbtest

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// patience bounds every wait of a script: a test that fails must end, not hang.
const patience = 10 * time.Second

// Script is one connection's life. It runs on a goroutine of its own; the connection is closed when it returns.
type Script func(c *Conn)

// Backend is a fake backend on a loopback port.
type Backend struct {
	listener net.Listener
	script   Script

	mu       sync.Mutex
	conns    map[net.Conn]struct{}
	accepted int
	requests []Request
	closed   bool
	group    sync.WaitGroup
}

// Request is one request as it arrived.
type Request struct {
	Conn  int    // which connection brought it, from 0
	Head  string // up to and with the empty line
	Body  string // decoded
	Chunk bool   // whether the body came in chunks
}

// Line returns the request line.
func (r Request) Line() string {
	line, _, _ := strings.Cut(r.Head, "\r\n")
	return line
}

// Field returns the values of a field, in order, by its name in any case.
func (r Request) Field(name string) []string {
	var values []string
	for _, line := range strings.Split(r.Head, "\r\n")[1:] {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.EqualFold(key, name) {
			values = append(values, strings.TrimSpace(value))
		}
	}
	return values
}

// New starts a backend that runs script for every connection, and stops it when the test ends.
func New(t testing.TB, script Script) *Backend {
	t.Helper()
	return NewTLS(t, nil, script)
}

// NewTLS is New over TLS; in the clear if config is nil. A script's Reset and CloseWrite are for the clear.
func NewTLS(t testing.TB, config *tls.Config, script Script) *Backend {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if config != nil {
		listener = tls.NewListener(listener, config)
	}
	b := &Backend{listener: listener, script: script, conns: make(map[net.Conn]struct{})}
	b.group.Go(b.accept)
	t.Cleanup(b.Close)
	return b
}

// Closed returns an address where nothing listens.
func Closed(t testing.TB) netip.AddrPort {
	t.Helper()
	b := New(t, nil)
	b.Close()
	return b.Addr()
}

// Addr returns where it listens.
func (b *Backend) Addr() netip.AddrPort {
	return b.listener.Addr().(*net.TCPAddr).AddrPort()
}

// Accepted returns how many connections came.
func (b *Backend) Accepted() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.accepted
}

// Requests returns what ReadRequest has read, in order of arrival.
func (b *Backend) Requests() []Request {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]Request(nil), b.requests...)
}

// Close stops it and waits for its scripts; open connections are closed under them.
func (b *Backend) Close() {
	b.listener.Close()
	b.mu.Lock()
	b.closed = true
	for c := range b.conns {
		c.Close()
	}
	b.mu.Unlock()
	b.group.Wait()
}

func (b *Backend) accept() {
	for {
		c, err := b.listener.Accept()
		if err != nil {
			return
		}
		b.mu.Lock()
		if b.closed {
			b.mu.Unlock()
			c.Close()
			return
		}
		b.conns[c] = struct{}{}
		conn := &Conn{Conn: c, backend: b, index: b.accepted, reader: bufio.NewReader(c)}
		b.accepted++
		b.mu.Unlock()
		b.group.Go(func() {
			b.script(conn)
			c.Close()
			b.mu.Lock()
			delete(b.conns, c)
			b.mu.Unlock()
		})
	}
}

// Conn is a connection as its script sees it.
type Conn struct {
	net.Conn
	backend *Backend
	index   int
	reader  *bufio.Reader
}

// Wrap gives a script's reading and writing to a connection that a test has accepted itself; it has no journal.
func Wrap(c net.Conn) *Conn { return &Conn{Conn: c, reader: bufio.NewReader(c)} }

// Index says which of the backend's connections it is, from 0.
func (c *Conn) Index() int { return c.index }

// Read reads behind what ReadHead and ReadRequest have taken.
func (c *Conn) Read(p []byte) (int, error) { return c.reader.Read(p) }

// Say writes s and ignores a connection that is gone: the test sees that by what the client gets.
func (c *Conn) Say(s string) {
	c.SetWriteDeadline(time.Now().Add(patience))
	io.WriteString(c.Conn, s)
}

// Reset closes with RST, as a process does that dies with unread data.
func (c *Conn) Reset() {
	c.Conn.(*net.TCPConn).SetLinger(0)
	c.Close()
}

// CloseWrite sends FIN and goes on reading.
func (c *Conn) CloseWrite() { c.Conn.(*net.TCPConn).CloseWrite() }

// ReadHead reads up to the empty line, and nothing of the body.
func (c *Conn) ReadHead() (string, error) {
	c.SetReadDeadline(time.Now().Add(patience))
	var head strings.Builder
	for {
		line, err := c.reader.ReadString('\n')
		head.WriteString(line)
		if err != nil {
			return head.String(), err
		}
		if line == "\r\n" {
			return head.String(), nil
		}
	}
}

// ReadRequest reads one request whole and writes it into the backend's journal.
func (c *Conn) ReadRequest() (Request, error) {
	head, err := c.ReadHead()
	if err != nil {
		return Request{}, err
	}
	return c.ReadBody(head)
}

// ReadBody reads the body that head announces and writes the request into the journal.
func (c *Conn) ReadBody(head string) (Request, error) {
	r := Request{Conn: c.index, Head: head}
	var err error
	switch {
	case len(r.Field("Transfer-Encoding")) > 0:
		r.Chunk = true
		r.Body, err = c.readChunks()
	case len(r.Field("Content-Length")) > 0:
		r.Body, err = c.readLength(r.Field("Content-Length")[0])
	}
	c.backend.mu.Lock()
	defer c.backend.mu.Unlock()
	c.backend.requests = append(c.backend.requests, r)
	return r, err
}

func (c *Conn) readLength(announced string) (string, error) {
	n, err := strconv.Atoi(announced)
	if err != nil {
		return "", err
	}
	body := make([]byte, n)
	got, err := io.ReadFull(c.reader, body)
	return string(body[:got]), err
}

func (c *Conn) readChunks() (string, error) {
	var body strings.Builder
	for {
		line, err := c.reader.ReadString('\n')
		if err != nil {
			return body.String(), err
		}
		size, err := strconv.ParseInt(strings.TrimSpace(line), 16, 32)
		if err != nil {
			return body.String(), fmt.Errorf("chunk size %q: %w", line, err)
		}
		if size == 0 {
			_, err := c.ReadHead() // trailers
			return body.String(), err
		}
		if _, err := io.CopyN(&body, c.reader, size); err != nil {
			return body.String(), err
		}
		if end, err := c.reader.ReadString('\n'); err != nil || end != "\r\n" {
			return body.String(), errors.Join(err, fmt.Errorf("chunk ends with %q", end))
		}
	}
}

// Answer returns a script that gives the same answer to every request, and keeps the connection.
func Answer(response string) Script {
	return func(c *Conn) {
		for {
			if _, err := c.ReadRequest(); err != nil {
				return
			}
			c.Say(response)
		}
	}
}

// OK returns a script that answers every request with 200 and a body of known length.
func OK(body string) Script {
	return Answer(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
}

// Echo answers every request with its own body.
func Echo(c *Conn) {
	for {
		r, err := c.ReadRequest()
		if err != nil {
			return
		}
		c.Say(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(r.Body), r.Body))
	}
}
