//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// process is a child of the lab, pinned to a core.
type process struct {
	name string
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // valid then
}

// place is where a process runs.
type place struct {
	core      int
	group     string // control group's folder; empty: the lab's own
	namespace string // network namespace's file; empty: the lab's own
}

// stopGrace is how long a process may take to end by itself.
const stopGrace = 5 * time.Second

// arguments make the lab's own program put another in this place.
func (p place) arguments(args ...string) []string {
	pinned := []string{"pinned", "-core", strconv.Itoa(p.core)}
	if p.group != "" {
		pinned = append(pinned, "-group", p.group)
	}
	if p.namespace != "" {
		pinned = append(pinned, "-namespace", p.namespace)
	}
	return append(append(pinned, "--"), args...)
}

// command prepares a pinned process.
func (p place) command(self string, args ...string) *exec.Cmd {
	cmd := exec.Command(self, p.arguments(args...)...)
	// A group of its own: Ctrl-C in the terminal is for the lab, which then ends its children in order.
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	return cmd
}

// startReading starts a process whose standard output the lab reads. The caller closes the returned file.
func startReading(name string, cmd *exec.Cmd) (*process, *os.File, error) {
	// Not cmd.StdoutPipe: the goroutine that waits for the end would close it under the reader.
	out, in, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer in.Close()
	cmd.Stdout = in
	p, err := start(name, cmd)
	if err != nil {
		return nil, nil, errors.Join(err, out.Close())
	}
	return p, out, nil
}

func start(name string, cmd *exec.Cmd) (*process, error) {
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &process{name: name, cmd: cmd, done: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// ended returns an error if the process is gone.
func (p *process) ended() error {
	select {
	case <-p.done:
		return fmt.Errorf("%s has ended: %w", p.name, errors.Join(p.err, errEnded))
	default:
		return nil
	}
}

var errEnded = errors.New("unexpected end")

// stop asks the process to end, waits, and kills its whole group if it does not.
func (p *process) stop() {
	if p == nil {
		return
	}
	_ = p.cmd.Process.Signal(unix.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(stopGrace):
	}
	_ = unix.Kill(-p.pid(), unix.SIGKILL)
	<-p.done
}

// logFile opens a file for a process's output.
func logFile(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
}
