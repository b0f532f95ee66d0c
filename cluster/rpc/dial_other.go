//go:build !linux

package rpc

import "syscall"

// noticeLoss has nothing to set here.
func noticeLoss(_, _ string, _ syscall.RawConn) error { return nil }
