package rpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"lbd/cluster"
	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// RemoveNode takes a node out, for good. What it knew is worth nothing afterwards: the sealing key, the authority and the ticket keys become others.
//
//  1. see that the cluster can do without it; a leader that is to go hands over first
//  2. stage a new sealing key on all others
//  3. one entry of the log: the node is no member, and another authority and fresh ticket keys, sealed under the new key, are in place
//  4. seal everything under the new key
//  5. wait until raft has followed
//
// Whatever cuts it off, the same request finishes it.
func (s *clusterService) RemoveNode(ctx context.Context, req *lbdv1.RemoveNodeRequest) (*lbdv1.RemoveNodeResponse, error) {
	if err := s.seated(); err != nil {
		return nil, err
	}
	by, err := s.writer.take(ctx)
	if err != nil {
		return nil, err
	}
	defer s.writer.give()
	if err := s.seat.AwaitReports(ctx); err != nil {
		return nil, err
	}
	return s.remove(ctx, by, req)
}

// awaitGone waits until raft counts a node no more.
func (s *clusterService) awaitGone(ctx context.Context, id string) error {
	return s.seat.AwaitMembers(ctx, func([]cluster.Member) bool { return !s.seat.Seated(id) })
}

// remove is RemoveNode once the turn is taken.
func (s *clusterService) remove(ctx context.Context, by Caller, req *lbdv1.RemoveNodeRequest) (*lbdv1.RemoveNodeResponse, error) {
	current := s.store.State()
	out := &lbdv1.RemoveNodeResponse{}
	if gone, ok := removedNode(current, req.GetNode()); ok && current.HasRequest(req.GetRequestId()) {
		out.Node = &lbdv1.Node{Id: gone.GetId(), Name: gone.GetName(), Key: gone.GetKey()}
	} else {
		n, err := s.member(req.GetNode())
		if err != nil {
			return nil, err
		}
		out.Node = n
		if out.Unreached, err = s.takeOut(ctx, by, n, req); err != nil {
			return nil, err
		}
	}
	if err := s.sealAll(ctx, by, "everything sealed anew, as node "+out.GetNode().GetName()+" was removed"); err != nil {
		return nil, err
	}
	if err := s.awaitGone(ctx, out.GetNode().GetId()); err != nil {
		return nil, err
	}
	current = s.store.State()
	for stored := range current.All(state.Certificates) {
		out.Certificates = append(out.Certificates, stored.GetResource().GetCertificate().GetName())
	}
	authority, _ := current.Authority()
	out.Authority, out.PreviousAuthority = pins(authority)
	return out, nil
}

// takeOut makes a member one that was. It returns who was out of contact.
func (s *clusterService) takeOut(ctx context.Context, by Caller, n *lbdv1.Node, req *lbdv1.RemoveNodeRequest) (unreached []string, err error) {
	if len(slices.Collect(s.store.State().Nodes())) == 1 {
		return nil, notAllowed(reasonPrecondition, "node `%s` is the only one: stop it instead", n.GetName())
	}
	if err := s.checkRemoval(by, n, req); err != nil {
		return nil, err
	}
	if err := s.giveWay(ctx, n); err != nil {
		return nil, err
	}
	key, unreached, err := s.stage(ctx, n.GetId(), req.GetForce())
	if err != nil {
		return nil, err
	}
	remove := &raftv1.RemoveNode{Id: n.GetId()}
	if present, ok := s.store.State().Authority(); ok {
		if remove.Authority, err = s.nextAuthority(present, !req.GetCompromised(), key); err != nil {
			s.unstage(ctx, []string{n.GetId()}, key)
			return nil, err
		}
	}
	if remove.TicketKeys, err = s.renewTicketKeys(s.store.State(), key, 1, req.GetCompromised()); err != nil {
		s.unstage(ctx, []string{n.GetId()}, key)
		return nil, err
	}
	_, err = s.proposeNode(ctx, by, req.GetRequestId(), &raftv1.NodeCommand{Change: &raftv1.NodeCommand_Remove{Remove: remove}})
	if err != nil && !errors.Is(err, cluster.ErrOutcomeUnknown) {
		s.unstage(ctx, []string{n.GetId()}, key)
	}
	return unreached, err
}

