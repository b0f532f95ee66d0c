//go:build linux

package backend

import (
	"crypto/tls"
	"iter"
	"net"
	"os"
	"time"
)

// session is the TLS of one connection: crypto/tls between two buffers, so that it can work on epoll. The handshake is a coroutine that
// waits where crypto/tls would block; after it nothing waits, because a read that finds too little can be made again.
type session struct {
	conn *tls.Conn
	// in is what the socket gave and crypto/tls has not taken: a part of the server's buffer, used up before the socket is read again.
	in []byte
	// out are records that wait for the socket; spare is the array of those before them.
	out, spare []byte
	// shake goes on with the handshake and reports whether it needs more bytes; failure says afterwards what became of it.
	shake   func() (struct{}, bool)
	stop    func()
	wait    func(struct{}) bool // of the handshake; nil: it is over
	failure error
}

// errMore is what a read says that needs more bytes: the end of a deadline, the one error after which crypto/tls goes on.
var errMore = os.ErrDeadlineExceeded

func newSession(config *tls.Config) *session {
	t := &session{}
	t.conn = tls.Server(buffers{t}, config)
	t.shake, t.stop = iter.Pull(func(wait func(struct{}) bool) {
		t.wait = wait
		t.failure = t.conn.Handshake()
		t.wait = nil
	})
	return t
}

// read returns what the client has sent, the handshake being its beginning. errMore: nothing is left.
func (t *session) read(p []byte) (int, error) {
	if _, more := t.shake(); more {
		return 0, errMore
	}
	if t.failure != nil {
		return 0, t.failure
	}
	return t.conn.Read(p)
}

// seal returns the records of an answer. They overwrite the last ones if those are free.
func (t *session) seal(answer []byte, free bool) []byte {
	if free {
		t.out = t.spare[:0]
	}
	_, _ = t.conn.Write(answer) // into a buffer; where TLS has failed, the next read says so
	t.spare, t.out = t.out, nil
	return t.spare
}

// buffers are a session as crypto/tls wants a connection.
type buffers struct{ *session }

func (b buffers) Read(p []byte) (int, error) {
	for len(b.in) == 0 {
		if b.wait == nil {
			return 0, errMore
		}
		if !b.wait(struct{}{}) {
			return 0, net.ErrClosed
		}
	}
	n := copy(p, b.in)
	b.in = b.in[n:]
	return n, nil
}

func (b buffers) Write(p []byte) (int, error) {
	b.out = append(b.out, p...)
	return len(p), nil
}

// The rest of net.Conn: the socket is the server's, and there are no deadlines.

func (b buffers) Close() error                     { return nil }
func (b buffers) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (b buffers) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (b buffers) SetDeadline(time.Time) error      { return nil }
func (b buffers) SetReadDeadline(time.Time) error  { return nil }
func (b buffers) SetWriteDeadline(time.Time) error { return nil }
