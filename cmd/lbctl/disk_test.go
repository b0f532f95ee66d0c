package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	lbdv1 "lbd/proto/lbd/v1"
)

// patient is a node whose disk is made ill while clients ask it for pages.
type patient struct {
	t       *testing.T
	node    *node
	data    string
	address string
	acks    *acknowledged
	conn    *grpc.ClientConn

	stop     chan struct{}
	clients  sync.WaitGroup
	answered atomic.Int64
	failed   chan error // gets the first failures of clients
}

// newPatient starts a node over a data directory, with a first change that is acknowledged, and clients.
func newPatient(t *testing.T, data string) *patient {
	t.Helper()
	address, err := freeAddress()
	if err != nil {
		t.Fatal(err)
	}
	p := &patient{t: t, data: data, address: address, acks: &acknowledged{hashes: map[int64]string{}}, stop: make(chan struct{}), failed: make(chan error, 100)}
	p.node = &node{name: "ill", binary: "lbd-plain", log: filepath.Join(t.TempDir(), "log"), args: []string{
		"run", "--dev", "--data-dir", data, "--node", "ill", "--listen", "https=" + address, "--listen", "http=127.0.0.1:0", "--metrics", "off",
	}}
	t.Cleanup(p.node.kill)
	p.start()
	if err := p.change(); err != nil {
		t.Fatal(err)
	}
	p.clients.Go(func() { p.ask(true) })
	p.clients.Go(func() { p.ask(false) })
	return p
}

func (p *patient) start() {
	p.t.Helper()
	if _, err := p.node.start(append(os.Environ(), "LBD_CONTROL=off")); err != nil {
		p.t.Fatal(err)
	}
	conn, err := grpc.NewClient("unix:"+filepath.Join(p.data, "control.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { conn.Close() })
	p.conn = conn
}

// ask is a client that asks until it is stopped: over one connection, or over a new one each time.
func (p *patient) ask(keep bool) {
	var h *held
	defer func() {
		if h != nil {
			h.c.Close()
		}
	}()
	for {
		select {
		case <-p.stop:
			return
		default:
		}
		var err error
		if h == nil {
			h, err = hold("https://" + p.address + "/")
		}
		if err == nil {
			_, err = h.get()
		}
		if err != nil {
			select {
			case p.failed <- err:
			default:
			}
		}
		if h != nil && (err != nil || !keep) {
			h.c.Close()
			h = nil
		}
		p.answered.Add(1)
	}
}

// change applies one more revision; only when it is acknowledged it counts.
func (p *patient) change() error {
	revision, err := applyCount(context.Background(), lbdv1.NewConfigServiceClient(p.conn), p.acks.last+1)
	if err == nil {
		p.acks.last++
		p.acks.hashes[revision] = ""
	}
	return err
}

// refused changes until one is refused, for the given reason.
func (p *patient) refused(reason string) {
	p.t.Helper()
	for begin := time.Now(); ; {
		err := p.change()
		if err == nil && time.Since(begin) < patience {
			continue
		}
		if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), reason) {
			p.t.Fatalf("a change: %v, want it unavailable because of %q", err, reason)
		}
		return
	}
}

// eventually waits for what other processes bring about.
func (p *patient) eventually(what string, ok func() bool) {
	p.t.Helper()
	for begin := time.Now(); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Since(begin) > patience {
			p.t.Fatalf("never: %s (log: %s)", what, p.node.tail())
		}
	}
}

