//go:build !linux

package rpc

import (
	"os"
	"syscall"
)

// peerUser trusts the socket's mode, and counts whoever it lets in as this user.
func peerUser(syscall.Conn) (user, error) { return user{uid: uint32(os.Geteuid())}, nil }
