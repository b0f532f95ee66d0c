package node

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// Dir is lbd's data directory.
func (n *Node) Dir() string { return n.dir }

// Lbctl runs lbctl against the node, in a folder and with data for its standard input, and returns its standard output.
func (n *Node) Lbctl(ctx context.Context, bin, folder string, input []byte, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "lbctl"), args...)
	cmd.Env = append(os.Environ(), "LBCTL_ENDPOINTS=unix:"+filepath.Join(n.dir, "control.sock"))
	cmd.Dir, cmd.Stdin = folder, bytes.NewReader(input)
	var out, talk bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &talk
	err := cmd.Run()
	if err != nil {
		err = &commandError{cmd.Args, err, talk.String()}
	}
	return out.Bytes(), err
}

// commandError is a command that failed, with what it said.
type commandError struct {
	args []string
	err  error
	said string
}

func (e *commandError) Error() string { return e.args[1] + ": " + e.err.Error() + ": " + e.said }

func (e *commandError) Unwrap() error { return e.err }

// Again kills lbd, as a power cut would, and starts it on the same data. It returns how long it took until lbd served.
func (n *Node) Again(ctx context.Context, bin string) (time.Duration, error) {
	if err := n.cmd.Process.Kill(); err != nil {
		return 0, err
	}
	_ = n.cmd.Wait() // killed
	began := time.Now()
	err := n.run(ctx, bin, nil)
	return time.Since(began), err
}

// Upgrade starts a second lbd on the same data, which takes the place of the one that runs, and returns when it serves. The end of the first one is
// told by the channel. After an error the first one goes on.
func (n *Node) Upgrade(ctx context.Context, bin string) (ended <-chan error, err error) {
	before := n.cmd
	if err := n.run(ctx, bin, nil); err != nil {
		if n.cmd != nil {
			_ = n.cmd.Process.Kill() // if it has not ended
			_ = n.cmd.Wait()
		}
		n.cmd = before
		return nil, err
	}
	told := make(chan error, 1)
	go func() { told <- before.Wait() }()
	return told, nil
}
