package rpc

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// RotateAuthority makes a new certificate authority. What people have pinned stays good, until RetireAuthority.
func (s *clusterService) RotateAuthority(ctx context.Context, req *lbdv1.RotateAuthorityRequest) (*lbdv1.RotateAuthorityResponse, error) {
	by, err := s.writer.take(ctx)
	if err != nil {
		return nil, err
	}
	defer s.writer.give()
	current := s.store.State()
	present, ok := current.Authority()
	switch {
	case !ok:
		return nil, errNoPort
	case current.HasRequest(req.GetRequestId()):
	case len(present.GetPreviousCertificate()) > 0:
		return nil, notAllowed(reasonPrecondition, "the pin of the authority before, %s, is still good: give everybody the present one, %s, then `lbctl cluster rotate-ca --retire`",
			pin(present.GetPreviousCertificate()), pin(present.GetCertificate()))
	default:
		active, err := s.followAuthority()
		if err != nil {
			return nil, err
		}
		next, err := s.nextAuthority(present, true, active)
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(present.GetCertificate())
		cmd := &raftv1.AuthorityCommand{Authority: next, ReplacesSha256: sum[:]}
		if err := s.proposeAuthority(ctx, by, req.GetRequestId(), cmd); err != nil {
			return nil, err
		}
	}
	present, _ = s.store.State().Authority()
	out := &lbdv1.RotateAuthorityResponse{}
	out.Authority, out.PreviousAuthority = pins(present)
	return out, nil
}

// RetireAuthority ends the trust in the previous authority's pin. There may be none.
func (s *clusterService) RetireAuthority(ctx context.Context, req *lbdv1.RetireAuthorityRequest) (*lbdv1.RetireAuthorityResponse, error) {
	by, err := s.writer.take(ctx)
	if err != nil {
		return nil, err
	}
	defer s.writer.give()
	if _, ok := s.store.State().Authority(); !ok {
		return nil, errNoPort
	}
	if err := s.proposeAuthority(ctx, by, req.GetRequestId(), &raftv1.AuthorityCommand{Retire: true}); err != nil {
		return nil, err
	}
	present, _ := s.store.State().Authority()
	return &lbdv1.RetireAuthorityResponse{Authority: pin(present.GetCertificate())}, nil
}

func (s *clusterService) proposeAuthority(ctx context.Context, by Caller, request string, cmd *raftv1.AuthorityCommand) error {
	cmd.Author, cmd.Time, cmd.Origin, cmd.RequestId = by.Author, timestamppb.New(s.writer.now()), origin(ctx), request
	_, err := s.writer.command(&raftv1.Command{Kind: &raftv1.Command_Authority{Authority: cmd}})
	return err
}

// pins are what people pin: of the present authority, and of the one before as long as it is good.
func pins(a *raftv1.Authority) (present, previous string) {
	if len(a.GetCertificate()) > 0 {
		present = pin(a.GetCertificate())
	}
	if len(a.GetCrossCertificate()) > 0 {
		previous = pin(a.GetPreviousCertificate())
	}
	return present, previous
}

// RecoverCluster makes this node the only one of a new epoch, where most voters are lost for good:
//
//  1. it is meant, by somebody on this machine, and nobody leads
//  2. a new sealing key and a new authority: what the others know is worth nothing
//  3. raft begins anew with this node; the state stays
//  4. everything is sealed under the new key
func (s *clusterService) RecoverCluster(ctx context.Context, req *lbdv1.RecoverClusterRequest) (*lbdv1.RecoverClusterResponse, error) {
	by, err := s.writer.take(ctx)
	if err != nil {
		return nil, err
	}
	defer s.writer.give()
	if err := s.checkRecovery(by, req); err != nil {
		return nil, err
	}
	current := s.store.State()
	out := &lbdv1.RecoverClusterResponse{Epoch: current.Epoch() + 1}
	for n := range current.Nodes() {
		if n.GetId() != s.seat.ID() {
			out.Removed = append(out.Removed, n)
		}
	}
	slices.SortFunc(out.Removed, func(a, b *lbdv1.Node) int { return strings.Compare(a.GetName(), b.GetName()) })
	epoch := &raftv1.EpochCommand{
		Author: by.Author, Time: timestamppb.New(s.writer.now()), Origin: origin(ctx), Node: s.seat.ID(), Epoch: out.GetEpoch(),
	}
	key, err := s.keys.StageSealKey(ctx)
	if err != nil {
		return nil, s.withFree(err)
	}
	if present, ok := current.Authority(); ok {
		if epoch.Authority, err = s.nextAuthority(present, true, key); err != nil {
			return nil, errors.Join(err, s.keys.RetireSealKey(key))
		}
	}
	// Not with the caller: once begun, it has to come to its end.
	whole, cancel := context.WithTimeout(s.writer.life, recoverTimeoutMax)
	defer cancel()
	if err := s.seat.Recover(whole, epoch); err != nil {
		return nil, fmt.Errorf("begin epoch %d: %w", out.GetEpoch(), err)
	}
	if err := s.sealAll(ctx, by, fmt.Sprintf("everything sealed anew, as epoch %d has begun", out.GetEpoch())); err != nil {
		return nil, err
	}
	present, _ := s.store.State().Authority()
	out.Authority, _ = pins(present)
	return out, nil
}

// checkRecovery refuses what is not meant, or not needed.
func (s *clusterService) checkRecovery(by Caller, req *lbdv1.RecoverClusterRequest) error {
	current := s.store.State()
	switch {
	case s.seat == nil || s.peers == nil:
		return errNoPort
	case by.Kind != kindSocket || by.Via != "":
		return permissionDenied(reasonSocket, "this is for the control socket of the node that is to go on: call it on its own machine")
	case req.GetClusterId() != current.ClusterID():
		return invalidField("cluster_id", "`%s` is not this cluster's, which is %s", clip(req.GetClusterId()), current.ClusterID())
	}
	leader := s.seat.Leader()
	if n, ok := current.Node(leader); ok {
		return notAllowed(reasonPrecondition, "node `%s` leads: there is nothing to recover; remove the nodes that are gone, `lbctl cluster remove NODE`", n.GetName())
	}
	if _, ok := current.Node(s.seat.ID()); !ok {
		return notAllowed(reasonPrecondition, "this node is no member of the cluster yet: recover another one")
	}
	return nil
}
