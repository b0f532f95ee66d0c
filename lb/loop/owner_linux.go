package loop

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// describeInUse adds to an "address in use" error who listens on the port, as
// far as this process may know.
func describeInUse(err error, port int) error {
	if !errors.Is(err, syscall.EADDRINUSE) || port == 0 {
		return err
	}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		for _, inode := range listeningInodes(table, port) {
			if pid := socketOwner(inode); pid != "" {
				return fmt.Errorf("port %d is held by process %s (%s): %w", port, pid, processName(pid), err)
			}
		}
	}
	return fmt.Errorf("port %d is held by another process: %w", port, err)
}

// listeningInodes reads a table of sockets, as in proc_net_tcp(5).
func listeningInodes(table string, port int) []string {
	f, err := os.Open(table)
	if err != nil {
		return nil
	}
	defer f.Close()
	const listen = "0A"
	suffix := fmt.Sprintf(":%04X", port)
	var inodes []string
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if f := strings.Fields(lines.Text()); len(f) > 9 && f[3] == listen && strings.HasSuffix(f[1], suffix) {
			inodes = append(inodes, f[9])
		}
	}
	return inodes
}

func socketOwner(inode string) (pid string) {
	link := "socket:[" + inode + "]"
	files, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, file := range files {
		if to, err := os.Readlink(file); err == nil && to == link {
			return strings.Split(file, "/")[2]
		}
	}
	return ""
}

func processName(pid string) string {
	if n, err := strconv.Atoi(pid); err == nil && n == os.Getpid() {
		return "this one"
	}
	name, err := os.ReadFile("/proc/" + pid + "/comm")
	if err != nil {
		return "name unknown"
	}
	return strings.TrimSpace(string(name))
}
