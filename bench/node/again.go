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
	n.lbd.kill()
	began := time.Now()
	lbd, err := n.begin(ctx, bin, nil)
	if err == nil {
		n.lbd = lbd
	}
	return time.Since(began), err
}

// Upgrade starts a second lbd on the same data, which takes the place of the one that runs, and returns when it serves. The end of the first one is
// told by the channel. After an error the first one goes on.
func (n *Node) Upgrade(ctx context.Context, bin string) (ended <-chan error, err error) {
	before := n.lbd
	lbd, err := n.begin(ctx, bin, nil)
	if err != nil {
		return nil, err
	}
	n.lbd = lbd
	told := make(chan error, 1)
	go func() {
		<-before.ended
		told <- before.err
	}()
	return told, nil
}
