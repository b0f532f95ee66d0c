package state_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

var joinTime = time.Date(2026, 12, 1, 9, 0, 0, 0, time.UTC)

func member(i int) *lbdv1.Node {
	return &lbdv1.Node{
		Id: fmt.Sprintf("n-%016x", i), Name: fmt.Sprintf("edge-%d", i), Address: fmt.Sprintf("10.0.0.%d:7443", i),
		Role: lbdv1.NodeRole_NODE_ROLE_VOTER, Version: "1.0.0", Gate: state.GateMax, Key: "sha256:" + strings.Repeat(fmt.Sprintf("%02x", i), 32),
	}
}

func authorityOf(i byte) *raftv1.Authority {
	return &raftv1.Authority{Certificate: []byte{i}, SealedKey: []byte{i}}
}

func nodeCommand(id string, at time.Time, change any) *raftv1.Command {
	cmd := &raftv1.NodeCommand{Author: "node/edge-1 uid=0", Time: timestamppb.New(at), RequestId: id, Origin: &raftv1.Origin{Source: "unix"}}
	switch change := change.(type) {
	case *raftv1.JoinNode:
		cmd.Change = &raftv1.NodeCommand_Join{Join: change}
	case *lbdv1.Node:
		cmd.Change = &raftv1.NodeCommand_Update{Update: change}
	case *raftv1.RemoveNode:
		cmd.Change = &raftv1.NodeCommand_Remove{Remove: change}
	case *raftv1.SetNodeRole:
		cmd.Change = &raftv1.NodeCommand_Role{Role: change}
	case *raftv1.SetNodeDrain:
		cmd.Change = &raftv1.NodeCommand_Drain{Drain: change}
	}
	return &raftv1.Command{Kind: &raftv1.Command_Node{Node: cmd}}
}

func joinTokenCommand(cmd *raftv1.JoinTokenCommand) *raftv1.Command {
	cmd.Author, cmd.Origin = "node/edge-1 uid=0", &raftv1.Origin{Source: "unix"}
	if cmd.Time == nil {
		cmd.Time = timestamppb.New(joinTime)
	}
	return &raftv1.Command{Kind: &raftv1.Command_JoinToken{JoinToken: cmd}}
}

func createJoinToken(t *lbdv1.JoinToken) *raftv1.Command {
	if t.ExpireTime == nil {
		t.ExpireTime = timestamppb.New(joinTime.Add(time.Hour))
	}
	return joinTokenCommand(&raftv1.JoinTokenCommand{Create: &raftv1.StoredJoinToken{Token: t, SecretSha256: bytes.Repeat([]byte{7}, 32)}})
}

func must(t *testing.T, s *state.State, cmd *raftv1.Command) *state.State {
	t.Helper()
	next, res := s.Apply(cmd)
	if res.Err != nil {
		t.Fatal(res.Err)
	}
	return next
}

// refused applies what must change nothing, for a reason that has a word in it.
func refused(t *testing.T, s *state.State, cmd *raftv1.Command, want string) {
	t.Helper()
	next, res := s.Apply(cmd)
	var invalid *state.InvalidError
	text := fmt.Sprint(res.Err)
	if errors.As(res.Err, &invalid) {
		for _, v := range invalid.Violations {
			text += "; " + v.GetField() + " " + v.GetDescription()
		}
	}
	if res.Err == nil || !strings.Contains(text, want) {
		t.Errorf("%v: got %s, want %q", cmd, text, want)
	}
	if next.Digest() != s.Digest() {
		t.Errorf("%v was refused and changed something", cmd)
	}
}

// two is a cluster of two nodes, and of an authority.
func two(t *testing.T) *state.State {
	s := must(t, state.New("c1"), nodeCommand("", joinTime, &raftv1.JoinNode{Node: member(1)}))
	s = must(t, s, &raftv1.Command{Kind: &raftv1.Command_Authority{Authority: &raftv1.AuthorityCommand{Authority: authorityOf(1), Time: timestamppb.New(joinTime)}}})
	s = must(t, s, createJoinToken(&lbdv1.JoinToken{Id: "t1", Uses: 1}))
	return must(t, s, nodeCommand("", joinTime, &raftv1.JoinNode{Node: member(2), TokenId: "t1"}))
}

