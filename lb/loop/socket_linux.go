package loop

import (
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The system calls of the hot path. They are raw: on a nonblocking socket none
// of them waits, so telling the scheduler would be wasted.

// readFD receives: read would go to the socket by way of the file system.
func readFD(fd int, p []byte) (int, syscall.Errno) {
	for {
		n, _, errno := syscall.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)), 0, 0, 0)
		if errno == 0 {
			return int(n), 0
		}
		if errno != unix.EINTR {
			return 0, errno
		}
	}
}

// sendFD asks for no SIGPIPE, which the runtime would have to catch.
func sendFD(fd int, p []byte) (int, syscall.Errno) {
	for {
		n, _, errno := syscall.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)),
			unix.MSG_NOSIGNAL, 0, 0)
		if errno == 0 {
			return int(n), 0
		}
		if errno != unix.EINTR {
			return 0, errno
		}
	}
}

// nothingToRead looks without taking: an end or an error counts as something.
func nothingToRead(fd int) bool {
	var b [1]byte
	_, _, errno := syscall.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&b)), 1,
		unix.MSG_PEEK|unix.MSG_DONTWAIT, 0, 0)
	return errno == unix.EAGAIN
}

// outQueue is the number of bytes that the kernel holds until the peer has
// acknowledged them.
func outQueue(fd int) int {
	var n int32
	if _, _, errno := syscall.RawSyscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCOUTQ, uintptr(unsafe.Pointer(&n))); errno != 0 {
		return 0
	}
	return int(n)
}

func closeFD(fd int) { syscall.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0) }

var one = [8]byte{1}

// ring adds one to an eventfd, which wakes the loop that has it in its set.
func ring(fd int) {
	syscall.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&one)), 8)
}

func acceptFD(fd int) (int, netip.AddrPort, syscall.Errno) {
	var sa unix.RawSockaddrAny
	size := uint32(unsafe.Sizeof(sa))
	for {
		n, _, errno := syscall.RawSyscall6(unix.SYS_ACCEPT4, uintptr(fd), uintptr(unsafe.Pointer(&sa)),
			uintptr(unsafe.Pointer(&size)), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0, 0)
		if errno == 0 {
			return int(n), addrPort(&sa), 0
		}
		if errno != unix.EINTR && errno != unix.ECONNABORTED {
			return -1, netip.AddrPort{}, errno
		}
	}
}

func addrPort(sa *unix.RawSockaddrAny) netip.AddrPort {
	switch sa.Addr.Family {
	case unix.AF_INET:
		a := (*unix.RawSockaddrInet4)(unsafe.Pointer(sa))
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), hostOrder(a.Port))
	case unix.AF_INET6:
		a := (*unix.RawSockaddrInet6)(unsafe.Pointer(sa))
		ip := netip.AddrFrom16(a.Addr).Unmap()
		if a.Scope_id != 0 && ip.Is6() {
			ip = ip.WithZone(zoneName(a.Scope_id))
		}
		return netip.AddrPortFrom(ip, hostOrder(a.Port))
	}
	return netip.AddrPort{}
}

func hostOrder(port uint16) uint16 {
	var b [2]byte
	binary.NativeEndian.PutUint16(b[:], port)
	return binary.BigEndian.Uint16(b[:])
}

func sockaddr(a netip.AddrPort) (family int, sa unix.Sockaddr) {
	ip := a.Addr()
	if ip.Is4() || ip.Is4In6() {
		return unix.AF_INET, &unix.SockaddrInet4{Port: int(a.Port()), Addr: ip.Unmap().As4()}
	}
	s := &unix.SockaddrInet6{Port: int(a.Port()), Addr: ip.As16()}
	if zone := ip.Zone(); zone != "" {
		if ifi, err := net.InterfaceByName(zone); err == nil {
			s.ZoneId = uint32(ifi.Index)
		}
	}
	return unix.AF_INET6, s
}

// tune sets what every connection has. Accepted sockets inherit all of it from
// the listening one, so a new connection costs no call here.
func tune(fd int) error {
	var lacks error
	for _, o := range [...]struct{ level, name, value int }{
		{unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
		{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, int(keepAliveIdle / time.Second)},
		{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, int(keepAliveInterval / time.Second)},
		{unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(userTimeout / time.Millisecond)},
		{unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, unsentMax},
	} {
		switch err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err {
		case nil:
		case unix.ENOPROTOOPT:
			lacks = os.NewSyscallError("setsockopt", err)
		default:
			return os.NewSyscallError("setsockopt", err)
		}
	}
	return lacks
}

// connect begins a connection; EINPROGRESS comes with a valid socket.
func connect(to netip.AddrPort) (int, error) {
	family, sa := sockaddr(to)
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	if err := tune(fd); err != nil {
		closeFD(fd)
		return -1, err
	}
	for {
		err := unix.Connect(fd, sa)
		if err == unix.EINTR {
			continue
		}
		if err == nil {
			err = connected(fd)
		}
		if err != nil && err != unix.EINPROGRESS {
			closeFD(fd)
			return -1, err
		}
		return fd, err
	}
}

// connected tells how a connection attempt ended. A socket that has connected to
// itself, which happens on a local port that nobody listens on and that the
// kernel picked as the source, counts as refused.
func connected(fd int) error {
	errno, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err != nil {
		return os.NewSyscallError("getsockopt", err)
	}
	if errno != 0 {
		return syscall.Errno(errno)
	}
	var local, remote unix.RawSockaddrAny
	localSize, remoteSize := uint32(unsafe.Sizeof(local)), uint32(unsafe.Sizeof(remote))
	syscall.RawSyscall(unix.SYS_GETSOCKNAME, uintptr(fd), uintptr(unsafe.Pointer(&local)), uintptr(unsafe.Pointer(&localSize)))
	syscall.RawSyscall(unix.SYS_GETPEERNAME, uintptr(fd), uintptr(unsafe.Pointer(&remote)), uintptr(unsafe.Pointer(&remoteSize)))
	if addrPort(&local) == addrPort(&remote) {
		return unix.ECONNREFUSED
	}
	return nil
}

func dialError(to netip.AddrPort, call string, err error) error {
	if errno, ok := err.(syscall.Errno); ok {
		err = os.NewSyscallError(call, errno)
	}
	if err == ErrClosed {
		return err
	}
	return &net.OpError{Op: "dial", Net: "tcp", Addr: net.TCPAddrFromAddrPort(to), Err: err}
}
