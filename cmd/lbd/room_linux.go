package main

import "syscall"

// diskRoom is how many bytes of a directory's disk are free to this user, and how many there are.
func diskRoom(dir string) (free, all uint64, ok bool) {
	var s syscall.Statfs_t
	if syscall.Statfs(dir, &s) != nil {
		return 0, 0, false
	}
	return s.Bavail * uint64(s.Bsize), s.Blocks * uint64(s.Bsize), true
}
