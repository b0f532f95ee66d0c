package loop

import (
	"fmt"
	"net"
	"sync/atomic"
	"time"
)

// ListenOptions say what happens to the connections of a listener.
type ListenOptions struct {
	// Handler serves each connection in a task of its own.
	Handler Handler
	// Heavy makes the first step of a connection one of the heavy class (see
	// Conn.SetHeavy, which stays off).
	Heavy bool
	// ConnectionsMax bounds the open connections of this listener over all
	// loops; 0 means no bound.
	ConnectionsMax int
	// Inherited are sockets that listen already, to be accepted on in place of
	// ones that Listen binds, which then changes nothing of where they are bound.
	// They may be fewer than the loops or more. Listen duplicates them: they stay
	// the caller's.
	Inherited []*Descriptor
	// Held leaves connections in the kernel's queue until Begin is called.
	Held bool
	// Refused, if set, is called for each connection that gets no handler, on
	// the loop's goroutine: it must be quick and not panic.
	Refused func(reason string)
}

// Reasons for Refused.
const (
	RefusedConnectionsMax = "connections_max" // ListenOptions.ConnectionsMax
	RefusedOpenFiles      = "open_files"      // no file or memory: it waits in the kernel's queue
	RefusedOverload       = "overload"        // its first heavy step was dropped
)

// A Listener accepts connections on one address, on all loops.
type Listener struct {
	on  acceptor
	max *atomic.Int64
}

// acceptor is the engine's side of a listener.
type acceptor interface {
	addr() net.Addr
	limit() *atomic.Int64
	deferAccept(d time.Duration) error
	descriptors() ([]*Descriptor, error)
	begin()
	close()
}

// Listen accepts TCP connections on "host:port", or ":port" for IPv4 and IPv6.
// Port 0 lets the kernel choose. The address is this process's alone: if another
// socket has it, the error wraps syscall.EADDRINUSE and names the owner where
// the system tells. It must not be called from a task.
func (e *Engine) Listen(addr string, opts ListenOptions) (*Listener, error) {
	a, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", addr, err)
	}
	on, err := e.core.listen(a, opts)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", addr, err)
	}
	return &Listener{on: on, max: on.limit()}, nil
}

// Addr is the address with the port in use.
func (l *Listener) Addr() net.Addr { return l.on.addr() }

// SetConnectionsMax changes ListenOptions.ConnectionsMax; open connections stay.
func (l *Listener) SetConnectionsMax(n int) { l.max.Store(int64(n)) }

// SetDeferAccept has the kernel keep a new connection to itself until its first
// bytes have come, or for that long, in whole seconds (TCP_DEFER_ACCEPT): whoever
// says nothing costs nothing here, and is not seen. 0, the default, ends that. Only
// the epoll engine can; elsewhere the error is ErrNoDefer.
func (l *Listener) SetDeferAccept(d time.Duration) error { return l.on.deferAccept(d) }

// Begin begins to accept, where ListenOptions.Held has kept the listener from it. What
// waits is then served. A listener that is closed before that accepts nothing.
func (l *Listener) Begin() { l.on.begin() }

// Descriptors are duplicates of the listener's sockets, each once, for another
// process or engine to accept on; the listener goes on. Once that other one has them,
// Close loses nobody: who connects from then on is the other's. The caller closes
// them. After Close there are none.
func (l *Listener) Descriptors() ([]*Descriptor, error) { return l.on.descriptors() }

// Close stops accepting, after the connections that the kernel has completed;
// open ones live on. When it returns the address is free, unless another process or
// a Descriptor has the socket, too; for that it waits for every loop, also a stalled
// one. It must not be called from a task.
func (l *Listener) Close() error {
	l.on.close()
	return nil
}
