package main

import (
	"errors"
	"syscall"
)

const prSetNoNewPrivs = 38 // prctl(2)

// forbidPrivileges keeps this process and its children from gaining rights that they were not started with, by a set-user-ID program for
// one. The kernel keeps that for each thread, and Go reaches all of them only in a build without cgo: in another one that is left to
// the service manager (NoNewPrivileges= in the unit), and not told.
func forbidPrivileges() error {
	_, _, errno := syscall.AllThreadsSyscall6(syscall.SYS_PRCTL, prSetNoNewPrivs, 1, 0, 0, 0, 0)
	if errno != 0 && !errors.Is(errno, syscall.ENOTSUP) {
		return errno
	}
	return nil
}
