package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	raftv1 "lbd/proto/lbd/raft/v1"
)

// Recovery makes one node a cluster of its own where most voters are lost:
//
//  1. the intent goes to disk: whatever happens, it is carried out
//  2. raft ends; its log and state become those of a sole voter, with all that is in the log, agreed on or not
//  3. raft begins; the command goes into the log that makes the others strangers
//  4. the intent goes
//
// Between 2 and 4 the keeper rests: the state still lists the others.

const recoveryFile = "recover"

// Recover begins a new epoch with this node alone. The state is kept, and who reads it goes on; calls under way get errors. It returns when the epoch is
// applied. Errors: those of the command where the state refuses it (nothing has happened then), and what the disk says (then the next Start goes on).
func (n *Node) Recover(ctx context.Context, epoch *raftv1.EpochCommand) error {
	if _, res := n.State().Apply(&raftv1.Command{Kind: &raftv1.Command_Epoch{Epoch: epoch}}); res.Err != nil || res.Replayed {
		return res.Err
	}
	n.recovering.Lock()
	defer n.recovering.Unlock()
	switch {
	case n.isRemoved():
		return fmt.Errorf("recover: %w", ErrRemoved)
	case n.running() == nil:
		return fmt.Errorf("recover: %w", ErrClosed)
	}
	if err := n.intend(epoch); err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	n.logger.Warn("this node becomes the only one of a new epoch", "epoch", epoch.GetEpoch())
	if err := n.restart(); err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	for {
		next := n.Next()
		if n.State().Epoch() >= epoch.GetEpoch() {
			return nil
		}
		select {
		case <-next:
		case <-n.closing:
			return ErrClosed
		case <-ctx.Done():
			return fmt.Errorf("recover: the epoch has not begun yet: %w", ctx.Err())
		}
	}
}

// restart ends raft as Close does, and begins it anew.
func (n *Node) restart() error {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return ErrClosed
	}
	r, transport := n.raft, n.transport
	n.raft, n.transport = nil, nil
	n.mu.Unlock()
	n.callers.Wait()
	err := errors.Join(transport.Close(), r.Shutdown().Error())
	n.leading.set(false)
	n.log.running.Store(false)
	n.votes.running.Store(false)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return ErrClosed
	}
	return errors.Join(err, n.startLocked())
}

// settleAlone makes raft's files those of a sole voter.
func (n *Node) settleAlone(config *raft.Config, t raft.Transport) error {
	return raft.RecoverCluster(config, &heir{n.machine}, n.log, n.votes, n.snapshots, t, n.alone())
}

func (n *Node) alone() raft.Configuration {
	return raft.Configuration{Servers: []raft.Server{{Suffrage: raft.Voter, ID: raft.ServerID(n.id), Address: raft.ServerAddress(n.id)}}}
}

// heir is the machine without its past: the state has what older snapshots hold, and goes on being served.
type heir struct{ *machine }

// Restore takes a snapshot that is further than the state.
func (h *heir) Restore(r io.ReadCloser) error {
	st, index, err := readSnapshot(r)
	if err != nil || index <= h.applied {
		return err
	}
	return h.replace(st, index)
}

// beginEpoch carries the rest of an intent out.
func (n *Node) beginEpoch(epoch *raftv1.EpochCommand) {
	ctx, cancel := context.WithTimeout(n.life, leaderWait)
	defer cancel()
	_, err := n.ProposeCommand(ctx, &raftv1.Command{Kind: &raftv1.Command_Epoch{Epoch: epoch}})
	if err == nil {
		err = n.forgetIntent()
	}
	if err != nil {
		n.worries.set(worryRecovery, "a new epoch has not begun yet: "+err.Error())
		return
	}
	n.worries.set(worryRecovery, "")
	n.logger.Warn("a new epoch has begun with this node alone", "epoch", epoch.GetEpoch())
}

func (n *Node) intend(epoch *raftv1.EpochCommand) error {
	b, err := proto.Marshal(epoch)
	if err != nil {
		return err
	}
	if err := writeWhole(n.path(recoveryFile), b); err != nil {
		return err
	}
	n.recovery.Store(epoch)
	return nil
}

// readIntent finds an intent that was not carried out. One whose epoch has begun was.
func (n *Node) readIntent() error {
	path := n.path(recoveryFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	epoch := new(raftv1.EpochCommand)
	if err == nil {
		err = proto.Unmarshal(b, epoch)
	}
	if err != nil {
		return &OpenError{path, err, "repeat `lbctl cluster recover` once this file is removed"}
	}
	if epoch.GetEpoch() <= n.State().Epoch() {
		return n.forgetIntent()
	}
	n.recovery.Store(epoch)
	return nil
}

func (n *Node) forgetIntent() error {
	path := n.path(recoveryFile)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return &OpenError{path, err, remedyAccess}
	}
	n.recovery.Store(nil)
	return syncDir(filepath.Dir(path))
}