// status is what lbctl status says, and its exit code.
func (p *patient) status() (string, int) {
	cmd := exec.Command(filepath.Join(binaries, "lbctl"), "status")
	cmd.Env = append(os.Environ(), "LBCTL_ENDPOINTS=unix:"+filepath.Join(p.data, "control.sock"))
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		p.t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// ill waits until status says so, naming the file.
func (p *patient) ill(words ...string) {
	p.t.Helper()
	p.eventually(fmt.Sprintf("status names %q", words), func() bool {
		text, code := p.status()
		for _, word := range words {
			if !strings.Contains(text, word) {
				return false
			}
		}
		return code == exitNo
	})
}

// recovered waits until changes are taken again and status is content; then it stops the clients, none of whom has noticed
// anything, kills the node, and looks for all that was acknowledged.
func (p *patient) recovered() {
	p.t.Helper()
	p.eventually("changes are taken again", func() bool { return p.change() == nil })
	p.eventually("status is content", func() bool { _, code := p.status(); return code == exitOK })
	close(p.stop)
	p.clients.Wait()
	close(p.failed)
	for err := range p.failed {
		p.t.Errorf("a client: %v", err)
	}
	if n := p.answered.Load(); n < 20 {
		p.t.Errorf("clients asked only %d times", n)
	}
	p.node.kill()
	p.conn.Close()
	p.start()
	checkKept(p.t, p.conn, p.acks, p.address)
}

// TestFullDisk fills the file system of a node's data under load.
func TestFullDisk(t *testing.T) {
	if !apart(t) {
		return
	}
	data := t.TempDir()
	if err := syscall.Mount("tmpfs", data, "tmpfs", 0, "size=16m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(data, syscall.MNT_DETACH) }) // the namespace's end does it, too
	p := newPatient(t, data)
	filler := filepath.Join(data, "filler")
	fill(t, filler)
	p.refused("no space left on device")
	p.ill("no space left on device", data)
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	p.recovered()

	// A start needs no room, either.
	fill(t, filler)
	p.node.kill()
	p.start()
	checkKept(t, p.conn, p.acks, p.address)
}

// fill takes all the room that a file system has left.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size := 1 << 20; size > 0; {
		if _, err := f.Write(make([]byte, size)); errors.Is(err, syscall.ENOSPC) {
			size /= 2
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// TestFailingDisk makes the kernel answer a running node's writes with errors, one file after the other.
func TestFailingDisk(t *testing.T) {
	if !apart(t) {
		return
	}
	for _, c := range []struct{ name, file, inject, reason string }{
		{"log EIO", "raft.db", "fdatasync:error=EIO", "input/output error"},
		{"log ENOSPC", "raft.db", "pwrite64:error=ENOSPC", "no space left on device"},
		{"state EIO", "state.db", "fdatasync:error=EIO", "input/output error"},
		{"state ENOSPC", "state.db", "pwrite64:error=ENOSPC", "no space left on device"},
		{"all EIO", "", "fsync,fdatasync,pwrite64,ftruncate:error=EIO", "input/output error"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := newPatient(t, t.TempDir())
			heal := p.inject(c.file, c.inject)
			p.refused(c.reason)
			p.ill(c.reason, cmp.Or(c.file, "raft.db"))
			heal()
			p.recovered()
		})
	}
}

// TestRemovedFile takes a file away under a running node: what nobody would find again is not acknowledged. Put back, it is as good as
// before.
func TestRemovedFile(t *testing.T) {
	for _, file := range []string{"raft.db", "state.db"} {
		t.Run(file, func(t *testing.T) {
			p := newPatient(t, t.TempDir())
			path := filepath.Join(p.data, file)
			if err := os.Rename(path, path+".away"); err != nil {
				t.Fatal(err)
			}
			p.refused("removed or replaced")
			p.ill("removed or replaced", file)
			if err := os.Rename(path+".away", path); err != nil {
				t.Fatal(err)
			}
			p.recovered()
		})
	}
}

// TestStalledDisk lets each write of a file take ten seconds to reach the disk.
func TestStalledDisk(t *testing.T) {
	if !apart(t) {
		return
	}
	for _, file := range []string{"raft.db", "state.db"} {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			p := newPatient(t, t.TempDir())
			heal := p.inject(file, "fdatasync:delay_exit=10000000")
			done := make(chan error, 1)
			go func() { done <- p.change() }()
			p.ill("the disk has not answered", file)
			if err := <-done; err != nil && (status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), file)) {
				t.Errorf("a change: %v, want it done, or unavailable because of the disk", err)
			}
			heal()
			p.recovered()
		})
	}
}

