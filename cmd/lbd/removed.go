package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// removedFile says that the node was removed from its cluster, and when it learnt of that. A node does not start where it is.
const removedFile = "removed"

// checkRemoved refuses the data directory of a node that was removed.
func (c *config) checkRemoved() error {
	text, err := os.ReadFile(filepath.Join(c.dataDir, removedFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return fmt.Errorf("%s: %s: to join again, use `lbd join` with an empty --data-dir", c.dataDir, strings.TrimSpace(string(text)))
}

// removed is closed when this node has learnt that it is a member of its cluster no more.
func (p *process) removed() <-chan struct{} {
	if p.seat == nil {
		return nil
	}
	return p.seat.node.Removed()
}

// copied is closed when this node has learnt that its data directory is a copy of one whose node runs.
func (p *process) copied() <-chan struct{} {
	if p.seat == nil {
		return nil
	}
	return p.seat.node.Copied()
}

// errCopied ends a process on a copy.
func (c *config) errCopied(where string) error {
	return fmt.Errorf("%s is a copy of the data directory of node %s, which runs%s: to add a node use `lbd join` with an empty --data-dir; to move the node here, stop it there first", c.dataDir, c.node, where)
}

// removedTold is how long a node that was removed goes on answering, so that whoever has called it to leave hears that it has.
const removedTold = 2 * time.Second

// forget is what a node does that was removed, before it drains and ends.
func (p *process) forget(ctx context.Context) {
	p.log.Error("this node was removed from its cluster: it deletes its keys, drains and ends; to join again, use `lbd join` with an empty --data-dir", "node", p.cfg.node)
	if err := p.cfg.forget(p.seat.node.State().ClusterID(), time.Now()); err != nil {
		p.log.Error("what this node knew of its cluster cannot be deleted: delete its data directory", "dir", p.cfg.dataDir, "err", err)
	}
	select {
	case <-time.After(removedTold):
	case <-ctx.Done():
	}
}

// forget makes a node that was removed unfit to be one again: a file says so, then what it could prove itself with and open secrets with is
// deleted. Whatever cuts it off, the file is there first.
func (c *config) forget(clusterID string, now time.Time) error {
	text := fmt.Sprintf("this node (%s) was removed from cluster %s, as it learnt at %s\n", c.node, clusterID, now.UTC().Format(time.RFC3339))
	if err := replaceFile(filepath.Join(c.dataDir, removedFile), []byte(text)); err != nil {
		return err
	}
	var err error
	for _, name := range []string{sealKeyFile, nodeKeyFile} {
		if e := os.Remove(filepath.Join(c.dataDir, name)); e != nil && !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return errors.Join(err, syncFolder(c.dataDir))
}
