package cluster

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// streams are the connections that raft has with other nodes. Whoever closes them ends every call that waits on one.
type streams struct {
	network  Network
	node     string
	incoming <-chan net.Conn
	refused  func(error)  // what Dial was told
	ended    func(string) // whose connection has ended, if it tells
	began    time.Time
	life     context.Context
	end      context.CancelFunc

	mu   sync.Mutex
	open map[*stream]struct{}
}

// face is one of raft's transports on the streams. Only one of them accepts.
type face struct {
	*streams
	kind kind
}

type kind int

const (
	// short are heartbeats and votes; their deadlines are the transport's.
	short kind = iota
	// bulk are entries and snapshots. They have as long as they need, as long as something moves.
	bulk
	inbound
)

var _ raft.StreamLayer = face{}

// Accept returns other nodes' connections.
func (f face) Accept() (net.Conn, error) {
	incoming := f.incoming
	if f.kind != short {
		incoming = nil
	}
	select {
	case conn := <-incoming:
		return f.hold(conn, peerOf(conn), inbound)
	case <-f.life.Done():
		return nil, net.ErrClosed
	}
}

// peerOf is the node that a connection of the network's comes from; empty: it does not tell.
func peerOf(conn net.Conn) raft.ServerID {
	if told, ok := conn.(interface{ Node() string }); ok {
		return raft.ServerID(told.Node())
	}
	return ""
}

// Dial connects to a node, whose address is its id.
func (f face) Dial(address raft.ServerAddress, _ time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(f.life, dialWait)
	defer cancel()
	conn, err := f.network.Dial(ctx, string(address))
	if err != nil {
		f.refused(err)
		return nil, err
	}
	return f.hold(conn, raft.ServerID(address), f.kind)
}

// Addr is the node's id.
func (f face) Addr() net.Addr { return nodeAddr(f.node) }

// Close ends all connections of both faces.
func (f face) Close() error {
	f.streams.close()
	return nil
}

type nodeAddr string

func (nodeAddr) Network() string  { return "lbd" }
func (a nodeAddr) String() string { return string(a) }

func (s *streams) hold(conn net.Conn, peer raft.ServerID, kind kind) (net.Conn, error) {
	c := &stream{Conn: conn, streams: s, peer: peer, kind: kind}
	c.moved()
	if kind == bulk {
		boundSendBuffer(conn)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life.Err() != nil {
		return nil, errors.Join(net.ErrClosed, conn.Close())
	}
	s.open[c] = struct{}{}
	return c, nil
}

// boundSendBuffer keeps the kernel from taking more than a slow link carries in bulkAnswerWait: what it has taken looks as if it had moved.
func boundSendBuffer(conn net.Conn) {
	for {
		outer, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		conn = outer.NetConn()
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetWriteBuffer(sendBufferBytes) // a kernel that refuses has a default
	}
}

func (s *streams) close() {
	s.end()
	for _, c := range s.which(func(*stream) bool { return true }) {
		_ = c.Close() // what it says is said to whoever reads or writes, too
	}
}

// cut ends the bulk connections to a peer on which nothing has moved since: TCP would wait for longer and longer before it tries again.
func (s *streams) cut(peer raft.ServerID, since time.Time) {
	for _, c := range s.which(func(c *stream) bool {
		return c.kind == bulk && c.peer == peer && c.last.Load() < int64(since.Sub(s.began))
	}) {
		_ = c.Close()
	}
}

func (s *streams) which(is func(*stream) bool) []*stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []*stream
	for c := range s.open {
		if is(c) {
			found = append(found, c)
		}
	}
	return found
}

// stream is one connection. What the other node does not take or say in time ends it, so that no goroutine of raft waits for a node that is gone:
// a follower's main one does, in the middle of a snapshot.
type stream struct {
	net.Conn
	streams *streams
	peer    raft.ServerID
	kind    kind
	last    atomic.Int64 // when something moved, since streams.began
}

func (c *stream) moved() { c.last.Store(int64(time.Since(c.streams.began))) }

func (c *stream) idle() time.Duration {
	return time.Since(c.streams.began) - time.Duration(c.last.Load())
}

// Read waits for a request or an answer.
func (c *stream) Read(b []byte) (int, error) {
	switch c.kind {
	case inbound:
		_ = c.SetReadDeadline(time.Now().Add(requestWait))
	case bulk:
		_ = c.SetReadDeadline(time.Now().Add(bulkAnswerWait))
	}
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.moved()
	}
	if err != nil && c.kind == inbound && c.streams.life.Err() == nil {
		c.streams.ended(string(c.peer))
	}
	return n, err
}

var errIdle = errors.New("the connection was idle for too long")

// Write sends in pieces, each of which the other node has to take in time. On a connection that was idle for too long it sends nothing: the other
// node may have closed it.
func (c *stream) Write(b []byte) (int, error) {
	if c.kind != inbound && c.idle() > idleMax {
		return 0, errors.Join(errIdle, c.Close())
	}
	written := 0
	for len(b) > 0 {
		if c.kind != short {
			_ = c.SetWriteDeadline(time.Now().Add(writeWait))
		}
		n, err := c.Conn.Write(b[:min(len(b), pieceBytes)])
		written += n
		if err != nil {
			return written, err
		}
		c.moved()
		b = b[n:]
	}
	return written, nil
}

// Close may be called twice.
func (c *stream) Close() error {
	c.streams.mu.Lock()
	delete(c.streams.open, c)
	c.streams.mu.Unlock()
	return c.Conn.Close()
}
