package main

import "syscall"

// clockError says in words what is wrong with the system's clock; empty: an NTP client keeps it.
func clockError() string {
	var t syscall.Timex
	state, err := syscall.Adjtimex(&t)
	if err != nil {
		return "" // a sandbox may forbid the question
	}
	const notSynchronised, unsynchronised = 5, 0x40 // TIME_ERROR and STA_UNSYNC, adjtimex(2)
	if state == notSynchronised || t.Status&unsynchronised != 0 {
		return "the kernel's clock is not synchronised"
	}
	return ""
}
