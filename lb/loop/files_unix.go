//go:build unix

package loop

import (
	"fmt"
	"syscall"
)

// RaiseOpenFiles raises the soft limit of open files to the hard limit and
// returns it. Go's runtime does so too at start, but restores the old limit in
// child processes; after this call they have the new one.
func RaiseOpenFiles() (uint64, error) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("read limit of open files: %w", err)
	}
	limit.Cur = limit.Max
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("raise limit of open files to %d: %w", limit.Max, err)
	}
	return uint64(limit.Cur), nil
}
