package rpc

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// backendService answers lbd.v1.BackendService.
type backendService struct {
	lbdv1.UnimplementedBackendServiceServer
	node     string
	store    Store
	observer Observer
	overlay  Overlay
	journal  Journal
	writer   *writer
	fleet    *fleet
}

// GetStatus reads backends as this node sees them, or each. A pool that is not stored is NOT_FOUND.
func (s *backendService) GetStatus(ctx context.Context, req *lbdv1.BackendServiceGetStatusRequest) (*lbdv1.BackendServiceGetStatusResponse, error) {
	here := func(context.Context) (*lbdv1.BackendServiceGetStatusResponse, error) {
		if err := s.find(req.GetPool()); err != nil {
			return nil, err
		}
		return &lbdv1.BackendServiceGetStatusResponse{Backends: s.observer.Backends(req.GetPool())}, nil
	}
	if req.GetNode() != everyNode {
		return here(ctx)
	}
	answers, unreached, err := answered(s.fleet, ask(ctx, s.fleet, here,
		func(ctx context.Context, conn grpc.ClientConnInterface) (*lbdv1.BackendServiceGetStatusResponse, error) {
			return lbdv1.NewBackendServiceClient(conn).GetStatus(ctx, req)
		}))
	if err != nil {
		return nil, err
	}
	out := &lbdv1.BackendServiceGetStatusResponse{Unreached: unreached}
	for _, a := range answers {
		out.Backends = append(out.Backends, a.answer.GetBackends()...)
	}
	slices.SortStableFunc(out.Backends, func(a, b *lbdv1.BackendStatus) int {
		return cmp.Or(strings.Compare(a.GetPool(), b.GetPool()), strings.Compare(a.GetAddress(), b.GetAddress()))
	})
	return out, nil
}

// WatchStatus streams what GetStatus reads: at once, and then once a second if something has changed. It ends when the pool
// goes.
func (s *backendService) WatchStatus(req *lbdv1.WatchStatusRequest, stream grpc.ServerStreamingServer[lbdv1.WatchStatusResponse]) error {
	tick := time.NewTicker(statusInterval)
	defer tick.Stop()
	var sent *lbdv1.WatchStatusResponse
	for {
		if err := s.find(req.GetPool()); err != nil {
			return err
		}
		now := &lbdv1.WatchStatusResponse{Backends: s.observer.Backends(req.GetPool())}
		if sent == nil || !proto.Equal(sent, now) {
			if err := stream.Send(now); err != nil {
				return err
			}
			sent = now
		}
		select {
		case <-tick.C:
		case <-stream.Context().Done():
			return context.Cause(stream.Context())
		}
	}
}

// SetState says what is wanted of a backend; READY ends what was said, and what this node has found out by requests.
func (s *backendService) SetState(ctx context.Context, req *lbdv1.SetStateRequest) (*lbdv1.SetStateResponse, error) {
	set := &lbdv1.Override{
		Pool: req.GetPool(), Address: req.GetAddress(), What: &lbdv1.Override_State{State: req.GetState()},
		Reason: req.GetReason(), ExpireTime: req.GetExpireTime(), CloseConnections: req.GetCloseConnections(),
	}
	inForce, err := s.set(ctx, set, req.GetRequestId(), req.GetNodeOnly())
	if err == nil && req.GetState() == lbdv1.BackendState_BACKEND_STATE_READY {
		s.observer.EndEjection(req.GetPool(), state.NormalAddress(req.GetAddress()))
	}
	return &lbdv1.SetStateResponse{Overrides: inForce}, err
}

// SetWeight gives a backend another weight.
func (s *backendService) SetWeight(ctx context.Context, req *lbdv1.SetWeightRequest) (*lbdv1.SetWeightResponse, error) {
	set := &lbdv1.Override{
		Pool: req.GetPool(), Address: req.GetAddress(), What: &lbdv1.Override_Weight{Weight: req.GetWeight()},
		Reason: req.GetReason(), ExpireTime: req.GetExpireTime(),
	}
	inForce, err := s.set(ctx, set, req.GetRequestId(), req.GetNodeOnly())
	return &lbdv1.SetWeightResponse{Overrides: inForce}, err
}

