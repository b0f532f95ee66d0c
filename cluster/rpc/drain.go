package rpc

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// DrainNode makes a node give its traffic up. It stays a member, votes and follows; the node itself does what it takes, in its own time.
func (s *clusterService) DrainNode(ctx context.Context, req *lbdv1.DrainNodeRequest) (*lbdv1.DrainNodeResponse, error) {
	by, err := s.writer.take(ctx)
	if err != nil {
		return nil, err
	}
	defer s.writer.give()
	if s.seat != nil {
		if err := s.seat.AwaitReports(ctx); err != nil {
			return nil, err
		}
	}
	n, err := s.member(req.GetNode())
	if err != nil {
		return nil, err
	}
	if !req.GetForce() && !s.othersServe(n.GetId()) {
		return nil, notAllowed(reasonLastNode, "no other node that is in contact takes traffic: undrain or bring back another one first, or say that it is meant, with --force")
	}
	n, err = s.setDrain(ctx, by, n, req.GetRequestId(), &lbdv1.NodeDrain{Author: by.Author, Reason: req.GetReason(), Time: timestamppb.New(s.writer.now())})
	return &lbdv1.DrainNodeResponse{Node: n}, err
}

// UndrainNode makes a node take traffic again.
func (s *clusterService) UndrainNode(ctx context.Context, req *lbdv1.UndrainNodeRequest) (*lbdv1.UndrainNodeResponse, error) {
	by, err := s.writer.take(ctx)
	if err != nil {
		return nil, err
	}
	defer s.writer.give()
	n, err := s.member(req.GetNode())
	if err != nil {
		return nil, err
	}
	n, err = s.setDrain(ctx, by, n, req.GetRequestId(), nil)
	return &lbdv1.UndrainNodeResponse{Node: n}, err
}

// setDrain takes into the log whether a node is drained, and reads how it is then.
func (s *clusterService) setDrain(ctx context.Context, by Caller, n *lbdv1.Node, request string, drain *lbdv1.NodeDrain) (*lbdv1.Node, error) {
	cmd := &raftv1.NodeCommand{Change: &raftv1.NodeCommand_Drain{Drain: &raftv1.SetNodeDrain{Id: n.GetId(), Drain: drain}}}
	if _, err := s.proposeNode(ctx, by, request, cmd); err != nil {
		return nil, err
	}
	now, ok := s.store.State().Node(n.GetId())
	if !ok {
		return nil, notFound("nodes/"+n.GetName(), "node `%s` was removed", n.GetName())
	}
	return now, nil
}

// othersServe reports whether a node other than this one is in contact and takes traffic.
func (s *clusterService) othersServe(id string) bool {
	if s.seat == nil {
		return false
	}
	for _, m := range s.seat.Members() {
		if m.Node.GetId() != id && m.Node.GetDrain() == nil && m.Live {
			return true
		}
	}
	return false
}
