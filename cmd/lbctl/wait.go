package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lbd/cluster/state"
	lbdv1 "lbd/proto/lbd/v1"
)

// waitFlag is --wait of the verbs that make a revision.
func waitFlag(cmd *cobra.Command, wait *string) {
	cmd.Flags().StringVar(wait, "wait", "", "wait until every node serves the revision")
	cmd.Flags().Lookup("wait").NoOptDefVal = "served"
}

func checkWait(wait string, dryRun bool) error { return checkWaitOf(wait, dryRun, forServed) }

// checkWaitOf is checkWait for a verb that can wait for several things.
func checkWaitOf(wait string, dryRun bool, kinds ...string) error {
	known := slices.ContainsFunc(kinds, func(kind string) bool { return strings.EqualFold(kind, wait) })
	switch {
	case wait != "" && !known:
		return fail(exitUsage, "--wait takes %s, not %q", strings.Join(kinds, " or "), wait)
	case wait != "" && dryRun:
		return fail(exitUsage, "--dry-run stores nothing that --wait could wait for")
	}
	return nil
}

// waiting is what is known of the nodes while a revision is waited for.
type waiting struct {
	c        *cli
	revision int64
	nodes    map[string]*lbdv1.WaitForRevisionResponse
}

// wait follows a revision until every node serves it, one refuses it, or the deadline has come.
func (c *cli) wait(ctx context.Context, cl *client, revision int64) error {
	w := &waiting{c: c, revision: revision, nodes: map[string]*lbdv1.WaitForRevisionResponse{}}
	_, err := retried(ctx, cl, cl.timeout, func() (struct{}, error) { return struct{}{}, w.follow(ctx, cl) })
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return fail(exitInterrupted, "interrupted: revision %d is stored", revision)
	case ctx.Err() != nil || status.Code(err) == codes.DeadlineExceeded:
		return fail(exitWaitTimedOut, "timed out after %s: revision %d is stored, but %s", cl.timeout, revision, w.silent())
	case err != nil:
		return err
	}
	return w.verdict()
}

// waitHealthy waits, once a revision is served, until each of the pools has a backend that takes requests.
func (c *cli) waitHealthy(ctx context.Context, cl *client, revision int64, pools []string) error {
	for _, pool := range pools {
		err := c.await(ctx, cl, state.Key{Kind: state.Pools, Name: pool}, conditionHealthy)
		var f *failure
		if errors.As(err, &f) && f.code == exitWaitTimedOut {
			return fail(exitWaitTimedOut, "%w: revision %d is served", f, revision)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// follow reads one stream of progress to its end.
func (w *waiting) follow(ctx context.Context, cl *client) error {
	stream, err := cl.config.WaitForRevision(ctx, &lbdv1.WaitForRevisionRequest{Revision: w.revision})
	if err != nil {
		return err
	}
	for {
		p, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		w.note(p)
	}
}

// note remembers a node's progress, and tells it if it is news.
func (w *waiting) note(p *lbdv1.WaitForRevisionResponse) {
	before := w.nodes[p.GetNode()]
	w.nodes[p.GetNode()] = p
	if before == nil || before.GetProgress() != p.GetProgress() || before.GetReason() != p.GetReason() {
		w.c.say("node %s: %s", p.GetNode(), w.progress(p))
	}
}

func (w *waiting) progress(p *lbdv1.WaitForRevisionResponse) string {
	switch p.GetProgress() {
	case lbdv1.NodeProgress_NODE_PROGRESS_SERVED:
		return fmt.Sprintf("serves revision %d", w.revision)
	case lbdv1.NodeProgress_NODE_PROGRESS_REFUSED:
		return "refuses: " + p.GetReason()
	default:
		text := fmt.Sprintf("serves revision %d, not yet %d", p.GetServedRevision(), w.revision)
		if p.GetReason() != "" {
			text += ": " + p.GetReason()
		}
		return text
	}
}

// verdict is the end of a wait that all nodes answered.
func (w *waiting) verdict() error {
	var refused, pending []string
	for _, node := range slices.Sorted(maps.Keys(w.nodes)) {
		p := w.nodes[node]
		switch p.GetProgress() {
		case lbdv1.NodeProgress_NODE_PROGRESS_SERVED:
		case lbdv1.NodeProgress_NODE_PROGRESS_REFUSED:
			refused = append(refused, fmt.Sprintf("node %s refuses revision %d: %s", node, w.revision, p.GetReason()))
		default:
			pending = append(pending, node)
		}
	}
	switch {
	case len(refused) > 0:
		return fail(exitNo, "%s", strings.Join(refused, "; "))
	case len(pending) > 0 || len(w.nodes) == 0:
		return fail(exitInternal, "the wait ended early: revision %d is stored, but %s", w.revision, w.silent())
	}
	return nil
}

// silent names the nodes that do not serve the revision.
func (w *waiting) silent() string {
	var late []string
	for _, node := range slices.Sorted(maps.Keys(w.nodes)) {
		if p := w.nodes[node]; p.GetProgress() != lbdv1.NodeProgress_NODE_PROGRESS_SERVED {
			late = append(late, fmt.Sprintf("node %s %s", node, w.progress(p)))
		}
	}
	if len(late) == 0 {
		return "no node has said what it serves"
	}
	return strings.Join(late, "; ")
}
