package main

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// TestAdminProblems: that the last admin's token ends is told before it does.
func TestAdminProblems(t *testing.T) {
	r := newRig(t)
	now := time.Now()
	told := func(at time.Time, want string) {
		t.Helper()
		if got := strings.Join(r.adminProblems(at), "; "); (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("told %q, want %q", got, want)
		}
	}
	told(now, "")
	make := func(id string, end *timestamppb.Timestamp) {
		t.Helper()
		token := &lbdv1.Token{Id: id, Role: lbdv1.Role_ROLE_ADMIN, CreateTime: timestamppb.New(now), ExpireTime: end}
		_, err := r.node.ProposeCommand(t.Context(), &raftv1.Command{Kind: &raftv1.Command_Token{Token: &raftv1.TokenCommand{
			Author: "test", Time: timestamppb.New(now), Creates: []*raftv1.StoredToken{{Token: token, SecretSha256: []byte(strings.Repeat("x", 32))}},
		}}})
		if err != nil {
			t.Fatal(err)
		}
	}
	make("first", timestamppb.New(now.Add(90*24*time.Hour)))
	r.propose(&lbdv1.ClusterSettings{LocalAdmin: proto.Bool(false)})
	told(now, "")
	told(now.Add(61*24*time.Hour), "the last admin's token ends at ")
	told(now.Add(91*24*time.Hour), "root is an admin")
	make("second", nil)
	told(now.Add(91*24*time.Hour), "")
	r.cfg.localAdmin = true
	told(now, "--local-admin was given")
}
