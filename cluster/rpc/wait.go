package rpc

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	lbdv1 "lbd/proto/lbd/v1"
)

// WaitForRevision streams the progress of every node: at once, whenever one changes, and last when all that are waited for serve the revision or one has
// refused it. It ends with the call's deadline or with the node. A call that is for this node alone is told of this node alone.
func (s *configService) WaitForRevision(req *lbdv1.WaitForRevisionRequest, stream grpc.ServerStreamingServer[lbdv1.WaitForRevisionResponse]) error {
	if isNodeOnly(stream.Context()) {
		return s.waitHere(stream.Context(), req.GetRevision(), stream.Send)
	}
	number, err := s.awaited(stream.Context(), req.GetRevision())
	if err != nil {
		return err
	}
	w := newVigil(s, number, req.GetReachable())
	defer w.close()
	return w.run(stream.Context(), stream.Send)
}

// waitHere streams this node's progress. It repeats itself each waitBeat, so that who listens can tell a node that has nothing new from one that is gone.
func (s *configService) waitHere(ctx context.Context, number int64, send func(*lbdv1.WaitForRevisionResponse) error) error {
	beat := time.NewTicker(waitBeat)
	defer beat.Stop()
	var sent *lbdv1.WaitForRevisionResponse
	for {
		next := s.store.Next()
		p := s.observer.Progress()
		now := s.progress(number, p)
		if !proto.Equal(sent, now) {
			if err := send(now); err != nil {
				return err
			}
			sent = now
		}
		if now.GetProgress() != lbdv1.NodeProgress_NODE_PROGRESS_PENDING {
			return nil
		}
		select {
		case <-p.Changed:
		case <-beat.C:
			sent = nil
		case <-next:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// awaited finds the revision to wait for. One that history no longer holds is served by any node that serves a newer one.
func (s *configService) awaited(ctx context.Context, number int64) (int64, error) {
	behind := s.catchUp(ctx, number)
	newest := s.store.State().Revision()
	switch {
	case number == 0:
		return newest, nil
	case number > newest && behind != nil:
		return 0, unavailable(reasonNoLeader, fmt.Sprintf("this node has revision %d and does not know whether there is a newer one: %v", newest, behind))
	case number < 0 || number > newest:
		return 0, notFound(fmt.Sprintf("revisions/%d", number), "there is no revision %d: the newest is %d", number, newest)
	}
	return number, nil
}

// catchUp waits until this node knows all that was acknowledged before, where it does not have the revision. A node that has just started does not
// know of a leader for a moment.
func (s *configService) catchUp(ctx context.Context, number int64) error {
	if s.fleet.seat == nil || number > 0 && number <= s.store.State().Revision() {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, waitBarrierMax)
	defer cancel()
	for {
		err := s.fleet.seat.ReadBarrier(limited)
		if err == nil {
			return nil
		}
		select {
		case <-time.After(waitPause):
		case <-limited.Done():
			return err
		}
	}
}

// progress is how far this node is with a revision, which it may not have yet.
func (s *configService) progress(number int64, p Progress) *lbdv1.WaitForRevisionResponse {
	current := s.store.State()
	if current.Revision() < number {
		return &lbdv1.WaitForRevisionResponse{
			Node: s.node, Progress: lbdv1.NodeProgress_NODE_PROGRESS_PENDING, ServedRevision: p.Revision, Reason: "it is not there yet",
		}
	}
	// What it changed is not known of one that history no longer holds.
	revision, _ := current.RevisionAt(number)
	return progressOf(s.node, number, revision.GetChanges(), p)
}

// progressOf judges one observation. A resource that an older revision changed and that is still refused does not
// concern the one that is waited for.
func progressOf(node string, number int64, changed []*lbdv1.Change, p Progress) *lbdv1.WaitForRevisionResponse {
	out := &lbdv1.WaitForRevisionResponse{
		Node:           node,
		Progress:       lbdv1.NodeProgress_NODE_PROGRESS_PENDING,
		ServedRevision: p.Revision,
	}
	if p.Revision >= number {
		out.Progress = lbdv1.NodeProgress_NODE_PROGRESS_SERVED
	}
	for _, refusal := range p.Refused {
		switch {
		case !concerns(refusal, number, changed, p.Revision):
		case refusal.Passing:
			out.Progress, out.Reason = lbdv1.NodeProgress_NODE_PROGRESS_PENDING, refusal.String()
		default:
			out.Progress = lbdv1.NodeProgress_NODE_PROGRESS_REFUSED
			out.Reason = refusal.String()
			return out
		}
	}
	return out
}

// concerns is whether a refusal means that a revision is not served as it was applied.
func concerns(refusal Refusal, number int64, changed []*lbdv1.Change, served int64) bool {
	if refusal.Revision < number {
		return false
	}
	if refusal.Kind == "" {
		return served < number
	}
	for _, c := range changed {
		if c.GetKind() == refusal.Kind && c.GetName() == refusal.Name {
			return true
		}
	}
	return false
}

// String names the resource as operators write it, and the reason.
func (r Refusal) String() string {
	if r.Kind == "" {
		return fmt.Sprintf("revision %d: %s", r.Revision, r.Reason)
	}
	return fmt.Sprintf("%s/%s: %s", r.Kind, r.Name, r.Reason)
}
