package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// manager is what a node of these tests takes for the service manager.
type manager struct {
	t    *testing.T
	conn *net.UnixConn
	path string
}

func newManager(t *testing.T) *manager {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &manager{t, conn, path}
}

// hears waits for a message with these words; others before it are passed over.
func (m *manager) hears(words string) string {
	m.t.Helper()
	message, ok := m.hearsWithin(words, patience)
	if !ok {
		m.t.Fatalf("nobody says %q", words)
	}
	return message
}

func (m *manager) hearsWithin(words string, limit time.Duration) (string, bool) {
	m.t.Helper()
	if err := m.conn.SetReadDeadline(time.Now().Add(limit)); err != nil {
		m.t.Fatal(err)
	}
	b := make([]byte, 4096)
	for {
		n, err := m.conn.Read(b)
		if os.IsTimeout(err) {
			return "", false
		}
		if err != nil {
			m.t.Fatal(err)
		}
		if strings.Contains(string(b[:n]), words) {
			return string(b[:n]), true
		}
	}
}

// service is a node as a service manager starts it.
type service struct {
	*node
	t       *testing.T
	dir     string
	env     []string
	address string // of the listener http
}

// newService prepares a dev node with more in its environment; begin starts it.
func newService(t *testing.T, binary string, environment ...string) *service {
	t.Helper()
	address, err := freeAddress()
	if err != nil {
		t.Fatal(err)
	}
	secure, err := freeAddress()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	s := &service{t: t, dir: dir, address: address}
	s.env = slices.Concat(os.Environ(), []string{
		"PATH=" + binaries + string(filepath.ListSeparator) + os.Getenv("PATH"), "LBCTL_ENDPOINTS=unix:" + filepath.Join(data, "control.sock"),
	}, environment)
	s.node = &node{name: "edge-1", binary: binary, log: filepath.Join(dir, "lbd.log"), args: []string{
		"run", "--dev", "--node", "edge-1", "--data-dir", data, "--metrics", "off", "--listen", "http=" + address, "--listen", "https=" + secure,
	}}
	return s
}

func (s *service) begin() {
	s.t.Helper()
	if _, err := s.start(s.env); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(s.kill)
}

// types runs commands in a shell, each of which must succeed.
func (s *service) types(commands string) string {
	s.t.Helper()
	cmd := exec.Command("bash", "-ec", commands)
	cmd.Dir, cmd.Env = s.dir, s.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.t.Fatalf("%s: %v\n%s\n%s", commands, err, out, s.tail())
	}
	return string(out)
}

// TestServiceManager is what a service manager hears in a node's life.
func TestServiceManager(t *testing.T) {
	m := newManager(t)
	s := newService(t, "lbd", "NOTIFY_SOCKET="+m.path, "WATCHDOG_USEC=2000000")
	s.begin()
	if said := m.hears("READY=1"); !strings.Contains(said, "STATUS=serves revision 1") {
		t.Errorf("ready: %q", said)
	}
	m.hears("WATCHDOG=1")
	s.types("lbctl init --backend 127.0.0.1:1 | lbctl apply -f -")
	m.hears("STATUS=serves revision 2")
	m.hears("WATCHDOG=1")
	if err := s.signal(syscall.SIGTERM); err != nil {
		t.Fatalf("%v\n%s", err, s.tail())
	}
	m.hears("STOPPING=1")
}

// TestServiceManagerUnheard: a service manager that is gone is no reason not to serve, and another process's watchdog is none of ours.
func TestServiceManagerUnheard(t *testing.T) {
	s := newService(t, "lbd", "NOTIFY_SOCKET="+filepath.Join(t.TempDir(), "nobody"))
	s.begin()
	if !strings.Contains(s.tail(), "the service manager cannot be told") {
		t.Errorf("it is not told: %s", s.tail())
	}
	s.kill()
	m := newManager(t)
	s = newService(t, "lbd", "NOTIFY_SOCKET="+m.path, "WATCHDOG_USEC=200000", "WATCHDOG_PID=1")
	s.begin()
	m.hears("READY=1")
	if _, told := m.hearsWithin("WATCHDOG=1", 500*time.Millisecond); told {
		t.Error("another process's watchdog is told")
	}
}

