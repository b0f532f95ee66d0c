//go:build !linux

package main

import (
	"net"
	"os"
)

// whoKnocks takes the mode of the socket for an answer: only its owner and root come that far.
func whoKnocks(*net.UnixConn) (pid int, uid uint32, err error) { return 0, uint32(os.Geteuid()), nil }

func sameService(int) bool { return true }