func TestJoin(t *testing.T) {
	s := two(t)
	if _, ok := s.JoinToken("t1"); ok {
		t.Error("a token for one use is there after it")
	}
	if n, ok := s.NodeNamed("edge-2"); !ok || n.GetId() != member(2).GetId() || n.GetJoinTime() == nil {
		t.Errorf("edge-2 is %v", n)
	}
	again, res := s.Apply(nodeCommand("", joinTime, &raftv1.JoinNode{Node: member(2), TokenId: "t1"}))
	if res.Err != nil || len(res.Changes) > 0 || again.Digest() != s.Digest() {
		t.Errorf("who is in was not let in again: %v", res.Err)
	}
	refused(t, s, nodeCommand("", joinTime, &raftv1.JoinNode{Node: member(3), TokenId: "t1"}), "there is no join token `t1`")

	s = must(t, s, createJoinToken(&lbdv1.JoinToken{Id: "t2", Reusable: true, Node: "edge-9", Sources: []string{"10.0.0.0/24"}}))
	nine := member(9)
	for _, c := range []struct {
		node   *lbdv1.Node
		source string
		at     time.Time
		want   string
	}{
		{member(3), "10.0.0.3:4711", joinTime, "is for a node named `edge-9`, not `edge-3`"},
		{nine, "10.0.1.9:4711", joinTime, "is for nodes of 10.0.0.0/24"},
		{nine, "10.0.0.9:4711", joinTime.Add(time.Hour), "expired at 2026-12-01T10:00:00Z"},
		{changed(nine, func(n *lbdv1.Node) { n.Name = "edge-1" }), "10.0.0.9", joinTime, "another node's: give this one a name of its own"},
		{changed(nine, func(n *lbdv1.Node) { n.Key = member(1).GetKey() }), "10.0.0.9", joinTime, "is its data directory a copy?"},
		{changed(nine, func(n *lbdv1.Node) { n.Address = "" }), "10.0.0.9", joinTime, "want HOST:PORT"},
		{changed(nine, func(n *lbdv1.Node) { n.Address = "10.0.0.1:7443" }), "10.0.0.9", joinTime, "that of node `edge-1`"},
		{changed(nine, func(n *lbdv1.Node) { n.Id = "x" }), "10.0.0.9", joinTime, "`x` is none"},
		{changed(nine, func(n *lbdv1.Node) { n.Gate = 0 }), "10.0.0.9", joinTime, "start a newer lbd on it"},
		{changed(nine, func(n *lbdv1.Node) { n.Name = "all" }), "10.0.0.9", joinTime, "means every node"},
		{changed(nine, func(n *lbdv1.Node) { n.Role = 0 }), "10.0.0.9", joinTime, "want `VOTER` or `NON_VOTER`"},
	} {
		refused(t, s, nodeCommand("", c.at, &raftv1.JoinNode{Node: c.node, TokenId: "t2", Source: c.source}), c.want)
	}
	s = must(t, s, nodeCommand("", joinTime, &raftv1.JoinNode{Node: nine, TokenId: "t2", Source: "10.0.0.9:1"}))
	if _, ok := s.JoinToken("t2"); !ok {
		t.Error("a reusable token is gone")
	}
}

func changed(n *lbdv1.Node, f func(*lbdv1.Node)) *lbdv1.Node {
	n = &lbdv1.Node{Id: n.GetId(), Name: n.GetName(), Address: n.GetAddress(), Role: n.GetRole(), Version: n.GetVersion(), Gate: n.GetGate(), Key: n.GetKey()}
	f(n)
	return n
}

