package rpc

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// overlayExpiryMax is how long what was said on one node alone may hold: it is for an emergency, and must not outlive it unseen.
const overlayExpiryMax = 24 * time.Hour

// Overlay is what operators have said of backends on this node alone, over what is replicated. It needs no leader, no quorum and no disk.
type Overlay interface {
	// Overrides are those in force of a pool, or of all if the name is empty, by pool, address and what they say. Their node is set.
	Overrides(pool string) []*lbdv1.Override
	// Say puts an override in the place of what was said of the same backend before.
	Say(*lbdv1.Override)
	// Unsay ends what was said of a backend, or of all of a pool's if the address is empty; with stateOnly no weight. It returns what has ended.
	Unsay(pool, address string, stateOnly bool) []*lbdv1.Override
}

// noOverlay is that of a node that keeps none.
type noOverlay struct{}

func (noOverlay) Overrides(string) []*lbdv1.Override           { return nil }
func (noOverlay) Say(*lbdv1.Override)                          {}
func (noOverlay) Unsay(string, string, bool) []*lbdv1.Override { return nil }

// inForce are the overrides of a pool, or of all, that have not expired: those that are replicated, then those of this node alone.
func inForce(s *state.State, overlay Overlay, pool string, now time.Time) []*lbdv1.Override {
	return append(overridesNow(s, pool, now), overlay.Overrides(pool)...)
}

// sayHere makes one override so on this node alone:
//
//  1. only who sits at the node may: what holds for one node is nothing that anybody should find out about from afar
//  2. it is judged as if it were replicated, on the present state
//  3. it has an end
//  4. it is in force, and noted in the node's own journal
func (s *backendService) sayHere(ctx context.Context, set *lbdv1.Override) ([]*lbdv1.Override, error) {
	by, err := s.onlyHere(ctx, set.GetPool())
	if err != nil {
		return nil, err
	}
	now := s.writer.now()
	set.Address = state.NormalAddress(set.GetAddress())
	trial := &raftv1.OverrideCommand{Author: by.Author, Time: timestamppb.New(now), Sets: []*lbdv1.Override{set}}
	if _, result := s.store.State().Apply(&raftv1.Command{Kind: &raftv1.Command_Override{Override: trial}}); result.Err != nil {
		return nil, result.Err
	}
	ready := set.GetState() == lbdv1.BackendState_BACKEND_STATE_READY
	switch end := set.GetExpireTime(); {
	case end == nil && ready:
		for _, o := range s.overlay.Unsay(set.GetPool(), set.GetAddress(), true) {
			s.noteHere(ctx, by, fmt.Sprintf("pools/%s %s: what was said on this node alone has ended", o.GetPool(), o.GetAddress()))
		}
		return s.inForceOf(set), nil
	case end == nil:
		return nil, invalidField("expire_time", "is required for what holds on one node alone: at most %s", overlayExpiryMax)
	case end.AsTime().Sub(now) > overlayExpiryMax:
		return nil, invalidField("expire_time", "is too far away for what holds on one node alone: at most %s", overlayExpiryMax)
	}
	set.Node, set.Author, set.CreateTime = s.node, by.Author, timestamppb.New(now)
	s.overlay.Say(set)
	s.noteHere(ctx, by, "on this node alone: "+sayingText(set))
	return s.inForceOf(set), nil
}

// clearHere ends what was said on this node alone. A pool that is gone may still have some.
func (s *backendService) clearHere(ctx context.Context, req *lbdv1.ClearOverridesRequest) ([]*lbdv1.Override, error) {
	by, err := s.onlyHere(ctx, req.GetPool())
	if err != nil {
		return nil, err
	}
	if req.GetPool() == "" {
		return nil, invalidField("pool", "is required: the name of a pool")
	}
	if len(s.overlay.Overrides(req.GetPool())) == 0 {
		if err := s.find(req.GetPool()); err != nil {
			return nil, err
		}
	}
	address := req.GetAddress()
	if address != "" {
		address = state.NormalAddress(address)
	}
	ended := s.overlay.Unsay(req.GetPool(), address, false)
	for _, o := range ended {
		s.noteHere(ctx, by, fmt.Sprintf("pools/%s %s: what was said on this node alone has ended", o.GetPool(), o.GetAddress()))
	}
	return ended, nil
}

// onlyHere refuses who does not call by this node's own control socket, and who is bound to others than the pool's owner.
func (s *backendService) onlyHere(ctx context.Context, pool string) (Caller, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return by, err
	}
	if !onSocket(ctx) {
		return by, permissionDenied(reasonSocket, "what holds on one node alone is said on that node's own machine, by its control socket: `lbctl --node-local`")
	}
	if s.overlay == (noOverlay{}) {
		return by, withDetails(codes.Unimplemented, reasonPrecondition, "this node keeps nothing that holds on it alone")
	}
	if stored, ok := s.store.State().Get(state.Pools, pool); ok {
		return by, requireOwner(ctx, stored.GetResource().GetOwner())
	}
	return by, nil
}

// onSocket tells whether a call has come by the control socket of this very node, whatever was said of its caller.
func onSocket(ctx context.Context) bool {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return false
	}
	_, local := p.AuthInfo.(user)
	return local
}

// inForceOf is what is in force of an override's backend.
func (s *backendService) inForceOf(set *lbdv1.Override) []*lbdv1.Override {
	others := func(o *lbdv1.Override) bool { return o.GetAddress() != set.GetAddress() }
	return slices.DeleteFunc(inForce(s.store.State(), s.overlay, set.GetPool(), s.writer.now()), others)
}

// noteHere is the audit of what no log has.
func (s *backendService) noteHere(ctx context.Context, by Caller, message string) {
	method, _ := grpc.Method(ctx)
	s.journal.Note(&lbdv1.ListAuditResponse{
		Time: timestamppb.New(s.writer.now()), Author: by.Author, Source: hostOf(by.Source), Method: shortMethod(method),
		Result: resultAccepted, Message: message, Count: 1,
	})
}

// resultAccepted is the audit's word for what was not refused.
const resultAccepted = "accepted"

// sayingText is an override in words, as the audit has it.
func sayingText(o *lbdv1.Override) string {
	what := fmt.Sprintf("weight %d", o.GetWeight())
	if o.GetState() != 0 {
		what = strings.ToLower(strings.TrimPrefix(o.GetState().String(), "BACKEND_STATE_"))
	}
	text := fmt.Sprintf("pools/%s %s: %s until %s", o.GetPool(), o.GetAddress(), what, utc(o.GetExpireTime().AsTime()))
	if o.GetReason() != "" {
		text += " (" + o.GetReason() + ")"
	}
	return text
}
