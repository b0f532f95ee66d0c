package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// patience bounds every wait of the suite: long enough for a race build on a busy machine, and only ever used up by a failure.
const patience = 60 * time.Second

type worldKey struct{}

// world is what one script has started.
type world struct {
	env      *testscript.Env
	nodes    map[string]*node
	backends map[string]*backend
	loads    map[string]*load
	conns    map[string]*held
}

func newWorld(e *testscript.Env) *world {
	return &world{env: e, nodes: map[string]*node{}, backends: map[string]*backend{}, loads: map[string]*load{}, conns: map[string]*held{}}
}

func worldOf(ts *testscript.TestScript) *world { return ts.Value(worldKey{}).(*world) }

func (w *world) close() {
	for _, l := range w.loads {
		l.stop()
	}
	for _, c := range w.conns {
		c.c.Close()
	}
	for _, n := range w.nodes {
		n.kill()
	}
	for _, b := range w.backends {
		b.stop()
	}
}

// node is one lbd process.
type node struct {
	name   string
	binary string
	args   []string
	log    string     // file with its stderr
	files  []*os.File // listening sockets that the service manager leaves it
	cmd    *exec.Cmd
	ready  chan string // gets the ready line; closed when stderr ends
	done   chan struct{}
	err    error
}

// handed are the ports that this process has given out.
var handed sync.Map

// freeAddress gives out each address once, from below the range in which the kernel picks ports of outgoing connections: there
// another test's connection could take it before a node binds it. No process is forked meanwhile: until it executes its program it
// would hold the listener, too, and the address would still be in use when it is needed.
func freeAddress() (string, error) {
	const lowest, count = 12_000, 20_000
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	for range 1000 {
		port := lowest + rand.IntN(count)
		if _, taken := handed.LoadOrStore(port, true); taken {
			continue
		}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue // somebody else's
		}
		return l.Addr().String(), l.Close()
	}
	return "", errors.New("no free port between 12000 and 32000")
}

// start runs lbd and returns once it has said that it is ready, with how long that took.
func (n *node) start(env []string) (time.Duration, error) {
	begin := time.Now()
	if err := n.begin(env); err != nil {
		return 0, err
	}
	err := n.awaitReady()
	return time.Since(begin), err
}

// begin runs lbd.
func (n *node) begin(env []string) error {
	log, err := os.OpenFile(n.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	n.cmd = exec.Command(filepath.Join(binaries, n.binary), n.args...)
	if len(n.files) > 0 { // the shell has the number that lbd will have
		n.cmd = exec.Command("sh", append([]string{"-c", `LISTEN_PID=$$ exec "$0" "$@"`, n.cmd.Path}, n.args...)...)
		n.cmd.ExtraFiles = n.files
	}
	n.cmd.Env = env
	stderr, err := n.cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := n.cmd.Start(); err != nil {
		return err
	}
	n.ready, n.done = make(chan string, 1), make(chan struct{})
	go n.follow(stderr, log)
	return nil
}

// awaitReady returns once lbd has said that it is ready.
func (n *node) awaitReady() error {
	select {
	case _, ok := <-n.ready:
		if !ok {
			<-n.done
			return fmt.Errorf("lbd ended before it was ready: %v (log: %s)", n.err, n.tail())
		}
		return nil
	case <-time.After(patience):
		n.kill()
		return fmt.Errorf("lbd is not ready after %v (log: %s)", patience, n.tail())
	}
}

func (n *node) follow(stderr io.Reader, log *os.File) {
	defer log.Close()
	said := false
	for s := bufio.NewScanner(stderr); s.Scan(); {
		fmt.Fprintln(log, s.Text())
		if strings.HasPrefix(s.Text(), "lbd ready revision=") && !said {
			said = true
			n.ready <- s.Text()
		}
	}
	close(n.ready)
	n.err = n.cmd.Wait()
	close(n.done)
}

func (n *node) tail() string {
	b, _ := os.ReadFile(n.log)
	if len(b) > 4000 {
		b = b[len(b)-4000:]
	}
	return string(b)
}

func (n *node) alive() bool {
	if n.cmd == nil {
		return false
	}
	select {
	case <-n.done:
		return false
	default:
		return true
	}
}

// signal sends sig and returns the exit error.
func (n *node) signal(sig syscall.Signal) error {
	if err := n.cmd.Process.Signal(sig); err != nil {
		return err
	}
	select {
	case <-n.done:
		return n.err
	case <-time.After(patience):
		return fmt.Errorf("still running %v after %v", patience, sig)
	}
}

func (n *node) kill() {
	if n.alive() {
		_ = n.cmd.Process.Kill()
		<-n.done
	}
}

// backend is an HTTP server that says its name, and can be told to be ill.
type backend struct {
	name, address string
	mu            sync.Mutex
	status        int // of /healthz
	server        *http.Server
}

func (b *backend) start() error {
	l, err := net.Listen("tcp", b.address)
	if err != nil {
		return err
	}
	b.address = l.Addr().String()
	b.server = &http.Server{Handler: http.HandlerFunc(b.serve)}
	go func(s *http.Server) { _ = s.Serve(l) }(b.server)
	return nil
}

func (b *backend) stop() {
	if b.server != nil {
		b.server.Close()
		b.server = nil
	}
}

func (b *backend) serve(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/healthz" {
		b.mu.Lock()
		defer b.mu.Unlock()
		w.WriteHeader(b.status)
		return
	}
	switch {
	case b.misbehave(w, r):
		return
	case r.URL.Path == "/headers":
		headers(w, r)
		return
	}
	body, _ := io.ReadAll(r.Body)
	w.Header().Set("X-Backend", b.name)
	fmt.Fprintf(w, "backend=%s method=%s path=%s host=%s proto=%s for=%s body=%d %s\n", b.name, r.Method, r.URL.RequestURI(), r.Host,
		r.Header.Get("X-Forwarded-Proto"), r.Header.Get("X-Forwarded-For"), len(body), r.Header.Get("X-Echo"))
}
