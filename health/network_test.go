package health

import (
	"bufio"
	"context"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
)

// network is a scripted network in memory: each address has a behaviour that a test can change. Its time is the bubble's.
type network struct {
	mu       sync.Mutex
	behave   map[string]behaviour
	dials    map[string]int
	requests []string
	open     int
	openMost int
}

// behaviour is what a dial of an address leads to: the server's end of a connection, or an error.
type behaviour func(ctx context.Context, n *network) (net.Conn, error)

func newNetwork() *network {
	return &network{behave: map[string]behaviour{}, dials: map[string]int{}}
}

func (n *network) set(address string, b behaviour) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.behave[address] = b
}

func (n *network) dialled(address string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dials[address]
}

func (n *network) dial(ctx context.Context, _, address string) (net.Conn, error) {
	n.mu.Lock()
	b := n.behave[address]
	n.dials[address]++
	n.open++
	n.openMost = max(n.openMost, n.open)
	n.mu.Unlock()
	conn, err := b(ctx, n)
	if err != nil {
		n.closed()
		return nil, err
	}
	return &countedConn{Conn: conn, closed: sync.OnceFunc(n.closed)}, nil
}

func (n *network) closed() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.open--
}

type countedConn struct {
	net.Conn
	closed func()
}

func (c *countedConn) Close() error {
	c.closed()
	return c.Conn.Close()
}

// refuse is a port on which nobody listens.
func refuse(context.Context, *network) (net.Conn, error) {
	return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
}

// blackHole is an address that answers nothing at all.
func blackHole(ctx context.Context, _ *network) (net.Conn, error) {
	<-ctx.Done()
	return nil, &net.OpError{Op: "dial", Net: "tcp", Err: ctx.Err()}
}

// accept takes a connection and holds it in silence until the other side closes.
func accept(context.Context, *network) (net.Conn, error) {
	near, far := net.Pipe()
	go func() {
		defer far.Close()
		buf := make([]byte, 512)
		for {
			if _, err := far.Read(buf); err != nil {
				return
			}
		}
	}()
	return near, nil
}

// answer reads a request's head and sends text, in the given pieces, then closes.
func answer(pieces ...string) behaviour {
	return func(_ context.Context, n *network) (net.Conn, error) {
		near, far := net.Pipe()
		go func() {
			defer far.Close()
			var head strings.Builder
			for r := bufio.NewReader(far); ; {
				line, err := r.ReadString('\n')
				if err != nil {
					return
				}
				if head.WriteString(line); line == "\r\n" {
					break
				}
			}
			n.mu.Lock()
			n.requests = append(n.requests, head.String())
			n.mu.Unlock()
			for _, piece := range pieces {
				if _, err := far.Write([]byte(piece)); err != nil {
					return
				}
			}
		}()
		return near, nil
	}
}

// stall reads a request's head, sends text and falls silent until the other side closes.
func stall(text string) behaviour {
	return func(context.Context, *network) (net.Conn, error) {
		near, far := net.Pipe()
		go func() {
			defer far.Close()
			_, _ = far.Read(make([]byte, 512))
			_, _ = far.Write([]byte(text))
			_, _ = far.Read(make([]byte, 1))
		}()
		return near, nil
	}
}

// ok is a backend in good health.
var ok = answer("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", "ok")
