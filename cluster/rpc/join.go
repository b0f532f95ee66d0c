package rpc

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// Join lets a node in:
//
//  1. it has the key that it names: its connection has shown it
//  2. who was let in already, or waits already, needs no token again: it was cut off
//  3. the token, and what it is bound to
//  4. it will be able to open what the cluster has sealed
//  5. it becomes a member, or one that waits; raft follows
//  6. the answer: who the others are, and the sealing keys
func (s *peerService) Join(ctx context.Context, req *raftv1.JoinRequest) (*raftv1.JoinResponse, error) {
	source, leaf := joinerOf(ctx)
	n, current := req.GetNode(), s.store.State()
	switch {
	case n.GetId() == "" || leaf == nil:
		return nil, invalidField("node", "a node joins under its id, and shows its key by a client certificate")
	case pin(req.GetPublicKey()) != n.GetKey() || publicKeyPin(leaf) != n.GetKey():
		return nil, s.refuseJoin(ctx, source, n, unauthenticated(reasonBadCredential, "the key that the node names is not the one that it has shown"))
	}
	if gone, ok := current.RemovedNode(n.GetId()); ok {
		return nil, s.refuseJoin(ctx, source, n, permissionDenied(reasonRemoved, "this node was removed at %s: it may join anew on an empty data directory", utc(gone.GetTime().AsTime())))
	}
	if known, ok := current.Node(n.GetId()); ok && known.GetKey() == n.GetKey() {
		return s.letIn(req, s.usedSealKeys()) // not one that is staged to remove this very node
	}
	join := &raftv1.JoinNode{Node: n, Source: hostOf(source)}
	if waiting, ok := current.PendingJoin(n.GetId()); ok && waiting.GetNode().GetKey() == n.GetKey() {
		join.TokenId, join.Pending = waiting.GetNode().GetTokenId(), !waiting.GetApproved()
	} else {
		token, err := s.joinToken(req, source)
		if err != nil {
			return nil, s.refuseJoin(ctx, source, n, err)
		}
		join.TokenId, join.Pending = token.GetId(), token.GetApproval()
	}
	if err := s.canOpen(req); err != nil {
		return nil, err
	}
	if _, err := s.writer.command(&raftv1.Command{Kind: &raftv1.Command_Node{Node: &raftv1.NodeCommand{
		Author: "join token " + join.GetTokenId(), Time: timestamppb.New(s.writer.now()),
		Origin: &raftv1.Origin{Source: hostOf(source), Method: "PeerService/Join"},
		Change: &raftv1.NodeCommand_Join{Join: join},
	}}}); err != nil {
		return nil, err
	}
	if join.GetPending() {
		return &raftv1.JoinResponse{Pending: true, ClusterId: current.ClusterID()}, nil
	}
	ids, _ := s.keys.SealKeys()
	return s.letIn(req, ids)
}

// joinToken finds the token that a joining node shows, and says why it may not join with it.
func (s *peerService) joinToken(req *raftv1.JoinRequest, source string) (*lbdv1.JoinToken, error) {
	if req.GetWaiting() {
		return nil, permissionDenied(reasonRejected, "the node was turned away, or has waited for more than a day: make another join token, and approve it")
	}
	id, secret, _ := strings.Cut(req.GetToken(), "_")
	stored, known := s.store.State().JoinToken(id)
	sum := sha256.Sum256([]byte(secret))
	if subtle.ConstantTimeCompare(sum[:], stored.GetSecretSha256()) == 0 || !known {
		return nil, unauthenticated(reasonBadCredential, "the join token `lbj_%s_…` is not known: it was used, was revoked, has expired, or is misspelt; `lbctl cluster join-token create` makes another one", clip(id))
	}
	if fault := state.JoinTokenFault(stored.GetToken(), req.GetNode().GetName(), source, s.writer.now()); fault != "" {
		return nil, permissionDenied(reasonJoinToken, "the join token `lbj_%s_…` %s", id, fault)
	}
	return stored.GetToken(), nil
}

