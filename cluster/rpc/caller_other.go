//go:build !linux

package rpc

import (
	"os"
	"syscall"
)

// peerUID trusts the socket's mode, which lets in this user and root alone, and counts both as this user.
func peerUID(syscall.Conn) (uint32, error) { return uint32(os.Geteuid()), nil }
