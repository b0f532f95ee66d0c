package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// heir prepares a second process on the service's data directory, of the same or another binary.
func (s *service) heir(binary string, environment ...string) *service {
	h := &service{t: s.t, dir: s.dir, env: append(append([]string(nil), s.env...), environment...), address: s.address}
	h.node = &node{name: s.name, binary: binary, args: s.args, log: filepath.Join(s.dir, fmt.Sprintf("lbd-%d.log", time.Now().UnixNano()))}
	return h
}

// ended waits for a process's end and returns how it ended.
func (n *node) ended(t *testing.T) error {
	t.Helper()
	select {
	case <-n.done:
		return n.err
	case <-time.After(patience):
		t.Fatalf("process %d has not ended\n%s", n.cmd.Process.Pid, n.tail())
		return nil
	}
}

// says waits until a process has said something.
func (n *node) says(t *testing.T, pattern string) {
	t.Helper()
	re := regexp.MustCompile(pattern)
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		b, _ := os.ReadFile(n.log)
		if re.Match(b) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %d has not said %q\n%s", n.cmd.Process.Pid, pattern, b)
		}
	}
}

const upgradeDocument = `
api_version: lbd/v1
owner: dev
pools: [{ name: default, backends: [{ address: "BACKEND" }] }]
routes: [{ name: default, listeners: [http, https], forward: { pools: [{ pool: default }] } }]
cluster_settings: { allow_loopback_backends: true, drain: { deadline: DEADLINE } }
`

// serveBackend has the service serve a backend, and give requests that long to end.
func (s *service) serveBackend(address, deadline string) {
	s.t.Helper()
	text := strings.NewReplacer("BACKEND", address, "DEADLINE", deadline).Replace(upgradeDocument)
	s.types("lbctl apply --wait -f - <<'END'\n" + text + "\nEND")
}

// upgradeSteps are those at which an heir of the test build can be made to end.
var upgradeSteps = []string{"welcome", "take", "socket", "yours", "seat", "published", "serves"}

// TestUpgradeFails: whatever becomes of the other lbd before it serves, the one that runs goes on, control plane and all, and no request is lost.
// It gives its place to one that serves afterwards.
func TestUpgradeFails(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	s := newService(t, "lbd", "NOTIFY_SOCKET="+m.path)
	s.begin()
	m.hears("READY=1")
	b := &backend{name: "b1", address: "127.0.0.1:0", status: 200}
	if err := b.start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.stop)
	s.serveBackend(b.address, "20s")
	load := startLoad(100, "http://"+s.address+"/", regexp.MustCompile("backend=b1"))
	t.Cleanup(load.stop)
	for i, step := range upgradeSteps {
		for j, how := range []string{"", "fail:"} {
			h := s.heir("lbd-fault", "LBD_FAULT_UPGRADE="+how+step, "NOTIFY_SOCKET=")
			if _, err := h.start(h.env); err == nil {
				t.Fatalf("%s%s: it serves", how, step)
			}
			if step != "welcome" { // it asks for the seat afterwards
				s.says(t, fmt.Sprintf("(?s)(this process has its place back.*){%d}", 2*i+j-1))
				m.hears("READY=1")
			}
			s.serveBackend(b.address, fmt.Sprintf("%ds", 10+2*i+j)) // writes go on
		}
	}
	h := s.heir("lbd")
	h.begin()
	if said := m.hears("MAINPID="); said != fmt.Sprintf("MAINPID=%d", h.cmd.Process.Pid) {
		t.Errorf("the service manager hears %q of process %d", said, h.cmd.Process.Pid)
	}
	m.hears("READY=1")
	if err := s.ended(t); err != nil {
		t.Errorf("the first one ended with %v\n%s", err, s.tail())
	}
	h.serveBackend(b.address, "1s")
	load.stop()
	if len(load.failures) > 0 || load.ok.Load() == 0 {
		t.Errorf("%d requests failed, the first: %v; %d were answered", len(load.failures), load.failures[:min(1, len(load.failures))], load.ok.Load())
	}
}

