package rpc

import (
	"context"
	"crypto/sha256"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

const (
	joinTokenPrefix      = "lbj_"
	joinTokenLifeDefault = time.Hour
)

// CreateJoinToken makes a token with which nodes join. Beside its secret it has the hash of the cluster's authority, so that a node knows
// whom it joins before it shows the secret.
func (s *clusterService) CreateJoinToken(ctx context.Context, req *lbdv1.CreateJoinTokenRequest) (*lbdv1.CreateJoinTokenResponse, error) {
	addresses := s.addresses()
	if len(addresses) == 0 {
		return nil, errNoPort
	}
	awaitAuthority(ctx, s.store)
	authority, ok := s.store.State().Authority()
	if !ok {
		return nil, unavailable(reasonNoLeader, "the cluster has no certificate authority yet: try again in a moment")
	}
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	now := s.writer.now()
	life := joinTokenLifeDefault
	if req.GetTtl() != nil {
		life = req.GetTtl().AsDuration()
	}
	token := &lbdv1.JoinToken{
		Id: randomText(tokenIDBytes), ExpireTime: timestamppb.New(now.Add(life)), Uses: req.GetUses(), Reusable: req.GetReusable(),
		Node: req.GetNode(), Sources: req.GetSources(), Approval: req.GetApproval(),
	}
	if token.GetUses() == 0 && !token.GetReusable() {
		token.Uses = 1
	}
	secret := randomText(tokenSecretBytes)
	sum := sha256.Sum256([]byte(secret))
	result, err := s.writer.command(&raftv1.Command{Kind: &raftv1.Command_JoinToken{JoinToken: &raftv1.JoinTokenCommand{
		Author: by.Author, Time: timestamppb.New(now), RequestId: req.GetRequestId(), Origin: origin(ctx),
		Create: &raftv1.StoredJoinToken{Token: token, SecretSha256: sum[:]},
	}}})
	if err != nil {
		return nil, err
	}
	made, ok := s.store.State().JoinToken(tokenOf(result))
	if !ok {
		return nil, notFound("join_tokens", "the join token that this request made once was used or revoked since")
	}
	out := &lbdv1.CreateJoinTokenResponse{Token: made.GetToken(), Addresses: addresses}
	if !result.Replayed {
		out.Secret = joinTokenPrefix + token.GetId() + "_" + secret + "_" + strings.TrimPrefix(pin(authority.GetCertificate()), "sha256:")
	}
	return out, nil
}

// addresses are where nodes join: this one's first.
func (s *clusterService) addresses() []string {
	if s.seat == nil {
		return nil
	}
	var all []string
	for n := range s.store.State().Nodes() {
		switch {
		case n.GetAddress() == "":
		case n.GetId() == s.seat.ID():
			all = slices.Insert(all, 0, n.GetAddress())
		default:
			all = append(all, n.GetAddress())
		}
	}
	return all
}

// ListJoinTokens reads the tokens that are still good, and the nodes that wait for an approval; each the oldest first.
func (s *clusterService) ListJoinTokens(context.Context, *lbdv1.ListJoinTokensRequest) (*lbdv1.ListJoinTokensResponse, error) {
	current, out := s.store.State(), &lbdv1.ListJoinTokensResponse{}
	for stored := range current.JoinTokens() {
		if !state.JoinTokenExpired(stored.GetToken(), s.writer.now()) {
			out.Tokens = append(out.Tokens, stored.GetToken())
		}
	}
	for waiting := range current.PendingJoins() {
		if !waiting.GetApproved() {
			out.Pending = append(out.Pending, waiting.GetNode())
		}
	}
	slices.SortStableFunc(out.Tokens, func(a, b *lbdv1.JoinToken) int {
		return a.GetCreateTime().AsTime().Compare(b.GetCreateTime().AsTime())
	})
	slices.SortStableFunc(out.Pending, func(a, b *lbdv1.PendingNode) int { return a.GetTime().AsTime().Compare(b.GetTime().AsTime()) })
	return out, nil
}

// RevokeJoinToken ends a token. Nodes that have joined with it stay; those that wait for an approval are turned away.
func (s *clusterService) RevokeJoinToken(ctx context.Context, req *lbdv1.RevokeJoinTokenRequest) (*lbdv1.RevokeJoinTokenResponse, error) {
	if req.GetId() == "" {
		return nil, invalidField("id", "the join token's id is missing: what is between the first underscores of `lbj_<id>_…`")
	}
	if _, err := s.joinTokens(ctx, req.GetRequestId(), &raftv1.JoinTokenCommand{Revokes: []string{req.GetId()}}); err != nil {
		return nil, err
	}
	return &lbdv1.RevokeJoinTokenResponse{}, nil
}

// ApproveNode lets a node in, or turns it away, that waits for that. It is a member with its own next call.
func (s *clusterService) ApproveNode(ctx context.Context, req *lbdv1.ApproveNodeRequest) (*lbdv1.ApproveNodeResponse, error) {
	if req.GetNode() == "" {
		return nil, invalidField("node", "the name or id of a node is missing that waits: `lbctl cluster join-token list`")
	}
	out := &lbdv1.ApproveNodeResponse{Node: &lbdv1.PendingNode{Name: req.GetNode()}}
	if waiting, ok := s.store.State().PendingJoin(req.GetNode()); ok {
		out.Node = waiting.GetNode()
	}
	cmd := &raftv1.JoinTokenCommand{}
	if req.GetReject() {
		cmd.Rejects = []string{req.GetNode()}
	} else {
		cmd.Approves = []string{req.GetNode()}
	}
	if _, err := s.joinTokens(ctx, req.GetRequestId(), cmd); err != nil {
		return nil, err
	}
	return out, nil
}

// joinTokens takes a command about join tokens into the log, in the caller's name.
func (s *clusterService) joinTokens(ctx context.Context, request string, cmd *raftv1.JoinTokenCommand) (state.Result, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return state.Result{}, err
	}
	cmd.Author, cmd.Time, cmd.RequestId, cmd.Origin = by.Author, timestamppb.New(s.writer.now()), request, origin(ctx)
	return s.writer.command(&raftv1.Command{Kind: &raftv1.Command_JoinToken{JoinToken: cmd}})
}
