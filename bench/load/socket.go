//go:build linux

package load

import (
	"errors"
	"io"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// stream is what a request is written to and its answer read from.
type stream interface {
	io.ReadWriteCloser
}

// socket is a client's connection as crypto/tls wants it. Reading and writing look like blocking calls and park the client instead.
// The flags are what epoll said last; being wrong costs one call that would block.
type socket struct {
	client             *client
	fd                 int
	readable, writable bool
	// ended: the peer has closed, or the connection is broken; no further event comes for what is still to be read.
	ended bool
}

func (s *socket) Read(p []byte) (int, error) {
	for {
		for !s.readable && !s.ended {
			if err := s.client.park(wantsSocket); err != nil {
				return 0, err
			}
		}
		n, err := unix.Read(s.fd, p)
		switch {
		case errors.Is(err, unix.EAGAIN):
			s.readable, s.ended = false, false
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, err
		case n == 0:
			return 0, io.EOF
		default:
			// Less than asked for: the socket is empty, and an event comes with the next byte.
			s.readable = n == len(p)
			return n, nil
		}
	}
}

func (s *socket) Write(p []byte) (int, error) {
	written := 0
	for written < len(p) {
		n, err := unix.Write(s.fd, p[written:])
		switch {
		case errors.Is(err, unix.EAGAIN):
			s.writable = false
			for !s.writable {
				if err := s.client.park(wantsSocket); err != nil {
					return written, err
				}
			}
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return written, err
		default:
			written += n
		}
	}
	return written, nil
}

// Close forgets the descriptor before it is free for another client.
func (s *socket) Close() error {
	if s.fd < 0 {
		return nil
	}
	if s.fd < len(s.client.loop.byFD) {
		s.client.loop.byFD[s.fd] = nil
	}
	err := unix.Close(s.fd)
	s.fd = -1
	return err
}

// The rest of net.Conn: crypto/tls asks for none of it on the way that a client takes, and deadlines are the client's own.

func (s *socket) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (s *socket) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (s *socket) SetDeadline(time.Time) error      { return nil }
func (s *socket) SetReadDeadline(time.Time) error  { return nil }
func (s *socket) SetWriteDeadline(time.Time) error { return nil }