func TestApproval(t *testing.T) {
	s := must(t, two(t), createJoinToken(&lbdv1.JoinToken{Id: "t2", Uses: 1, Approval: true}))
	three := &raftv1.JoinNode{Node: member(3), TokenId: "t2", Source: "10.0.0.3:1"}
	refused(t, s, nodeCommand("", joinTime, three), "demands an approval")
	three.Pending = true
	s = must(t, s, nodeCommand("", joinTime, three))
	if same, res := s.Apply(nodeCommand("", joinTime, three)); res.Err != nil || same.Digest() != s.Digest() {
		t.Errorf("who waits and asks again: %v", res.Err)
	}
	three.Pending = false
	refused(t, s, nodeCommand("", joinTime, three), "waits for an approval")
	refused(t, s, joinTokenCommand(&raftv1.JoinTokenCommand{Approves: []string{"edge-4"}}), "no node `edge-4` waits")
	turned := must(t, s, joinTokenCommand(&raftv1.JoinTokenCommand{Rejects: []string{"edge-3"}}))
	refused(t, turned, nodeCommand("", joinTime, three), "there is no join token")
	revoked := must(t, s, joinTokenCommand(&raftv1.JoinTokenCommand{Revokes: []string{"t2"}})) // it is used up: what it has let wait goes
	refused(t, revoked, joinTokenCommand(&raftv1.JoinTokenCommand{Approves: []string{"edge-3"}}), "no node `edge-3` waits")
	refused(t, revoked, nodeCommand("", joinTime, three), "there is no join token")
	refused(t, revoked, joinTokenCommand(&raftv1.JoinTokenCommand{Revokes: []string{"t2"}}), "there is no join token `t2`")
	s = must(t, s, joinTokenCommand(&raftv1.JoinTokenCommand{Approves: []string{"edge-3"}}))
	s = must(t, s, nodeCommand("", joinTime, three))
	if _, ok := s.Node(member(3).GetId()); !ok {
		t.Error("an approved node is not in")
	}
	if _, ok := s.PendingJoin("edge-3"); ok {
		t.Error("a node that is in still waits")
	}
}

func TestJoinTokens(t *testing.T) {
	s := two(t)
	for _, c := range []struct {
		token *lbdv1.JoinToken
		want  string
	}{
		{&lbdv1.JoinToken{Id: "t2", Uses: 1, ExpireTime: timestamppb.New(joinTime.Add(25 * time.Hour))}, "must be 1m0s to 24h0m0s"},
		{&lbdv1.JoinToken{Id: "t2"}, "uses must be 1 to 100"},
		{&lbdv1.JoinToken{Id: "t2", Uses: 2, Reusable: true}, "exclude each other"},
		{&lbdv1.JoinToken{Id: "t2", Uses: 1, Sources: []string{"10.0.0.1/24"}}, "is no network"},
		{&lbdv1.JoinToken{Id: "t2", Uses: 1, Node: "a b"}, "is none"},
		{&lbdv1.JoinToken{Id: "T2", Uses: 1}, "lower-case"},
	} {
		refused(t, s, createJoinToken(c.token), c.want)
	}
	s = must(t, s, createJoinToken(&lbdv1.JoinToken{Id: "t2", Uses: 2}))
	refused(t, s, joinTokenCommand(&raftv1.JoinTokenCommand{Revokes: []string{"t3"}}), "there is no join token `t3`")
	late := must(t, s, joinTokenCommand(&raftv1.JoinTokenCommand{Time: timestamppb.New(joinTime.Add(2 * time.Hour))}))
	if _, ok := late.JoinToken("t2"); ok {
		t.Error("an expired token is kept")
	}
	s = must(t, s, joinTokenCommand(&raftv1.JoinTokenCommand{Revokes: []string{"t2"}}))
	refused(t, s, nodeCommand("", joinTime, &raftv1.JoinNode{Node: member(3), TokenId: "t2"}), "there is no join token")
}

