package main

import "syscall"

// forbidDumps keeps private keys out of core files, and other processes of the same user out of this one's memory.
func forbidDumps() error {
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, syscall.PR_SET_DUMPABLE, 0, 0); errno != 0 {
		return errno
	}
	return nil
}
