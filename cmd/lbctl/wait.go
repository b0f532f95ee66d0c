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

// forReachable is to wait for served by those nodes alone that answer.
const forReachable = "reachable"

// waitKinds are what a revision can be waited for.
var waitKinds = []string{forServed, forHealthy, forReachable}

// waitFlag is --wait of the verbs that make a revision.
func waitFlag(cmd *cobra.Command, wait *string) {
	cmd.Flags().StringVar(wait, "wait", "", "wait until every node that is not drained serves the revision; =healthy: and its pools have healthy backends on each; =reachable: leaving out nodes that do not answer")
	cmd.Flags().Lookup("wait").NoOptDefVal = forServed
}

// checkWait reads what --wait was given, in any case.
func checkWait(wait *string, dryRun bool) error {
	switch *wait = strings.ToLower(*wait); {
	case *wait != "" && !slices.Contains(waitKinds, *wait):
		return fail(exitUsage, "--wait takes %s, not %q", oneOf(waitKinds), *wait)
	case *wait != "" && dryRun:
		return fail(exitUsage, "--dry-run stores nothing that --wait could wait for")
	}
	return nil
}

// oneOf lists words of which one is to be chosen.
func oneOf(words []string) string {
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// waiting is what is known of the nodes while a revision is waited for.
type waiting struct {
	c         *cli
	revision  int64
	reachable bool // nodes that do not answer are left out
	nodes     map[string]*lbdv1.WaitForRevisionResponse
	told      bool // that no node serves
}

// wait waits for a revision in the way that --wait says.
func (c *cli) wait(ctx context.Context, cl *client, revision int64, wait string) error {
	if err := c.waitServed(ctx, cl, revision, wait == forReachable); err != nil || wait != forHealthy {
		return err
	}
	pools, err := poolsOfRevision(ctx, cl, revision)
	if err != nil {
		return err
	}
	return c.waitHealthy(ctx, cl, revision, pools)
}

// waitServed follows a revision until every node serves it, one refuses it, or the deadline has come.
func (c *cli) waitServed(ctx context.Context, cl *client, revision int64, reachable bool) error {
	w := &waiting{c: c, revision: revision, reachable: reachable, nodes: map[string]*lbdv1.WaitForRevisionResponse{}}
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

// waitHealthy waits, once a revision is served, until each of the pools has a backend that takes requests, on every node.
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

// poolsOfRevision are the pools that a revision has changed, and those that its routes forward to.
func poolsOfRevision(ctx context.Context, cl *client, revision int64) ([]string, error) {
	answer, err := retried(ctx, cl, startGrace, func() (*lbdv1.GetRevisionResponse, error) {
		return cl.config.GetRevision(ctx, &lbdv1.GetRevisionRequest{Number: revision})
	})
	if err != nil {
		return nil, err
	}
	var resources []*lbdv1.Resource
	for _, ch := range answer.GetRevision().GetChanges() {
		if kind := state.Kind(ch.GetKind()); kind != state.Pools && kind != state.Routes || ch.GetAction() == actionDelete {
			continue
		}
		found, err := retried(ctx, cl, startGrace, func() (*lbdv1.GetResponse, error) {
			return cl.config.Get(ctx, &lbdv1.GetRequest{Kind: ch.GetKind(), Name: ch.GetName()})
		})
		if status.Code(err) == codes.NotFound {
			continue // a later revision has deleted it
		}
		if err != nil {
			return nil, err
		}
		resources = append(resources, found.GetResource())
	}
	return poolsNamed(resources), nil
}

// follow reads one stream of progress to its end.
func (w *waiting) follow(ctx context.Context, cl *client) error {
	stream, err := cl.config.WaitForRevision(ctx, &lbdv1.WaitForRevisionRequest{Revision: w.revision, Reachable: w.reachable})
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
	if before == nil && p.GetProgress() == lbdv1.NodeProgress_NODE_PROGRESS_PENDING && p.GetServedRevision() == 0 && p.GetReason() != "" {
		return // it has not heard of the revision yet, as may be expected at first
	}
	if before == nil || before.GetProgress() != p.GetProgress() || before.GetReason() != p.GetReason() {
		w.c.say("node %s: %s", p.GetNode(), w.progress(p))
	}
	if p.GetNodes() == 0 && p.GetProgress() == lbdv1.NodeProgress_NODE_PROGRESS_LEFT_OUT && len(w.late()) == 0 && !w.told {
		w.told = true
		w.c.say("%s; the wait goes on until one is undrained", w.silent())
	}
}

func (w *waiting) progress(p *lbdv1.WaitForRevisionResponse) string {
	text := ""
	switch progress := p.GetProgress(); {
	case progress == lbdv1.NodeProgress_NODE_PROGRESS_SERVED:
		return fmt.Sprintf("serves revision %d", w.revision)
	case progress == lbdv1.NodeProgress_NODE_PROGRESS_REFUSED:
		return "refuses: " + p.GetReason()
	case progress == lbdv1.NodeProgress_NODE_PROGRESS_LEFT_OUT:
		return "is not waited for: " + p.GetReason()
	case progress == lbdv1.NodeProgress_NODE_PROGRESS_UNREACHABLE:
		text = "does not answer"
	case p.GetServedRevision() == 0 && p.GetReason() != "":
		text = fmt.Sprintf("not yet revision %d", w.revision)
	default:
		text = fmt.Sprintf("serves revision %d, not yet %d", p.GetServedRevision(), w.revision)
	}
	if p.GetReason() != "" {
		text += ": " + oneLine(p.GetReason())
	}
	return text
}

// counts tells whether a node is waited for.
func (w *waiting) counts(p *lbdv1.WaitForRevisionResponse) bool {
	switch p.GetProgress() {
	case lbdv1.NodeProgress_NODE_PROGRESS_LEFT_OUT:
		return false
	case lbdv1.NodeProgress_NODE_PROGRESS_UNREACHABLE:
		return !w.reachable
	}
	return true
}

// verdict is the end of a wait that all nodes answered.
func (w *waiting) verdict() error {
	var refused, pending []string
	served := 0
	for _, node := range slices.Sorted(maps.Keys(w.nodes)) {
		p := w.nodes[node]
		switch {
		case p.GetProgress() == lbdv1.NodeProgress_NODE_PROGRESS_SERVED:
			served++
		case p.GetProgress() == lbdv1.NodeProgress_NODE_PROGRESS_REFUSED:
			refused = append(refused, fmt.Sprintf("node %s refuses revision %d: %s", node, w.revision, p.GetReason()))
		case w.counts(p):
			pending = append(pending, node)
		case p.GetProgress() == lbdv1.NodeProgress_NODE_PROGRESS_UNREACHABLE:
			fmt.Fprintf(w.c.stderr, "warning: revision %d is not known to be served everywhere: node %s %s\n", w.revision, oneLine(node), oneLine(w.progress(p)))
		}
	}
	switch {
	case len(refused) > 0:
		return fail(exitNo, "%s", strings.Join(refused, "; "))
	case len(pending) > 0 || len(w.nodes) == 0:
		return fail(exitInternal, "the wait ended early: revision %d is stored, but %s", w.revision, w.silent())
	case served == 0: // so says an older node, which does not wait for one to be undrained
		return fail(exitWaitTimedOut, "revision %d is stored, but %s", w.revision, w.silent())
	}
	return nil
}

// silent says who does not serve the revision of those that are waited for, or that nobody is.
func (w *waiting) silent() string {
	late := w.late()
	switch {
	case len(late) > 0:
		return strings.Join(late, "; ")
	case len(w.nodes) == 0:
		return "no node has said what it serves"
	}
	for _, p := range w.nodes {
		if p.GetProgress() == lbdv1.NodeProgress_NODE_PROGRESS_UNREACHABLE {
			return "no node serves: those that answer are drained"
		}
	}
	return "no node serves: all are drained"
}

// late names the nodes that are waited for and do not serve the revision.
func (w *waiting) late() (late []string) {
	for _, node := range slices.Sorted(maps.Keys(w.nodes)) {
		if p := w.nodes[node]; p.GetProgress() != lbdv1.NodeProgress_NODE_PROGRESS_SERVED && w.counts(p) {
			late = append(late, fmt.Sprintf("node %s %s", node, w.progress(p)))
		}
	}
	return late
}