// refuseJoin notes a node that may not join. Who cannot say who it is has to wait after too many attempts.
func (s *peerService) refuseJoin(ctx context.Context, source string, n *lbdv1.Node, refusal error) error {
	answer, result := refusal, "forbidden"
	if status.Code(refusal) == codes.Unauthenticated {
		result = "unauthenticated"
		if answer = s.failures.refuse(source, s.writer.now(), refusal); answer != refusal {
			result = "limited"
		}
	}
	s.journal.Refuse(&lbdv1.ListAuditResponse{
		Time: timestamppb.New(s.writer.now()), Author: "node " + clip(n.GetName()), Source: hostOf(source), Method: "PeerService/Join", Result: result,
		Message: status.Convert(refusal).Message(), Count: 1,
	})
	return answer
}

// canOpen refuses a node whose sealing keys come from where this cluster's are not.
func (s *peerService) canOpen(req *raftv1.JoinRequest) error {
	if !req.GetKeepsSealKeys() {
		return nil
	}
	ids, _ := s.keys.SealKeys()
	for _, id := range ids {
		if !slices.Contains(req.GetSealKeyIds(), id) {
			return notAllowed(reasonSealKey, "the node's own source of sealing keys lacks key %s of this cluster: bring it there first (`lbctl cluster seal-key export`)", id)
		}
	}
	return nil
}

// letIn is the answer to a node that is a member; keys are the sealing keys that it gets.
func (s *peerService) letIn(req *raftv1.JoinRequest, keys []string) (*raftv1.JoinResponse, error) {
	current := s.store.State()
	out := &raftv1.JoinResponse{ClusterId: current.ClusterID(), Epoch: current.Epoch(), Gate: current.Gate()}
	for n := range current.Nodes() {
		out.Members = append(out.Members, n)
	}
	if !req.GetKeepsSealKeys() {
		out.SealKeys = s.keys.SealKeyText(keys)
	}
	return out, nil
}

// GetSealKeys hands sealing keys to a member that lacks them. What is staged is told only by who stages it: a node that is about to be removed, or
// whose removal this one has not heard of, must not have it.
func (s *peerService) GetSealKeys(_ context.Context, req *raftv1.GetSealKeysRequest) (*raftv1.GetSealKeysResponse, error) {
	used := s.usedSealKeys()
	ids := slices.DeleteFunc(slices.Clone(req.GetIds()), func(id string) bool { return !slices.Contains(used, id) })
	return &raftv1.GetSealKeysResponse{SealKeys: s.keys.SealKeyText(ids)}, nil
}

// usedSealKeys are the sealing keys under which this node's state has something.
func (s *peerService) usedSealKeys() []string {
	var used []string
	for secret := range s.store.State().Secrets() {
		if id, err := s.keys.SealKeyOf(secret.Sealed); err == nil && !slices.Contains(used, id) {
			used = append(used, id)
		}
	}
	return used
}

// StageSealKeys takes sealing keys in before anything is sealed under them, and forgets others.
func (s *peerService) StageSealKeys(ctx context.Context, req *raftv1.StageSealKeysRequest) (*raftv1.StageSealKeysResponse, error) {
	defer clear(req.GetSealKeys())
	if len(req.GetSealKeys()) > 0 {
		if err := s.keys.AddSealKeys(ctx, req.GetSealKeys()); err != nil {
			return nil, err
		}
	}
	ids, _ := s.keys.SealKeys()
	for _, id := range req.GetRetires() {
		if !slices.Contains(ids, id) {
			continue
		}
		if err := s.keys.RetireSealKey(id); err != nil {
			return nil, err
		}
	}
	return &raftv1.StageSealKeysResponse{}, nil
}

// Scrub makes this node's disk forget what is no longer in the state.
func (s *peerService) Scrub(ctx context.Context, req *raftv1.ScrubRequest) (*raftv1.ScrubResponse, error) {
	if err := s.seat.WaitApplied(ctx, req.GetIndex()); err != nil {
		return nil, err
	}
	scrub, cancel := context.WithTimeout(s.writer.life, scrubTimeoutMax)
	defer cancel()
	if err := s.store.Scrub(scrub); err != nil {
		return nil, err
	}
	return &raftv1.ScrubResponse{}, nil
}
