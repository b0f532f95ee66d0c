package rpc

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cluster"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// membersSeat is a leader's, who is in contact with all nodes but those that are away.
type membersSeat struct {
	Seat
	store *memoryStore
	away  map[string]bool
}

func (s *membersSeat) Members() (all []cluster.Member) {
	for n := range s.store.State().Nodes() {
		all = append(all, cluster.Member{Node: n, Live: !s.away[n.GetName()]})
	}
	return all
}

func (s *membersSeat) AwaitReports(context.Context) error { return nil }

// TestDrainNode: nobody drains the last node that takes traffic by mistake, and who drained one, and why, is kept.
func TestDrainNode(t *testing.T) {
	r := newRig(t)
	for i := range 3 {
		n := &lbdv1.Node{
			Id: fmt.Sprintf("n%016d", i+1), Name: fmt.Sprintf("edge-%d", i+1), Address: fmt.Sprintf("10.0.0.%d:7443", i+1), Role: lbdv1.NodeRole_NODE_ROLE_VOTER,
			Key: fmt.Sprintf("sha256:%064d", i+1), Gate: 1,
		}
		join := &raftv1.JoinNode{Node: n}
		if i > 0 { // the first of the cluster has no token
			token := &raftv1.StoredJoinToken{SecretSha256: make([]byte, 32), Token: &lbdv1.JoinToken{
				Id: fmt.Sprintf("token%d", i), Author: "ann", CreateTime: timestamppb.New(now), ExpireTime: timestamppb.New(now.Add(time.Hour)), Uses: 1,
			}}
			mustCommand(t, r, &raftv1.Command{Kind: &raftv1.Command_JoinToken{JoinToken: &raftv1.JoinTokenCommand{Author: "ann", Time: timestamppb.New(now), Create: token}}})
			join.TokenId = token.GetToken().GetId()
		}
		mustCommand(t, r, &raftv1.Command{Kind: &raftv1.Command_Node{Node: &raftv1.NodeCommand{
			Author: "ann", Time: timestamppb.New(now), Change: &raftv1.NodeCommand_Join{Join: join},
		}}})
	}
	seat := &membersSeat{store: r.store, away: map[string]bool{}}
	cfg := r.serverConfig()
	s := &clusterService{node: "n1", store: r.store, seat: seat, writer: newWriter(cfg, t.Context())}
	ctx := withCaller(r.ctx(), Caller{Author: "ann", Role: lbdv1.Role_ROLE_OPERATOR})
	drain := func(node string, force bool) error {
		_, err := s.DrainNode(ctx, &lbdv1.DrainNodeRequest{Node: node, Force: force})
		return err
	}
	answer, err := s.DrainNode(ctx, &lbdv1.DrainNodeRequest{Node: "edge-1", Reason: "kernel"})
	if d := answer.GetNode().GetDrain(); err != nil || d.GetAuthor() != "ann" || d.GetReason() != "kernel" || !d.GetTime().AsTime().Equal(now) {
		t.Fatalf("%v, %v", answer, err)
	}
	if err := drain("n0000000000000001", false); err != nil { // once more, and by its id
		t.Error(err)
	}
	answer, err = s.DrainNode(ctx, &lbdv1.DrainNodeRequest{Node: "edge-1", Reason: "disk"})
	if d := answer.GetNode().GetDrain(); err != nil || d.GetReason() != "disk" || !d.GetTime().AsTime().Equal(now) {
		t.Errorf("with another reason: %v, %v", answer, err)
	}
	seat.away["edge-3"] = true
	if f := failureOf(t, drain("edge-2", false)); f.code != codes.FailedPrecondition || !strings.Contains(f.message, "--force") {
		t.Errorf("the last one in contact: %v", f)
	}
	seat.away["edge-3"] = false
	if err := drain("edge-2", false); err != nil {
		t.Error(err)
	}
	if f := failureOf(t, drain("edge-3", false)); f.code != codes.FailedPrecondition {
		t.Errorf("the last one: %v", f)
	}
	if err := drain("edge-3", true); err != nil {
		t.Error(err)
	}
	if f := failureOf(t, drain("edge-9", false)); f.code != codes.NotFound {
		t.Errorf("no such node: %v", f)
	}
	back, err := s.UndrainNode(ctx, &lbdv1.UndrainNodeRequest{Node: "edge-1"})
	if err != nil || back.GetNode().GetDrain() != nil {
		t.Errorf("%v, %v", back, err)
	}
	var told []string
	for e := range r.store.State().Audit(now.Add(-time.Hour)) {
		told = append(told, e.GetAuthor()+": "+e.GetMessage())
	}
	if audit := strings.Join(told, "\n"); !strings.Contains(audit, "ann: node edge-1 drained: kernel") || !strings.Contains(audit, "ann: node edge-1 takes traffic again") {
		t.Errorf("audit %s", audit)
	}
}

func mustCommand(t *testing.T, r *rig, cmd *raftv1.Command) {
	t.Helper()
	result, err := r.store.ProposeCommand(t.Context(), cmd)
	if err != nil || result.Err != nil {
		t.Fatal(err, result.Err)
	}
}