// checkRemoval refuses what the cluster could not bear, before anything is done: the leader would hand over first.
func (s *clusterService) checkRemoval(by Caller, n *lbdv1.Node, req *lbdv1.RemoveNodeRequest) error {
	asked := cmp.Or(by.Via, s.node) // which node the caller talks to
	if req.GetCompromised() && asked == n.GetName() {
		return notAllowed(reasonPrecondition, "node `%s` is the one that you talk to: call one whose keys are not in wrong hands (--endpoints)", n.GetName())
	}
	if err := s.checkLoss(n); err != nil {
		return err
	}
	return s.checkReach(n, req.GetForce())
}

// checkReach refuses, without force, what would leave nobody who takes traffic, or somebody who does not hear of the removal.
func (s *clusterService) checkReach(n *lbdv1.Node, force bool) error {
	if force {
		return nil
	}
	var silent []string
	for _, m := range s.seat.Members() {
		if !m.Live && m.Node.GetId() != n.GetId() {
			silent = append(silent, m.Node.GetName())
		}
	}
	if len(silent) > 0 {
		return notAllowed(reasonUnreached, "the new sealing key has not come to %s (out of contact): bring that back first, or use force: it fetches the key when it is back", strings.Join(silent, ", "))
	}
	serves := n.GetDrain() == nil && s.seatOf(n.GetId()).Live
	if serves && !s.othersServe(n.GetId()) {
		return notAllowed(reasonLastNode, "node `%s` is the last one in contact that takes traffic: undrain or bring back another one first, or say that it is meant, with --force", n.GetName())
	}
	return nil
}

// nextAuthority is one that can take the present one's place, its key sealed under a sealing key that is staged. The present one's pin goes on
// being good where keep is set.
func (s *clusterService) nextAuthority(present *raftv1.Authority, keep bool, key string) (*raftv1.Authority, error) {
	if s.authorities == nil {
		return nil, errNoPort
	}
	next, _, err := s.authorities.Next(present, keep, key)
	if err != nil {
		return nil, fmt.Errorf("make a certificate authority: %w", err)
	}
	return next, nil
}

// ReplaceNode makes a node that has joined a voter in the place of another, which is removed. Where there are as many voters as there may
// be, the old one gives its vote up first.
func (s *clusterService) ReplaceNode(ctx context.Context, req *lbdv1.ReplaceNodeRequest) (*lbdv1.ReplaceNodeResponse, error) {
	if err := s.seated(); err != nil {
		return nil, err
	}
	by, err := s.writer.take(ctx)
	if err != nil {
		return nil, err
	}
	defer s.writer.give()
	if err := s.seat.AwaitReports(ctx); err != nil {
		return nil, err
	}
	next, err := s.member(req.GetNew())
	if err != nil {
		return nil, err
	}
	if old, err := s.member(req.GetOld()); err == nil {
		if old.GetId() == next.GetId() {
			return nil, invalidField("new", "is node `%s` itself", old.GetName())
		}
		if err := s.checkReach(old, req.GetForce()); err != nil {
			return nil, err
		}
		if err := s.swapVotes(ctx, by, old, next); err != nil {
			return nil, err
		}
	}
	removed, err := s.remove(ctx, by, &lbdv1.RemoveNodeRequest{
		Node: req.GetOld(), Compromised: req.GetCompromised(), Force: req.GetForce(), RequestId: req.GetRequestId(),
	})
	if err != nil {
		return nil, err
	}
	next, _ = s.store.State().Node(next.GetId())
	return &lbdv1.ReplaceNodeResponse{Removed: removed, Node: next}, nil
}

// swapVotes gives the new node its vote before the old one goes.
func (s *clusterService) swapVotes(ctx context.Context, by Caller, old, next *lbdv1.Node) error {
	if !s.seatOf(next.GetId()).Live {
		return notAllowed(reasonPrecondition, "node `%s` is out of contact: it cannot take the place of `%s`", next.GetName(), old.GetName())
	}
	if err := s.giveWay(ctx, old); err != nil {
		return err
	}
	votes := lbdv1.NodeRole_NODE_ROLE_VOTER
	if !s.seatOf(old.GetId()).Voter || s.seatOf(next.GetId()).Voter {
		return nil
	}
	if err := s.checkRole(ctx, next, true); err != nil {
		if err := s.setRole(ctx, by, old, lbdv1.NodeRole_NODE_ROLE_NON_VOTER, ""); err != nil {
			return err
		}
	}
	return s.setRole(ctx, by, next, votes, "")
}
