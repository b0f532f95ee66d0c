//go:build linux

package netnstest

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// lastWordsMax is how long what a process has said may take to be read once it has ended.
const lastWordsMax = 100 * time.Millisecond

// endMax bounds how long a process may take to be gone after SIGKILL.
const endMax = 30 * time.Second

// Process is a program that runs on a host. What it says on stdout and stderr is kept; if the test fails, the end of it is shown.
type Process struct {
	t    testing.TB
	name string
	cmd  *exec.Cmd
	done chan struct{}
	err  error // of its end; read after done

	mu    sync.Mutex
	lines []string
	more  chan struct{} // closed and made anew with each line
}

// linesKeptMax is how many lines of a process are kept: more than a test reads, less than a process in a loop says.
const linesKeptMax = 20_000

// Start starts a program on a host; name is what it is called where its log is shown. It is killed at the end of the test.
func (n *Net) Start(host int, name string, env []string, program string, args ...string) *Process {
	n.t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), env...)
	out, in, err := os.Pipe()
	n.must(err)
	cmd.Stdout, cmd.Stderr = in, in
	n.must(n.start(host, cmd))
	in.Close()
	p := &Process{t: n.t, name: name, cmd: cmd, done: make(chan struct{}), more: make(chan struct{})}
	go p.follow(out)
	n.t.Cleanup(func() {
		p.Kill()
		if n.t.Failed() {
			n.t.Logf("the end of what %s (process %d) said:\n%s", name, cmd.Process.Pid, p.Tail(60))
		}
	})
	return p
}

// follow reads what the process says until it has ended. Its own children may hold the pipe for longer.
func (p *Process) follow(out *os.File) {
	defer close(p.done)
	defer out.Close()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.err = p.cmd.Wait()
		_ = out.SetReadDeadline(time.Now().Add(lastWordsMax))
	}()
	r := bufio.NewReader(out)
	for {
		line, err := r.ReadString('\n')
		if line != "" {
			p.keep(strings.TrimSuffix(line, "\n"))
		}
		if err != nil {
			break
		}
	}
	<-ended
	p.keep(fmt.Sprintf("netnstest: it ended: %s", p.cmd.ProcessState))
}

func (p *Process) keep(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.lines) == linesKeptMax {
		p.lines = append(p.lines[:0], p.lines[linesKeptMax/2:]...)
	}
	p.lines = append(p.lines, time.Now().Format("15:04:05.000 ")+line)
	close(p.more)
	p.more = make(chan struct{})
}

// Log is what the process has said so far, each line with the time when it came.
func (p *Process) Log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.lines, "\n")
}

// Tail is the last lines of Log.
func (p *Process) Tail(lines int) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.lines[max(0, len(p.lines)-lines):], "\n")
}

// Expect waits until the process says something that matches. It is an error if it ends first, or takes longer than that.
func (p *Process) Expect(pattern string, within time.Duration) error {
	re := regexp.MustCompile(pattern)
	limit := time.After(within)
	for seen := 0; ; {
		p.mu.Lock()
		for ; seen < len(p.lines); seen++ {
			if re.MatchString(p.lines[seen]) {
				p.mu.Unlock()
				return nil
			}
		}
		more := p.more
		p.mu.Unlock()
		select {
		case <-more:
		case <-p.done:
			if p.mu.Lock(); seen == len(p.lines) {
				p.mu.Unlock()
				return fmt.Errorf("%s ended before it said %q: %v\n%s", p.name, pattern, p.err, p.Tail(30))
			}
			p.mu.Unlock()
		case <-limit:
			return fmt.Errorf("%s did not say %q within %v:\n%s", p.name, pattern, within, p.Tail(30))
		}
	}
}

// Pid is its number.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Running is whether it has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Signal sends a signal: SIGSTOP and SIGCONT among them.
func (p *Process) Signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatalf("netnstest: %v to %s: %v", s, p.name, err)
	}
}

// Kill ends it at once, and returns when it is gone.
func (p *Process) Kill() {
	if !p.Running() {
		return
	}
	_ = p.cmd.Process.Kill()
	select {
	case <-p.done:
	case <-time.After(endMax):
		p.t.Errorf("netnstest: %s is still there %v after SIGKILL", p.name, endMax)
	}
}

// Wait returns the error of its end, or another if it is still running after that time.
func (p *Process) Wait(within time.Duration) error {
	select {
	case <-p.done:
		return p.err
	case <-time.After(within):
		return fmt.Errorf("%s is still running after %v:\n%s", p.name, within, p.Tail(30))
	}
}
