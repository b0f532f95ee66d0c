//go:build linux

package netnstest_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// diskSize is enough for what a node writes here.
	diskSize = "size=64m"
	// illFor is how long a disk is full, or stalled.
	illFor = 4 * time.Second
)

func TestDisks(t *testing.T) {
	t.Parallel()
	startCluster(t, 3, 0, true).run(
		faultCase{"full disk of a follower", func(c *cluster, t *testing.T) { c.fillDisk(t, c.follower(t)) }},
		faultCase{"full disk of the leader", func(c *cluster, t *testing.T) { c.fillDisk(t, c.leader(t)) }},
		faultCase{"stalled disk of a follower", func(c *cluster, t *testing.T) { c.stallDisk(t, c.follower(t)) }},
		faultCase{"stalled disk of the leader", func(c *cluster, t *testing.T) { c.stallDisk(t, c.leader(t)) }},
	)
}

// mountDisk gives the node's data a file system of its own.
func (n *node) mountDisk() {
	n.c.t.Helper()
	err := os.Mkdir(n.data, 0o700)
	if err == nil {
		err = unix.Mount("disk", n.data, "tmpfs", 0, diskSize+",mode=700")
	}
	if err != nil {
		n.c.t.Fatal(err)
	}
	n.c.t.Cleanup(func() { _ = unix.Unmount(n.data, unix.MNT_DETACH) })
}

// fillDisk takes all the room that a node has. Traffic goes on everywhere, and writes by whoever has room; the node says what ails it.
func (c *cluster) fillDisk(t *testing.T, n *node) {
	t.Helper()
	filler := filepath.Join(n.data, "filler")
	f, err := os.Create(filler)
	if err != nil {
		t.Fatal(err)
	}
	for size := 1 << 20; size > 0; {
		if _, err := f.Write(make([]byte, size)); errors.Is(err, syscall.ENOSPC) {
			size /= 2
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	c.says(t, n, "no space left on device")
	c.writer.only(c.others(n)...)
	t.Logf("writes by the others resumed after %v", c.writer.resumed(t, begin))
	c.writer.only()
	c.during(t, illFor)
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
}

// says waits until the node's own status names what is wrong.
func (c *cluster) says(t *testing.T, n *node, words string) {
	t.Helper()
	eventually(t, n.name+"'s status says "+words, func() (bool, string) {
		stdout, stderr, code := n.lbctl("status", "--timeout", "5s")
		return code == 1 && strings.Contains(stdout, words), fmt.Sprintf("exit %d\n%s%s", code, stdout, stderr)
	})
}

// stallDisk lets each write of a node's log take longer than the test lasts.
func (c *cluster) stallDisk(t *testing.T, n *node) {
	t.Helper()
	heal := stall(t, n.proc.Pid(), filepath.Join(n.data, "raft.db"))
	begin := time.Now()
	c.says(t, n, "the disk has not answered")
	c.writer.only(c.others(n)...)
	t.Logf("writes by the others resumed after %v", c.writer.resumed(t, begin))
	c.writer.only()
	c.during(t, illFor)
	heal()
}

// stall lets strace hold up each of a process's writes to a file for ten seconds, until heal is called.
func stall(t *testing.T, pid int, file string) (heal func()) {
	t.Helper()
	cmd := exec.Command("strace", "-f", "-o", "/dev/null", "-e", "trace=fdatasync", "-e", "inject=fdatasync:delay_exit=10000000", "-P", file, "-p", fmt.Sprint(pid))
	stderr, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stderr)
	for attached := false; !attached; {
		if !lines.Scan() {
			t.Fatalf("strace ended: %v", cmd.Wait())
		}
		attached = strings.Contains(lines.Text(), "attached")
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, stderr)
		_ = cmd.Wait() // it ends by the signal
	}()
	heal = sync.OnceFunc(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-ended
	})
	t.Cleanup(heal)
	return heal
}
