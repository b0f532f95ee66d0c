package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hashicorp/raft"
	"go.etcd.io/bbolt"
)

// Scrub makes the files of the data directory forget what is no longer in the state: after it none holds a byte of what the log,
// an older snapshot or a free page of a database had of it. What the file system and the disk below keep of removed files is out of
// its reach. Repeating it is harmless. Changes wait meanwhile, for about as long as it takes to write the state once; traffic does not.
//
//  1. take a snapshot, which holds all that is applied
//  2. drop the log up to it
//  3. remove the older snapshots
//  4. write both databases anew, without their free pages
//
// Errors: ErrClosed, ErrNoLeader (no snapshot can be taken now: try again), and what the disk says; then some of it may be left.
func (n *Node) Scrub(ctx context.Context) error {
	r, err := n.enter()
	if err != nil {
		return err
	}
	defer n.callers.Done()
	n.scrubbing.Lock()
	defer n.scrubbing.Unlock()
	if err := n.caughtUp(ctx, r); err != nil {
		return n.explain(err)
	}
	if err := r.Snapshot().Error(); err != nil {
		return fmt.Errorf("scrub: take a snapshot: %w: %w", ErrNoLeader, err)
	}
	return contain(func() error {
		newest, err := n.keepNewestSnapshot()
		if err != nil {
			return fmt.Errorf("scrub: %w", err)
		}
		first, err := n.log.FirstIndex()
		if err == nil && first > 0 && first <= newest {
			err = n.log.DeleteRange(first, newest)
		}
		return errors.Join(err, n.log.compact(), n.durable.compact())
	})
}

// caughtUp waits until this node has applied what was acknowledged before, and so what was deleted.
func (n *Node) caughtUp(ctx context.Context, r *raft.Raft) error {
	err := n.leading.wait(ctx, n.closing, n.other)
	if err == nil {
		return nil
	}
	if n.other() == "" {
		return err
	}
	if err := n.barrierOnce(ctx); err != nil {
		return err
	}
	for r.AppliedIndex() < n.Applied() { // raft notes it a moment later
		if ctx.Err() != nil {
			return fmt.Errorf("%w: %w", ErrNoLeader, ctx.Err())
		}
		if !pause(electionPoll, n.closing) {
			return ErrClosed
		}
	}
	return nil
}

// keepNewestSnapshot removes all snapshots but the newest, also what one that was cut off has left, and returns the index of the
// last entry in it.
func (n *Node) keepNewestSnapshot() (uint64, error) {
	metas, err := n.snapshots.List()
	if err != nil || len(metas) == 0 {
		return 0, errors.Join(err, errors.New("there is no snapshot"))
	}
	dir := n.path("snapshots")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		if e.Name() != metas[0].ID {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return 0, err
			}
		}
	}
	return metas[0].Index, syncDir(dir)
}

// compactBytes bounds one transaction of a compaction.
const compactBytes = 4 << 20

// compact writes the database anew, without free pages, and goes on with the new file. Readers and writers wait. After an error
// the old file is in place and in use, but where the new one has the name already: then the database is broken until the next start,
// which finds one of the two, with all that was acknowledged.
func (d *database) compact() error {
	d.swap.Lock()
	defer d.swap.Unlock()
	if broken := d.broken.Load(); broken != nil {
		return *broken
	}
	err := contain(d.compactLocked)
	if errors.Is(err, errPanicked) {
		d.broken.Store(&err)
	}
	return err
}

func (d *database) compactLocked() error {
	beside := d.path + ".compact"
	if err := os.Remove(beside); err != nil && !errors.Is(err, os.ErrNotExist) { // of one that was cut off
		return fmt.Errorf("compact %s: %w", d.path, err)
	}
	defer os.Remove(beside)
	if err := writeCompact(beside, d.bolt); err != nil {
		return fmt.Errorf("compact %s: %w", d.path, err)
	}
	if err := os.Rename(beside, d.path); err != nil {
		return fmt.Errorf("compact %s: %w", d.path, err)
	}
	old := d.bolt
	err := syncDir(filepath.Dir(d.path)) // before anything is written that only the new file has
	if err == nil {
		d.bolt, err = bbolt.Open(d.path, 0o600, d.boltOptions())
	}
	if err != nil {
		d.bolt = old
		err = fmt.Errorf("compact %s: %w", d.path, err)
		d.broken.Store(&err)
		return err
	}
	return old.Close()
}

func writeCompact(path string, from *bbolt.DB) error {
	to, err := bbolt.Open(path, 0o600, boltOptions())
	if err != nil {
		return err
	}
	if err := bbolt.Compact(to, from, compactBytes); err != nil {
		return errors.Join(err, to.Close())
	}
	return errors.Join(to.Sync(), to.Close())
}

// removeCut removes what a compaction that was cut off has left beside a database.
func removeCut(path string) error {
	if err := os.Remove(path + ".compact"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
