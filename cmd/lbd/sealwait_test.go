package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
	"lbd/tls/seal"
)

// A node whose sealing key is not the one of a certificate's key asks the others for it, and serves the rest meanwhile.
func TestSealKeyOfAnother(t *testing.T) {
	r := newRig(t)
	path := filepath.Join(r.cfg.dataDir, "seal.key")
	if err := os.Rename(path, path+".newer"); err != nil {
		t.Fatal(err)
	}
	if _, err := seal.LoadOrCreate(path); err != nil {
		t.Fatal(err)
	}
	if _, err := openKeys(t.Context(), r.cfg, r.node.State(), r.log); err == nil || !strings.Contains(err.Error(), "has no sealing key") {
		t.Fatalf("alone: %v", err)
	}
	r.joined()
	token := &lbdv1.JoinToken{Id: "token", CreateTime: timestamppb.Now(), ExpireTime: timestamppb.New(timestamppb.Now().AsTime().Add(1000 * time.Second)), Uses: 1}
	if _, err := r.node.ProposeCommand(t.Context(), &raftv1.Command{Kind: &raftv1.Command_JoinToken{JoinToken: &raftv1.JoinTokenCommand{
		Author: "test", Time: timestamppb.Now(), Create: &raftv1.StoredJoinToken{Token: token, SecretSha256: make([]byte, 32)},
	}}}); err != nil {
		t.Fatal(err)
	}
	other := &lbdv1.Node{
		Id: "n00000000000000ff", Name: "n2", Address: "127.0.0.2:7443", Role: lbdv1.NodeRole_NODE_ROLE_NON_VOTER, Gate: 1, Key: "sha256:" + strings.Repeat("1", 64),
	}
	r.nodeCommand(&raftv1.NodeCommand{Change: &raftv1.NodeCommand_Join{Join: &raftv1.JoinNode{Node: other, TokenId: "token"}}})
	k, err := openKeys(t.Context(), r.cfg, r.node.State(), r.log)
	if err != nil {
		t.Fatal(err)
	}

	again, err := r.again(nil)
	if err != nil {
		t.Fatal(err)
	}
	again.t, again.keys = t, k
	var asked []string
	again.keyMissing = func(id string) { asked = append(asked, id) }
	again.begin()
	again.serves("http://"+again.address("http"), 200)
	if _, ok := again.refusals()["certificates/default"]; !ok {
		t.Errorf("refused: %v", again.refusals())
	}
	missing := r.keys.ring.Sealer().KeyIDs()[0]
	if !slices.Equal(asked, []string{missing}) {
		t.Errorf("asked for %v, want %s", asked, missing)
	}
	if p := again.Status().GetProblems(); !slices.ContainsFunc(p, func(s string) bool {
		return strings.Contains(s, "its key is sealed under sealing key "+missing+", which this node does not have yet: the others are asked for it")
	}) {
		t.Errorf("problems %q", p)
	}
	if err := again.keys.ring.Add(t.Context(), r.keys.ring.Sealer()); err != nil {
		t.Fatal(err)
	}
	again.keysMoved()
	<-again.rekeyed
	again.publish()
	again.wantServed(again.node.State().Revision())
	again.serves("https://"+again.address("https"), 200)
}
