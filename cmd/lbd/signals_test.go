package main

import (
	"os"
	"os/signal"
	"slices"
	"syscall"
	"testing"
)

// TestHangup: a service does not end by what asks others to read their files again; a dev node ends with its terminal.
func TestHangup(t *testing.T) {
	t.Cleanup(func() { signal.Reset(syscall.SIGHUP) })
	if !slices.Contains(endSignals(true), os.Signal(syscall.SIGHUP)) {
		t.Error("a dev node outlives its terminal")
	}
	if slices.Contains(endSignals(false), os.Signal(syscall.SIGHUP)) || !signal.Ignored(syscall.SIGHUP) {
		t.Error("SIGHUP ends a service")
	}
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil { // whoever reads this lives
		t.Fatal(err)
	}
}
