package rpc

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
)

// socketPathMax is what the kernel's sockaddr_un holds with its final zero, less the suffix that listen adds for a
// moment.
const socketPathMax = 107 - len(socketNewSuffix)

const socketNewSuffix = ".new"

// socket is the listening unix socket: it lets a bounded number of connections in and removes its file when it is
// closed, unless another process has put its own there.
type socket struct {
	*net.UnixListener
	path  string
	file  os.FileInfo
	slots chan struct{}
	left  atomic.Bool // to another process: the file stays
	once  sync.Once
	done  chan struct{}
}

// openSocket makes the socket, or takes over the one that is there.
func openSocket(cfg Config) (*socket, error) {
	l := cfg.SocketListener
	if l == nil {
		return listen(cfg.Socket, connectionsMax, cfg.SocketGroup)
	}
	l.SetUnlinkOnClose(false)
	file, err := os.Lstat(cfg.Socket)
	if err == nil {
		err = share(cfg.Socket, cfg.SocketGroup)
	}
	if err != nil { // somebody has taken the file away
		_ = l.Close()
		return listen(cfg.Socket, connectionsMax, cfg.SocketGroup)
	}
	return &socket{UnixListener: l, path: cfg.Socket, file: file, slots: make(chan struct{}, connectionsMax), done: make(chan struct{})}, nil
}

// listen makes the socket at path. A socket that nobody listens on any more is replaced, one that answers is an error.
// The file is made beside its place, closed to others and moved into place, so that it is never there with a wider
// mode, and never there without a listener. A group, if not 0, may use it.
func listen(path string, connections int, group uint32) (*socket, error) {
	if len(path) > socketPathMax {
		return nil, fmt.Errorf("control socket %s: the path has %d bytes, at most %d are possible: choose a shorter directory",
			path, len(path), socketPathMax)
	}
	if err := os.MkdirAll(filepath.Dir(path), dirMode(group)); err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	if err := checkPlace(path); err != nil {
		return nil, err
	}
	fresh := path + socketNewSuffix
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: fresh, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	l.SetUnlinkOnClose(false)
	info, err := moveIntoPlace(fresh, path, group)
	if err != nil {
		_ = l.Close()
		_ = os.Remove(fresh)
		return nil, fmt.Errorf("control socket: %w", err)
	}
	return &socket{
		UnixListener: l, path: path, file: info,
		slots: make(chan struct{}, connections), done: make(chan struct{}),
	}, nil
}

// checkPlace refuses a path where something else lives.
func checkPlace(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("control socket: %w", err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("control socket %s: there is something else at this path: move it away or choose another directory", path)
	}
	c, err := net.Dial("unix", path)
	switch {
	case err == nil:
		_ = c.Close()
		return fmt.Errorf("control socket %s: a running lbd answers on it: stop that one first or choose another directory", path)
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		return nil // nobody listens: left behind by a process that was killed
	}
	return fmt.Errorf("control socket: find out whether a running lbd answers: %w", err)
}

// dirMode lets the group through to a shared socket.
func dirMode(group uint32) os.FileMode {
	if group != 0 {
		return 0o755
	}
	return 0o700
}

func moveIntoPlace(fresh, path string, group uint32) (os.FileInfo, error) {
	if err := share(fresh, group); err != nil {
		return nil, err
	}
	info, err := os.Lstat(fresh)
	if err != nil {
		return nil, err
	}
	return info, os.Rename(fresh, path)
}

// share closes the socket to others than its user, and a group if there is one.
func share(path string, group uint32) error {
	if group == 0 {
		return os.Chmod(path, 0o600)
	}
	return errors.Join(os.Chmod(path, 0o600), os.Chown(path, -1, int(group)), os.Chmod(path, 0o660))
}

// Accept waits for a connection and for a free slot. What it does not accept waits in the kernel's queue.
func (s *socket) Accept() (net.Conn, error) {
	select {
	case s.slots <- struct{}{}:
	case <-s.done:
		return nil, net.ErrClosed
	}
	c, err := s.AcceptUnix()
	if err != nil {
		<-s.slots
		return nil, err
	}
	return &socketConn{UnixConn: c, release: sync.OnceFunc(func() { <-s.slots })}, nil
}

// Close ends Accept and removes the file.
func (s *socket) Close() error {
	var err error
	s.once.Do(func() {
		close(s.done)
		if now, statErr := os.Lstat(s.path); statErr == nil && os.SameFile(now, s.file) && !s.left.Load() {
			_ = os.Remove(s.path)
		}
		err = s.UnixListener.Close()
	})
	return err
}

// socketConn gives its slot back when it is closed.
type socketConn struct {
	*net.UnixConn
	release func()
}

func (c *socketConn) Close() error {
	defer c.release()
	return c.UnixConn.Close()
}
