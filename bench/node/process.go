package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// saidBytesMax is how much of what lbd has said goes into an error, or out of Said: the newest.
const saidBytesMax = 16 << 10

// process is one lbd, from its start to its end. What it says is in the node's log.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed then
	err   error         // how it ended; written before
}

// pid is its number.
func (p *process) pid() int { return p.cmd.Process.Pid }

// kill ends it, as a power cut would, and waits for that.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.ended
}

// log is the file with what all lbds of this node have said.
func (n *Node) log() string { return n.dir + ".log" }

// begin starts an lbd and waits for its ready line. One that is not ready is ended, and what it has said is in the error.
func (n *Node) begin(ctx context.Context, bin string, before []string) (*process, error) {
	file, err := os.OpenFile(n.log(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	words := append(before[:len(before):len(before)], filepath.Join(bin, "lbd"), "run", "--dev", "--data-dir", n.dir, "--node", "bench",
		"--listen", "http="+n.HTTP, "--listen", "https="+n.HTTPS, "--metrics", "off")
	talk := &talk{to: file, head: []byte("\n"), ready: make(chan struct{})}
	p := &process{cmd: exec.CommandContext(ctx, words[0], words[1:]...), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), "LBD_CONTROL=off") // not a flag: older builds do not know it
	p.cmd.Stderr = talk
	if err := p.cmd.Start(); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	go func() {
		p.err = errors.Join(p.cmd.Wait(), file.Close())
		close(p.ended)
	}()
	late := time.NewTimer(readyTimeout)
	defer late.Stop()
	select {
	case <-talk.ready:
		return p, nil
	case <-p.ended:
		return nil, fmt.Errorf("lbd ended before it was ready: %w\n%s", errors.Join(errNotReady, p.err), n.Said())
	case <-late.C:
		p.kill()
		return nil, fmt.Errorf("%w after %v\n%s", errNotReady, readyTimeout, n.Said())
	}
}

var errNotReady = errors.New("lbd is not ready")

// Said is the end of what this node's lbds have said, for whoever has to find out why something went wrong.
func (n *Node) Said() string {
	b, err := os.ReadFile(n.log())
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-saidBytesMax):])
}

// talk passes on what an lbd says, and notices its ready line.
type talk struct {
	to    io.Writer
	head  []byte        // what it has said until then
	ready chan struct{} // closed then
}

func (t *talk) Write(b []byte) (int, error) {
	if t.head != nil {
		if t.head = append(t.head, b...); bytes.Contains(t.head, []byte("\nlbd ready")) {
			close(t.ready)
			t.head = nil
		}
	}
	return t.to.Write(b)
}