// set makes one override so, everywhere or on this node alone, and reads what is in force of its backend then.
func (s *backendService) set(ctx context.Context, set *lbdv1.Override, requestID string, here bool) ([]*lbdv1.Override, error) {
	if here {
		return s.sayHere(ctx, set)
	}
	if _, err := s.writer.override(ctx, &raftv1.OverrideCommand{RequestId: requestID, Sets: []*lbdv1.Override{set}}); err != nil {
		return nil, err
	}
	set.Address = state.NormalAddress(set.GetAddress())
	return s.inForceOf(set), nil
}

// ListOverrides reads the overrides in force: what is said of all nodes, and what of this one alone.
func (s *backendService) ListOverrides(_ context.Context, req *lbdv1.ListOverridesRequest) (*lbdv1.ListOverridesResponse, error) {
	if err := s.find(req.GetPool()); err != nil {
		return nil, err
	}
	return &lbdv1.ListOverridesResponse{Overrides: inForce(s.store.State(), s.overlay, req.GetPool(), s.writer.now())}, nil
}

// ClearOverrides ends overrides, and lists those that have ended by this very call: none for a retry.
func (s *backendService) ClearOverrides(ctx context.Context, req *lbdv1.ClearOverridesRequest) (*lbdv1.ClearOverridesResponse, error) {
	if req.GetNodeOnly() {
		ended, err := s.clearHere(ctx, req)
		return &lbdv1.ClearOverridesResponse{Overrides: ended}, err
	}
	clears := []*raftv1.OverrideKey{{Pool: req.GetPool(), Address: req.GetAddress()}}
	result, err := s.writer.override(ctx, &raftv1.OverrideCommand{RequestId: req.GetRequestId(), Clears: clears})
	if err != nil {
		return nil, err
	}
	return &lbdv1.ClearOverridesResponse{Overrides: result.Ended}, nil
}

// find refuses a pool that is not stored; none is all.
func (s *backendService) find(pool string) error {
	if pool == "" {
		return nil
	}
	if _, ok := s.store.State().Get(state.Pools, pool); !ok {
		return notFound("pools/"+pool, "there is no pool named `%s`", pool)
	}
	return nil
}

// override takes a command about overrides into the log, in the caller's name.
func (w *writer) override(ctx context.Context, cmd *raftv1.OverrideCommand) (state.Result, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return state.Result{}, err
	}
	for _, pool := range poolsOf(cmd) {
		// One that is not there is refused as that by the state.
		if stored, ok := w.store.State().Get(state.Pools, pool); ok {
			if err := requireOwner(ctx, stored.GetResource().GetOwner()); err != nil {
				return state.Result{}, err
			}
		}
	}
	cmd.Author, cmd.Time, cmd.Origin = by.Author, timestamppb.New(w.now()), origin(ctx)
	life, cancel := context.WithTimeout(w.life, proposeTimeoutMax)
	defer cancel()
	result, err := w.store.ProposeOverride(life, cmd)
	if err == nil {
		err = result.Err
	}
	return result, err
}

// poolsOf are the pools that a command is about.
func poolsOf(cmd *raftv1.OverrideCommand) []string {
	var pools []string
	for _, set := range cmd.GetSets() {
		pools = append(pools, set.GetPool())
	}
	for _, clear := range cmd.GetClears() {
		pools = append(pools, clear.GetPool())
	}
	return pools
}

// overridesNow are those of a pool, or of all, that have not expired.
func overridesNow(s *state.State, pool string, now time.Time) []*lbdv1.Override {
	var out []*lbdv1.Override
	for o := range s.Overrides(pool) {
		if o.GetExpireTime() == nil || o.GetExpireTime().AsTime().After(now) {
			out = append(out, o)
		}
	}
	return out
}
