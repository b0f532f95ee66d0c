package rpc

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	lbdv1 "lbd/proto/lbd/v1"
)

// WaitForRevision streams this node's progress: at once, whenever it changes, and last when the revision is served or
// refused. It ends with the call's deadline or with the node.
func (s *configService) WaitForRevision(req *lbdv1.WaitForRevisionRequest, stream grpc.ServerStreamingServer[lbdv1.WaitForRevisionResponse]) error {
	number, changed, err := s.awaited(req.GetRevision())
	if err != nil {
		return err
	}
	var sent *lbdv1.WaitForRevisionResponse
	for {
		p := s.observer.Progress()
		now := progressOf(s.node, number, changed, p)
		if !proto.Equal(sent, now) {
			if err := stream.Send(now); err != nil {
				return err
			}
			sent = now
		}
		if now.GetProgress() != lbdv1.NodeProgress_NODE_PROGRESS_PENDING {
			return nil
		}
		select {
		case <-p.Changed:
		case <-stream.Context().Done():
			return context.Cause(stream.Context())
		}
	}
}

// awaited finds the revision to wait for and what it changed. One that history no longer holds is served by any node
// that serves a newer one.
func (s *configService) awaited(number int64) (int64, []*lbdv1.Change, error) {
	current := s.store.State()
	if number == 0 {
		number = current.Revision()
	}
	if number < 0 || number > current.Revision() {
		return 0, nil, notFound(fmt.Sprintf("revisions/%d", number), "there is no revision %d: the newest is %d", number, current.Revision())
	}
	revision, ok := current.RevisionAt(number)
	if !ok {
		return number, nil, nil
	}
	return number, revision.GetChanges(), nil
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
		if concerns(refusal, number, changed, p.Revision) {
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