// TestUpgradeKeepsConnections: idle connections get one last answer, requests and tunnels under way go on in the old process, through more than one
// upgrade; what is there at the deadline is cut.
func TestUpgradeKeepsConnections(t *testing.T) {
	t.Parallel()
	s := newService(t, "lbd")
	s.begin()
	echo := httptest.NewServer(http.HandlerFunc(echoFrames))
	t.Cleanup(echo.Close)
	s.serveBackend(echo.Listener.Addr().String(), "5s")
	idle, err := hold("http://" + s.address + "/idle")
	if err != nil {
		t.Fatal(err)
	}
	defer idle.c.Close()
	if _, err := idle.get(); err != nil {
		t.Fatal(err)
	}
	tunnel, err := openWebSocket("http://" + s.address + "/tunnel")
	if err != nil {
		t.Fatal(err)
	}
	defer tunnel.c.Close()
	second := s.heir("lbd")
	second.begin()
	third := second.heir("lbd")
	begun := time.Now()
	third.begin()
	third.says(t, `this one takes its place`)
	if _, err := idle.get(); err != nil {
		t.Errorf("an idle connection gets no last answer: %v", err)
	}
	if n, err := idle.c.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("it goes on: %d %v", n, err)
	}
	for !t.Failed() {
		if err := tunnel.say("still here"); err != nil {
			if took := time.Since(begun); took < 3*time.Second {
				t.Errorf("the tunnel was cut off after %v: %v", took, err)
			}
			break
		}
		if time.Since(begun) > patience {
			t.Fatal("the tunnel outlives the deadline")
		}
		time.Sleep(20 * time.Millisecond)
	}
	for _, before := range []*service{s, second} {
		if err := before.ended(t); err != nil {
			t.Errorf("ended with %v\n%s", err, before.tail())
		}
	}
	third.says(t, fmt.Sprintf(`(?s)a process before this one has ended.* pid=%d\n`, s.cmd.Process.Pid))
	if err := third.signal(syscall.SIGTERM); err != nil {
		t.Errorf("%v\n%s", err, third.tail())
	}
}

// TestUpgradeRefused: what cannot be is refused before anything has happened, with the reason; the lbd that runs goes on.
func TestUpgradeRefused(t *testing.T) {
	t.Parallel()
	s := newService(t, "lbd")
	s.begin()
	refused := func(h *service, reason string) {
		t.Helper()
		if _, err := h.start(h.env); err == nil || !strings.Contains(h.tail(), reason) {
			t.Errorf("want %q: %v\n%s", reason, err, h.tail())
		}
		if !s.alive() {
			t.Fatalf("the first one has ended\n%s", s.tail())
		}
		s.types("lbctl status")
		if strings.Contains(s.tail(), "takes this one's place") {
			t.Errorf("%s: something has happened\n%s", reason, s.tail())
		}
	}
	held, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	h := s.heir("lbd")
	h.args = append(append([]string(nil), s.args...), "--control", held.Addr().String())
	refused(h, "--control "+held.Addr().String())
	if err := s.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	h = s.heir("lbd")
	if _, err := h.start(h.env); err == nil || !strings.Contains(h.tail(), "does not answer") {
		t.Errorf("a predecessor that is stopped: %v\n%s", err, h.tail())
	}
	if err := s.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	s.types("lbctl status")
}

// TestUpgradeGate: a build that does not read what the cluster writes gets no place, and does not start on its data either.
func TestUpgradeGate(t *testing.T) {
	t.Parallel()
	control, err := freeAddress()
	if err != nil {
		t.Fatal(err)
	}
	s := newService(t, "lbd", "LBD_CONTROL="+control)
	s.begin()
	h := s.heir("lbd-next")
	h.begin()
	if err := s.ended(t); err != nil {
		t.Errorf("%v\n%s", err, s.tail())
	}
	h.says(t, "a note of gate 2 is in the log")
	h.types("lbctl audit | grep 'a note of gate 2'")
	older := h.heir("lbd")
	if _, err := older.start(older.env); err == nil || !strings.Contains(older.tail(), "builds of gate 2 read") {
		t.Errorf("an older build beside it: %v\n%s", err, older.tail())
	}
	if err := h.signal(syscall.SIGTERM); err != nil {
		t.Errorf("%v\n%s", err, h.tail())
	}
	if _, err := older.start(older.env); err == nil || !strings.Contains(older.tail(), "entries of gate 2") {
		t.Errorf("an older build afterwards: %v\n%s", err, older.tail())
	}
	again := h.heir("lbd-next")
	again.begin()
	again.types("lbctl audit | grep 'a note of gate 2'")
}

