//go:build unix

package loop

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// A Descriptor is a listening TCP socket on its way from one process, or engine,
// to another. What has connected waits in the socket, and is lost only when the
// last descriptor of it is closed, in whatever process.
//
// It is no os.File: Fd of one that package net made takes the socket out of
// nonblocking mode, for the process that accepts on it as well.
type Descriptor struct{ fd int }

// NewDescriptor takes over a descriptor that another process has left to this one. If
// it is not of a TCP socket that listens, the error says so, and it is left as it is.
func NewDescriptor(fd int) (*Descriptor, error) {
	if err := checkListens(fd); err != nil {
		return nil, fmt.Errorf("descriptor %d: %w", fd, err)
	}
	unix.CloseOnExec(fd)
	return &Descriptor{fd}, nil
}

func checkListens(fd int) error {
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil {
		return os.NewSyscallError("getsockopt", err)
	}
	listens, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	if err != nil {
		return os.NewSyscallError("getsockopt", err)
	}
	if kind != unix.SOCK_STREAM || listens == 0 || socketAddr(fd).Port == 0 {
		return errors.New("not a TCP socket that listens")
	}
	return nil
}

// DescriptorOf duplicates the socket of a *net.TCPListener, which stays as it is.
func DescriptorOf(l net.Listener) (*Descriptor, error) {
	c, ok := l.(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("%T has no descriptor", l)
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var d *Descriptor
	if controlErr := raw.Control(func(fd uintptr) { d, err = duplicate(int(fd)) }); controlErr != nil {
		return nil, controlErr
	}
	return d, err
}

func duplicate(fd int) (*Descriptor, error) {
	other, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return &Descriptor{other}, nil
}

// Duplicate is another descriptor of the same socket.
func (d *Descriptor) Duplicate() (*Descriptor, error) { return duplicate(d.fd) }

// FD is the number, for sending it to another process. It stays d's.
func (d *Descriptor) FD() int { return d.fd }

// Addr is the address that the socket is bound to.
func (d *Descriptor) Addr() *net.TCPAddr { return socketAddr(d.fd) }

// Listener accepts on a duplicate, which it closes; d stays as it is.
func (d *Descriptor) Listener() (net.Listener, error) {
	other, err := duplicate(d.fd)
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(other.fd, true); err != nil { // else the file below would see to that, and undo it
		return nil, errors.Join(os.NewSyscallError("fcntl", err), other.Close())
	}
	f := os.NewFile(uintptr(other.fd), "listening socket")
	l, err := net.FileListener(f)
	return l, errors.Join(err, f.Close())
}

// Close closes this descriptor of the socket, once.
func (d *Descriptor) Close() error { return os.NewSyscallError("close", unix.Close(d.fd)) }

func socketAddr(fd int) *net.TCPAddr {
	switch sa, _ := unix.Getsockname(fd); sa := sa.(type) {
	case *unix.SockaddrInet4:
		return net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port)))
	case *unix.SockaddrInet6:
		ip := netip.AddrFrom16(sa.Addr)
		if sa.ZoneId != 0 {
			ip = ip.WithZone(zoneName(sa.ZoneId))
		}
		return net.TCPAddrFromAddrPort(netip.AddrPortFrom(ip.Unmap(), uint16(sa.Port)))
	}
	return &net.TCPAddr{}
}

func zoneName(index uint32) string {
	if ifi, err := net.InterfaceByIndex(int(index)); err == nil {
		return ifi.Name
	}
	return ""
}