func TestNodeChanges(t *testing.T) {
	s := two(t)
	update := changed(member(2), func(n *lbdv1.Node) { n.Address, n.Version = "10.0.0.22:7443", "1.1.0" })
	s = must(t, s, nodeCommand("", joinTime, update))
	if n, _ := s.NodeNamed("edge-2"); n.GetAddress() != "10.0.0.22:7443" || n.GetVersion() != "1.1.0" {
		t.Errorf("after its update edge-2 is %v", n)
	}
	refused(t, s, nodeCommand("", joinTime, changed(member(2), func(n *lbdv1.Node) { n.Key = member(3).GetKey() })), "a node with another key joins anew")
	refused(t, s, nodeCommand("", joinTime, member(3)), "there is no node")
	s = must(t, s, nodeCommand("", joinTime, &raftv1.SetNodeRole{Id: member(2).GetId(), Role: lbdv1.NodeRole_NODE_ROLE_NON_VOTER}))
	s = must(t, s, nodeCommand("", joinTime, &raftv1.SetNodeDrain{Id: member(2).GetId(), Drain: &lbdv1.NodeDrain{Reason: "new disk"}}))
	n, _ := s.NodeNamed("edge-2")
	if n.GetDrain().GetReason() != "new disk" || n.GetDrain().GetAuthor() != "node/edge-1 uid=0" || n.GetRole() != lbdv1.NodeRole_NODE_ROLE_NON_VOTER {
		t.Errorf("edge-2 is %v", n)
	}
	// A restart of a drained node must not give its traffic back, nor make it vote.
	s = must(t, s, nodeCommand("", joinTime, update))
	if n, _ := s.NodeNamed("edge-2"); n.GetDrain() == nil || n.GetRole() != lbdv1.NodeRole_NODE_ROLE_NON_VOTER {
		t.Errorf("after a restart edge-2 is %v", n)
	}
	s = must(t, s, nodeCommand("", joinTime, &raftv1.SetNodeDrain{Id: member(2).GetId()}))
	if n, _ := s.NodeNamed("edge-2"); n.GetDrain() != nil {
		t.Error("edge-2 is still drained")
	}
}

func TestRemove(t *testing.T) {
	s := two(t)
	refused(t, s, nodeCommand("", joinTime, &raftv1.RemoveNode{Id: member(2).GetId()}), "needs a certificate and its sealed key")
	request := nodeCommand("r1", joinTime, &raftv1.RemoveNode{Id: member(2).GetId(), Authority: authorityOf(2)})
	s = must(t, s, request)
	if gone, ok := s.RemovedNode(member(2).GetId()); !ok || gone.GetKey() != member(2).GetKey() {
		t.Errorf("what is remembered of edge-2: %v", gone)
	}
	if a, _ := s.Authority(); a.GetCertificate()[0] != 2 {
		t.Error("the authority is as it was")
	}
	if _, res := s.Apply(request); !res.Replayed || res.Err != nil {
		t.Errorf("the same request again: %+v", res)
	}
	refused(t, s, nodeCommand("", joinTime, &raftv1.RemoveNode{Id: member(1).GetId(), Authority: authorityOf(3)}), "is the only one")
	s = must(t, s, createJoinToken(&lbdv1.JoinToken{Id: "t2", Uses: 1}))
	refused(t, s, nodeCommand("", joinTime, &raftv1.JoinNode{Node: member(2), TokenId: "t2"}), "was removed: join anew with an empty data directory")
}

func TestGate(t *testing.T) {
	s := two(t)
	gate := func(n int32) *raftv1.Command {
		return &raftv1.Command{Kind: &raftv1.Command_Gate{Gate: &raftv1.GateCommand{Gate: n, Time: timestamppb.New(joinTime)}}}
	}
	if s.Gate() != 1 {
		t.Errorf("a cluster begins with gate %d", s.Gate())
	}
	if _, res := s.Apply(gate(1)); !res.Replayed {
		t.Error("the present gate is none to be passed")
	}
	if _, res := s.Apply(gate(state.GateMax + 1)); !errors.Is(res.Err, state.ErrFormat) {
		t.Errorf("a gate beyond this build: %v", res.Err)
	}
}

