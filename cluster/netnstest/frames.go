//go:build linux

package netnstest

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ethtoolValue is the kernel's struct ethtool_value.
type ethtoolValue struct{ command, data uint32 }

// interfaceRequest is the kernel's struct ifreq with a pointer in its union.
type interfaceRequest struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [16]byte
}

// plainFrames switches an interface's offloads off in the current namespace: every packet becomes frames of the size that a cable
// carries, with a checksum, so that loss hits single frames and a wire can hand them on.
func plainFrames(name string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket for the offloads of %s: %w", name, err)
	}
	defer unix.Close(fd)
	for _, command := range []uint32{unix.ETHTOOL_SGRO, unix.ETHTOOL_STSO, unix.ETHTOOL_SGSO, unix.ETHTOOL_STXCSUM} {
		value := ethtoolValue{command: command}
		request := interfaceRequest{data: unsafe.Pointer(&value)}
		copy(request.name[:unix.IFNAMSIZ-1], name)
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
		if errno != 0 && !errors.Is(errno, unix.EOPNOTSUPP) {
			return fmt.Errorf("switch off offload %#x of %s: %w", command, name, errno)
		}
	}
	return nil
}