// inject lets strace tamper with the node's calls on a file ("": on all) until heal is called.
func (p *patient) inject(file, what string) (heal func()) {
	p.t.Helper()
	calls, _, _ := strings.Cut(what, ":")
	args := []string{"-f", "-o", "/dev/null", "-e", "trace=" + calls, "-e", "inject=" + what}
	if file != "" {
		args = append(args, "-P", filepath.Join(p.data, file))
	}
	cmd := exec.Command("strace", append(args, "-p", fmt.Sprint(p.node.cmd.Process.Pid))...)
	stderr, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		p.t.Fatal(err)
	}
	lines := bufio.NewScanner(stderr)
	for attached := false; !attached; {
		if !lines.Scan() {
			p.t.Fatalf("strace ended: %v", cmd.Wait())
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
	p.t.Cleanup(heal)
	return heal
}

// TestDamagedFiles is a sample of package cluster's tests through the program: it ends with exit code 1, the path and the
// remedy, and it leaves the files as they are.
func TestDamagedFiles(t *testing.T) {
	good := t.TempDir()
	p := newPatient(t, good)
	close(p.stop)
	p.clients.Wait()
	if err := p.node.signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	everyPage := func(file string) string {
		b, err := os.ReadFile(filepath.Join(good, file))
		if err != nil {
			t.Fatal(err)
		}
		for at := 0; at < len(b); at += os.Getpagesize() {
			b[at+9] ^= 0xff
		}
		return string(b)
	}
	cut := func(file string) string {
		b, err := os.ReadFile(filepath.Join(good, file))
		if err != nil {
			t.Fatal(err)
		}
		return string(b[:2*os.Getpagesize()])
	}
	for _, c := range []struct{ name, file, content string }{
		{"state flipped", "state.db", everyPage("state.db")},
		{"state cut off", "state.db", cut("state.db")},
		{"state empty", "state.db", ""},
		{"state lost", "state.db", "-"},
		{"log flipped", "raft.db", everyPage("raft.db")},
		{"log cut off", "raft.db", cut("raft.db")},
		{"log lost", "raft.db", "-"},
		{"votes flipped", "votes", everyPage("votes")},
		{"votes lost", "votes", "-"},
		{"name garbled", "node-id", "?"},
	} {
		dir := filepath.Join(t.TempDir(), "data")
		copyFiles(t, good, dir)
		path := filepath.Join(dir, c.file)
		err := os.WriteFile(path, []byte(c.content), 0o600)
		if c.content == "-" {
			err = os.Remove(path)
		}
		if err != nil {
			t.Fatal(err)
		}
		before := files(t, dir)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		cmd := exec.CommandContext(ctx, filepath.Join(binaries, "lbd-plain"), "run", "--dev", "--data-dir", dir, "--node", "ill", "--listen", "https=127.0.0.1:0", "--listen", "http=127.0.0.1:0", "--metrics", "off")
		cmd.Env = append(os.Environ(), "LBD_CONTROL=off")
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != 1 || !regexp.MustCompile(`open `+regexp.QuoteMeta(path)+`: .*: put the data directory back from a copy`).Match(out) {
			t.Errorf("%s: %v\n%s", c.name, err, out)
		}
		if bytes.Contains(out, []byte("goroutine ")) || bytes.Contains(out, []byte("lbd ready")) {
			t.Errorf("%s: it panicked or began anew:\n%s", c.name, out)
		}
		if after := files(t, dir); after != before {
			t.Errorf("%s: the directory was\n%s\nand is\n%s", c.name, before, after)
		}
	}
}

// copyFiles copies the files of a directory, but no sockets.
func copyFiles(t *testing.T, from, to string) {
	t.Helper()
	err := fs.WalkDir(os.DirFS(from), ".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			return os.MkdirAll(filepath.Join(to, path), 0o700)
		case !d.Type().IsRegular():
			return nil
		}
		b, err := os.ReadFile(filepath.Join(from, path))
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, path), b, 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// files lists the names in a directory with their sizes; the lock comes and goes.
func files(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		if e.Name() != "lock" && !e.IsDir() {
			fmt.Fprintf(&b, "%s %d\n", e.Name(), info.Size())
		}
	}
	return b.String()
}
