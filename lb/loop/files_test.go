//go:build unix

package loop

import (
	"syscall"
	"testing"
)

func TestRaiseOpenFiles(t *testing.T) {
	var before, after syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	defer syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before)
	low := before
	low.Cur = before.Max / 2
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	n, err := RaiseOpenFiles()
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &after); err != nil {
		t.Fatal(err)
	}
	if uint64(after.Cur) != n || after.Cur != before.Max {
		t.Fatalf("returned %d, soft limit %d, hard limit %d", n, after.Cur, before.Max)
	}
}