// TestWatchdogOfAStuckNode: while what publishes revisions hangs, no watchdog hears that the node is alive.
func TestWatchdogOfAStuckNode(t *testing.T) {
	m := newManager(t)
	fault := filepath.Join(t.TempDir(), "fault")
	s := newService(t, "lbd-fault", "NOTIFY_SOCKET="+m.path, "WATCHDOG_USEC=1000000", "LBD_FAULT="+fault)
	s.begin()
	m.hears("WATCHDOG=1")
	if err := os.WriteFile(fault, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	document := "api_version: lbd/v1\nowner: web\nroutes: [{ name: hang-one, listeners: [http], respond: { status: 204 } }]\n"
	if err := os.WriteFile(filepath.Join(s.dir, "hang.yaml"), []byte(document), 0o600); err != nil {
		t.Fatal(err)
	}
	s.types("lbctl apply -f hang.yaml")
	for deadline := time.Now().Add(patience); ; {
		if _, alive := m.hearsWithin("WATCHDOG=1", 2*time.Second); !alive {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("a node that hangs says that it is alive")
		}
	}
	if out := s.types("curl -s -o /dev/null -w '%{http_code}' http://" + s.address); out != "200" {
		t.Errorf("meanwhile it answers %s", out)
	}
	if err := os.Remove(fault); err != nil {
		t.Fatal(err)
	}
	m.hears("WATCHDOG=1")
}

// wraps makes a shell script of the node's binary: BINARY in it is where that is.
func (s *service) wraps(script string) {
	s.t.Helper()
	path := filepath.Join(s.dir, "started-by")
	text := "#!/bin/sh\n" + strings.ReplaceAll(script, "BINARY", filepath.Join(binaries, s.binary)) + "\n"
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		s.t.Fatal(err)
	}
	relative, err := filepath.Rel(binaries, path)
	if err != nil {
		s.t.Fatal(err)
	}
	s.binary = relative
}

// TestProcessIsClosed: no core, no memory for others of the same user, no further rights. Of root's processes the system does not show it:
// they run as nobody here.
func TestProcessIsClosed(t *testing.T) {
	s := newService(t, "lbd-plain")
	if os.Geteuid() == 0 {
		const nobody = 65534
		own := filepath.Join(s.dir, "lbd")
		s.types("cp " + filepath.Join(binaries, s.binary) + " " + own + "; chmod 755 " + own)
		if err := errors.Join(os.Chmod(filepath.Dir(s.dir), 0o711), os.Chown(s.dir, nobody, nobody)); err != nil {
			t.Fatal(err)
		}
		s.wraps(fmt.Sprintf(`exec setpriv --reuid %[1]d --regid %[1]d --clear-groups %[2]s "$@"`, nobody, own))
	}
	s.begin()
	pid := strconv.Itoa(s.cmd.Process.Pid)
	info, err := os.Stat(filepath.Join("/proc", pid, "mem"))
	if err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join("/proc", pid, "status")); err != nil || strings.Contains(string(text), "Uid:\t0\t") {
		t.Fatalf("it runs as root: %v", err)
	}
	if uid := info.Sys().(*syscall.Stat_t).Uid; uid != 0 {
		t.Errorf("/proc/%s/mem belongs to %d: the process can be dumped", pid, uid)
	}
	tasks, err := os.ReadDir(filepath.Join("/proc", pid, "task"))
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		text, err := os.ReadFile(filepath.Join("/proc", pid, "task", task.Name(), "status"))
		if err != nil {
			continue // a thread that has ended
		}
		if !strings.Contains(string(text), "NoNewPrivs:\t1\n") {
			t.Errorf("thread %s may gain rights", task.Name())
		}
	}
}

// unit is the example, as NAME=VALUE lines.
func unit(t *testing.T) (text string, values map[string][]string) {
	t.Helper()
	all, err := os.ReadFile(filepath.Join("..", "..", "examples", "systemd", "lbd.service"))
	if err != nil {
		t.Fatal(err)
	}
	values = map[string][]string{}
	for line := range strings.Lines(string(all)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(name, "#") {
			values[name] = append(values[name], value)
		}
	}
	return string(all), values
}

