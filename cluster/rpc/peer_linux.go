package rpc

import (
	"errors"
	"syscall"
	"unsafe"
)

const (
	// soPeerGroups is SO_PEERGROUPS (Linux 4.13), which package syscall does not know: the supplementary groups that the peer had
	// when it connected.
	soPeerGroups = 59
	// groupsMax is NGROUPS_MAX.
	groupsMax = 1 << 16
)

// peerUser reads the user and the groups that the kernel noted when the peer connected.
func peerUser(conn syscall.Conn) (user, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return user{}, err
	}
	var u user
	var readErr error
	err = raw.Control(func(fd uintptr) {
		cred, err := syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
		if err != nil {
			readErr = err
			return
		}
		u.uid = cred.Uid
		groups, err := peerGroups(fd)
		u.groups, readErr = append(groups, cred.Gid), err
	})
	return u, errors.Join(err, readErr)
}

func peerGroups(fd uintptr) ([]uint32, error) {
	for n := 64; n <= groupsMax; n *= 8 {
		groups := make([]uint32, n)
		size := uint32(4 * n)
		_, _, errno := syscall.Syscall6(syscall.SYS_GETSOCKOPT, fd, syscall.SOL_SOCKET, soPeerGroups,
			uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&size)), 0)
		switch errno {
		case 0:
			return groups[:size/4], nil
		case syscall.ERANGE: // more of them
		case syscall.ENOPROTOOPT: // an older kernel: the primary group counts
			return nil, nil
		default:
			return nil, errno
		}
	}
	return nil, syscall.ERANGE
}
