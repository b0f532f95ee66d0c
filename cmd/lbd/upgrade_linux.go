package main

import (
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// whoKnocks is the process at the other end and the user that it runs as, as the kernel says.
func whoKnocks(c *net.UnixConn) (pid int, uid uint32, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, 0, err
	}
	var cred *syscall.Ucred
	controlErr := raw.Control(func(fd uintptr) {
		cred, err = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	})
	if controlErr != nil {
		return 0, 0, controlErr
	}
	if err != nil {
		return 0, 0, os.NewSyscallError("getsockopt", err)
	}
	return int(cred.Pid), cred.Uid, nil
}

// sameService tells whether a process is in this one's control group, or below it. What cannot be found out is taken for true: then the service
// manager judges.
func sameService(pid int) bool {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return true
	}
	other, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		return true
	}
	return strings.HasPrefix(serviceGroup(string(other)), serviceGroup(string(own)))
}

// serviceGroup is the group in which systemd keeps a process: the one of its own hierarchy, or of the only one that there is (cgroups(7)).
func serviceGroup(text string) (path string) {
	for line := range strings.Lines(text) {
		_, group, _ := strings.Cut(strings.TrimSpace(line), ":")
		if own, ok := strings.CutPrefix(group, "name=systemd:"); ok {
			return strings.TrimSuffix(own, "/") + "/"
		}
		if only, ok := strings.CutPrefix(group, ":"); ok {
			path = strings.TrimSuffix(only, "/") + "/"
		}
	}
	return path
}
