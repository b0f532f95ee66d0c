package main

import (
	"syscall"
	"testing"
)

func TestForbidDumps(t *testing.T) {
	set := func(value uintptr) {
		if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, syscall.PR_SET_DUMPABLE, value, 0); errno != 0 {
			t.Fatal(errno)
		}
	}
	set(1)
	defer set(1) // the test's own core is of use
	if err := forbidDumps(); err != nil {
		t.Fatal(err)
	}
	if dumpable, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, syscall.PR_GET_DUMPABLE, 0, 0); errno != 0 || dumpable != 0 {
		t.Errorf("dumpable %d, %v", dumpable, errno)
	}
}
