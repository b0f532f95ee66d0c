package rpc

import "syscall"

// tcpUserTimeout is TCP_USER_TIMEOUT, which package syscall does not name.
const tcpUserTimeout = 0x12

// noticeLoss makes a connection end when what was sent is not taken for peerLossAfter: keepalive alone says nothing as long as something is on its way.
func noticeLoss(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(peerLossAfter.Milliseconds())) // a kernel without it notices later
	})
}