// TestUnit: systemd finds no mistake in the example, and little that it leaves open.
func TestUnit(t *testing.T) {
	text, values := unit(t)
	path := filepath.Join(t.TempDir(), "lbd.service")
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(text, "/usr/local/bin/lbd", filepath.Join(binaries, "lbd"))), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("systemd-analyze", "verify", "--man=no", path).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("verify: %v\n%s", err, out)
	}
	if out, err := exec.Command("systemd-analyze", "security", "--offline=true", "--threshold=25", path).CombinedOutput(); err != nil {
		t.Errorf("security: %v\n%s", err, out)
	}
	help, err := exec.Command(filepath.Join(binaries, "lbd"), "run", "--help").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`\bLBD_([A-Z_]+)=`).FindAllStringSubmatch(text, -1) {
		if flag := strings.ToLower(strings.ReplaceAll(m[1], "_", "-")); !strings.Contains(string(help), "--"+flag+" ") {
			t.Errorf("LBD_%s is no flag", m[1])
		}
	}
	if values["Type"][0] != "notify" {
		t.Error("systemd does not wait until it is ready")
	}
}

// allowedCalls are the system calls that the unit's filter lets through, by systemd's own lists.
func allowedCalls(t *testing.T, filters []string) []string {
	t.Helper()
	allowed := map[string]bool{}
	for _, filter := range filters {
		names, deny := strings.CutPrefix(filter, "~")
		for _, name := range strings.Fields(names) {
			for _, call := range callsOf(t, name) {
				allowed[call] = !deny
			}
		}
	}
	var all []string
	for call, ok := range allowed {
		if ok {
			all = append(all, call)
		}
	}
	slices.Sort(all)
	return all
}

// callsOf is a system call, or those of a group.
func callsOf(t *testing.T, name string) []string {
	if !strings.HasPrefix(name, "@") {
		return []string{name}
	}
	out, err := exec.Command("systemd-analyze", "syscall-filter", name).Output()
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	var all []string
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSpace(line)
		switch {
		case line == name || line == "" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "@"):
			all = append(all, callsOf(t, line)...)
		default:
			all = append(all, line)
		}
	}
	return all
}

// TestUnitsSystemCalls runs a node that gets what the unit's filter would give it for every call that the filter does not let through: EPERM.
// It makes none.
func TestUnitsSystemCalls(t *testing.T) {
	_, values := unit(t)
	if values["SystemCallErrorNumber"][0] != "EPERM" {
		t.Fatal("the filter does something else than here")
	}
	allowed := allowedCalls(t, values["SystemCallFilter"])
	for _, call := range []string{"mount", "ptrace", "bpf", "init_module", "kexec_load", "setuid", "clock_settime", "open_by_handle_at", "io_uring_setup"} {
		if slices.Contains(allowed, call) {
			t.Errorf("the filter lets %s through", call)
		}
	}
	s := newService(t, "lbd-plain")
	refused := filepath.Join(s.dir, "refused")
	others := "!?" + strings.Join(allowed, ",?") // strace does not know those of other processors: "?"
	s.wraps(fmt.Sprintf(`exec strace -f --seccomp-bpf -qq -o %s -e signal=none -e trace='%s' -e inject='%s:error=EPERM' BINARY "$@"`, refused, others, others))
	s.begin()
	s.types(`lbctl init --backend 127.0.0.1:1 | lbctl apply -f - --wait
lbctl cert rotate default --wait
lbctl backend drain default/127.0.0.1:1
lbctl logs --level debug
lbctl debug bundle --cpu-profile 1s
lbctl backup create all.backup
lbctl cluster rotate-seal
lbctl metrics
lbctl connections list
lbctl events
lbctl doctor || true
lbctl delete route/default
curl -s http://` + s.address)
	s.types(fmt.Sprintf("kill -TERM $(cat /proc/%[1]d/task/%[1]d/children)", s.cmd.Process.Pid))
	select {
	case <-s.done:
	case <-time.After(patience):
		t.Fatal("it does not end")
	}
	if s.err != nil {
		t.Errorf("it ended with %v\n%s", s.err, s.tail())
	}
	out, err := os.ReadFile(refused)
	if err != nil {
		t.Fatal(err)
	}
	if len(out) > 0 {
		t.Errorf("the filter would have refused:\n%.4000s", out)
	}
}