func TestEpoch(t *testing.T) {
	s := must(t, two(t), createJoinToken(&lbdv1.JoinToken{Id: "t2", Uses: 1}))
	epoch := func(node string, n int64) *raftv1.Command {
		return &raftv1.Command{Kind: &raftv1.Command_Epoch{Epoch: &raftv1.EpochCommand{Node: node, Epoch: n, Authority: authorityOf(9), Time: timestamppb.New(joinTime)}}}
	}
	refused(t, s, epoch(member(2).GetId(), 3), "3 does not follow 1")
	refused(t, s, epoch(member(3).GetId(), 2), "there is no node")
	s = must(t, s, epoch(member(2).GetId(), 2))
	if _, ok := s.Node(member(1).GetId()); ok || s.Epoch() != 2 {
		t.Errorf("epoch %d, edge-1 still in: %v", s.Epoch(), ok)
	}
	if _, ok := s.JoinToken("t2"); ok {
		t.Error("a join token of the epoch before is good")
	}
	if _, res := s.Apply(epoch(member(2).GetId(), 2)); !res.Replayed {
		t.Errorf("the same again: %+v", res)
	}
}

func TestAuthorityReplaced(t *testing.T) {
	s := two(t)
	set := func(cmd *raftv1.AuthorityCommand) *raftv1.Command {
		cmd.Time, cmd.Author = timestamppb.New(joinTime), "node/edge-1 uid=0"
		return &raftv1.Command{Kind: &raftv1.Command_Authority{Authority: cmd}}
	}
	next := authorityOf(2)
	next.Former = []*raftv1.FormerAuthority{{CrossCertificate: []byte{3}, Certificate: []byte{1}}}
	refused(t, s, set(&raftv1.AuthorityCommand{Authority: next, ReplacesSha256: bytes.Repeat([]byte{1}, 32)}), "")
	digest := sha256Of([]byte{1})
	s = must(t, s, set(&raftv1.AuthorityCommand{Authority: next, ReplacesSha256: digest}))
	refused(t, s, set(&raftv1.AuthorityCommand{Authority: authorityOf(4), ReplacesSha256: digest}), "")
	s = must(t, s, set(&raftv1.AuthorityCommand{Retire: true}))
	if a, _ := s.Authority(); a.GetCertificate()[0] != 2 || len(a.GetFormer()) > 0 {
		t.Errorf("after it was retired: %v", a)
	}
	if _, res := s.Apply(set(&raftv1.AuthorityCommand{Retire: true})); !res.Replayed {
		t.Error("retired twice")
	}
}

// Members, tokens and who waits are in a snapshot, and its digest is that of the state.
func TestNodesInSnapshot(t *testing.T) {
	s := must(t, two(t), createJoinToken(&lbdv1.JoinToken{Id: "t2", Uses: 2, Approval: true}))
	s = must(t, s, nodeCommand("r1", joinTime, &raftv1.JoinNode{Node: member(3), TokenId: "t2", Pending: true}))
	s = must(t, s, createJoinToken(&lbdv1.JoinToken{Id: "t3", Uses: 2}))
	s = must(t, s, nodeCommand("r2", joinTime, &raftv1.RemoveNode{Id: member(2).GetId(), Authority: authorityOf(2)}))
	var records []*raftv1.SnapshotRecord
	if err := s.Encode(func(r *raftv1.SnapshotRecord) error { records = append(records, r); return nil }); err != nil {
		t.Fatal(err)
	}
	again, err := decodeAll(s.Header(), records)
	if err != nil {
		t.Fatal(err)
	}
	if again.Digest() != s.Digest() {
		t.Error("the digest differs after a snapshot")
	}
	if _, ok := again.JoinToken("t3"); !ok {
		t.Error("a join token is lost")
	}
}

func sha256Of(b []byte) []byte {
	sum := sha256.Sum256(b)
	return sum[:]
}

func decodeAll(header *raftv1.SnapshotHeader, records []*raftv1.SnapshotRecord) (*state.State, error) {
	return state.Decode(header, func() (*raftv1.SnapshotRecord, error) {
		if len(records) == 0 {
			return nil, io.EOF
		}
		r := records[0]
		records = records[1:]
		return r, nil
	})
}