// tunnel opens a WebSocket that is this process's, and not the one's before it, which accepts for a moment after this one serves.
func (s *service) tunnel() *webSocket {
	s.t.Helper()
	for deadline := time.Now().Add(patience); ; {
		tunnel, err := openWebSocket("http://" + s.address + "/tunnel")
		if err != nil {
			s.t.Fatal(err)
		}
		s.t.Cleanup(func() { tunnel.c.Close() })
		if strings.Contains(s.types("lbctl connections list"), "tunnel") {
			return tunnel
		}
		tunnel.c.Close()
		if time.Now().After(deadline) {
			s.t.Fatal("no tunnel is the new process's")
		}
	}
}

// TestUpgradeGenerations: so many old processes may be at their end, and no more.
func TestUpgradeGenerations(t *testing.T) {
	t.Parallel()
	s := newService(t, "lbd-plain")
	s.begin()
	echo := httptest.NewServer(http.HandlerFunc(echoFrames))
	t.Cleanup(echo.Close)
	s.serveBackend(echo.Listener.Addr().String(), "60s")
	var all []*webSocket
	var before []*service
	now := s
	for range 4 {
		all, before = append(all, now.tunnel()), append(before, now)
		now = now.heir("lbd-plain")
		now.begin()
	}
	one := now.heir("lbd-plain")
	if _, err := one.start(one.env); err == nil || !strings.Contains(one.tail(), "4 processes before it still end their requests") {
		t.Errorf("one more: %v\n%s", err, one.tail())
	}
	for i, tunnel := range all {
		if err := tunnel.say("still here"); err != nil {
			t.Errorf("the tunnel of process %d: %v", i, err)
		}
	}
	all[0].c.Close()
	if err := before[0].ended(t); err != nil {
		t.Errorf("the oldest ended with %v\n%s", err, before[0].tail())
	}
	now.says(t, fmt.Sprintf(`a process before this one has ended.* pid=%d\n`, before[0].cmd.Process.Pid))
	one = now.heir("lbd-plain")
	one.begin()
}

// TestUpgradeElsewhere: the heir has the ports that it is told, and gives the others up.
func TestUpgradeElsewhere(t *testing.T) {
	t.Parallel()
	var addresses []string
	for range 3 {
		address, err := freeAddress()
		if err != nil {
			t.Fatal(err)
		}
		addresses = append(addresses, address)
	}
	s := newService(t, "lbd", "LBD_CONTROL="+addresses[0])
	s.begin()
	h := s.heir("lbd", "LBD_CONTROL="+addresses[1])
	h.args = append([]string(nil), s.args...)
	for i, arg := range h.args {
		if arg == "http="+s.address {
			h.args[i] = "http=" + addresses[2]
		}
	}
	h.begin()
	if err := s.ended(t); err != nil {
		t.Errorf("%v\n%s", err, s.tail())
	}
	for _, address := range addresses[1:] {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatalf("%v\n%s", err, h.tail())
		}
		c.Close()
	}
	for _, address := range []string{s.address, addresses[0]} {
		if c, err := net.Dial("tcp", address); err == nil {
			c.Close()
			t.Errorf("%s still takes connections", address)
		}
	}
}

// TestDetach: it returns when the node serves, in whoever's place, or has ended without.
func TestDetach(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	s := newService(t, "lbd", "NOTIFY_SOCKET="+m.path)
	s.begin()
	m.hears("READY=1")
	h := s.heir("lbd", "NOTIFY_SOCKET=")
	run := "lbd " + strings.Join(s.args, " ") + " --detach"
	h.types(run + " >said 2>&1") // a pipe would have a writer for as long as the node runs
	if err := s.ended(t); err != nil {
		t.Errorf("%v\n%s", err, s.tail())
	}
	said := m.hears("MAINPID=")
	m.hears("READY=1")
	h.types("lbctl status")
	h.types("! " + run + " --control " + s.address + " >said 2>&1; grep 'the node has ended before it served' said") // that is a listener's
	pid, err := strconv.Atoi(strings.TrimPrefix(said, "MAINPID="))
	if err != nil {
		t.Fatalf("%q: %v", said, err)
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	m.hears("STOPPING=1")
	for deadline := time.Now().Add(patience); syscall.Kill(pid, 0) == nil; time.Sleep(10 * time.Millisecond) {
		if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err != nil || strings.Contains(string(b), ") Z ") {
			break // nobody waits for it here
		}
		if time.Now().After(deadline) {
			t.Fatal("the process in the background has not ended")
		}
	}
}
