// Package node starts one lbd as a process of its own, in front of a backend in this one, for programs that measure it.
package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// readyTimeout bounds the wait for lbd's ready line, and for its end.
const readyTimeout = 30 * time.Second

// Node is a running lbd in development mode. The document that it serves names its listeners http and https.
type Node struct {
	HTTP, HTTPS string // HOST:PORT of the two listeners

	dir     string
	lbd     *process
	backend *http.Server
	open    atomic.Int64 // connections that the backend has
}

// backendSendBytes is what the kernel keeps of an answer that the backend has written, as over a network. By default it would take a
// megabyte at once over loopback, and a thousand large answers would keep both cores busy with copying and with finding pages for it.
const backendSendBytes = 64 << 10

// Build makes lbd and lbctl of this tree, in dir.
func Build(ctx context.Context, dir string) error {
	return run(exec.CommandContext(ctx, "go", "build", "-o", dir+string(filepath.Separator), "lbd/cmd/lbd", "lbd/cmd/lbctl"))
}

// Start runs the lbd in the folder bin, applies the document and waits until it is served. The word BACKEND in the document
// becomes the address of a backend that answers /N with N bytes. Words before go before lbd's command line: taskset, for example.
func Start(ctx context.Context, bin, document string, before ...string) (*Node, error) {
	n := &Node{}
	err := n.start(ctx, bin, document, before)
	if err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

func (n *Node) start(ctx context.Context, bin, document string, before []string) (err error) {
	if n.dir, err = os.MkdirTemp("", "lbd-bench-"); err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	n.backend = &http.Server{Handler: http.HandlerFunc(serve), ConnState: n.count}
	go func() { _ = n.backend.Serve(l) }()
	for _, address := range []*string{&n.HTTP, &n.HTTPS} {
		if *address, err = FreeAddress("127.0.0.1"); err != nil {
			return err
		}
	}
	if n.lbd, err = n.begin(ctx, bin, before); err != nil {
		return err
	}
	apply := exec.CommandContext(ctx, filepath.Join(bin, "lbctl"), "apply", "-f", "-", "--wait")
	apply.Env = append(os.Environ(), "LBCTL_ENDPOINTS=unix:"+filepath.Join(n.dir, "control.sock"))
	apply.Stdin = strings.NewReader(strings.ReplaceAll(document, "BACKEND", l.Addr().String()))
	return run(apply)
}

// Close ends lbd and the backend, and takes away what they have left.
func (n *Node) Close() error {
	if n.lbd != nil {
		_ = n.lbd.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		kill := time.AfterFunc(readyTimeout, func() { _ = n.lbd.cmd.Process.Kill() })
		<-n.lbd.ended // how it ends after measuring does not matter
		kill.Stop()
	}
	if n.backend != nil {
		_ = n.backend.Close() // the process is about to end
	}
	if n.dir == "" {
		return nil
	}
	return errors.Join(os.RemoveAll(n.dir), os.RemoveAll(n.log()))
}

// Resident returns the resident memory of lbd in bytes.
func (n *Node) Resident() (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.lbd.pid()))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	kib, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
	v, err := strconv.ParseInt(kib, 10, 64)
	return v << 10, err
}

// Files returns how many files and sockets lbd has open, those to the backend not counted. It is a cheap question, unlike one for
// the kernel's table of connections, whose answer takes a core 20 ms.
func (n *Node) Files() (int, error) {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", n.lbd.pid()))
	return len(entries) - int(n.open.Load()), err
}

// count follows the backend's connections.
func (n *Node) count(c net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		_ = c.(*net.TCPConn).SetWriteBuffer(backendSendBytes) // it would only send more at once
		n.open.Add(1)
	case http.StateClosed, http.StateHijacked:
		n.open.Add(-1)
	}
}

// serve answers /N with N bytes, and reads what it is sent.
func serve(w http.ResponseWriter, r *http.Request) {
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return
	}
	size, _ := strconv.Atoi(strings.Trim(r.URL.Path, "/")) // anything else is answered with nothing
	w.Header().Set("Content-Length", strconv.Itoa(size))
	piece := make([]byte, 32<<10)
	for size > 0 {
		k, err := w.Write(piece[:min(size, len(piece))])
		if err != nil {
			return
		}
		size -= k
	}
}

func run(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, out)
	}
	return nil
}
