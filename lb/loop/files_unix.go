//go:build unix

package loop

import (
	"fmt"
	"os"
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

// OpenFiles returns the limit of open files in force and, where the system tells (Linux), how many are open; else 0.
func OpenFiles() (limit, used uint64) {
	var l syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l) == nil {
		limit = uint64(l.Cur)
	}
	if dir, err := os.Open("/proc/self/fd"); err == nil {
		defer dir.Close()
		names, _ := dir.Readdirnames(-1)
		used = uint64(len(names))
	}
	return limit, used
}
