package state_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// TestExpiredOverridesTakeNoPlace: at the limit it is those in force that count, for what has expired goes with the same command.
func TestExpiredOverridesTakeNoPlace(t *testing.T) {
	s := state.New("c")
	s, res := s.Apply(&raftv1.Command{Kind: &raftv1.Command_Change{Change: &raftv1.ChangeCommand{
		Owner: "web", Author: "a", Time: timestamppb.New(time.Unix(1000, 0)),
		Upserts: []*raftv1.StoredResource{{Resource: &lbdv1.Resource{Owner: "web", Spec: &lbdv1.Resource_Pool{Pool: &lbdv1.Pool{
			Name: "p", Discovery: &lbdv1.Discovery{Host: "b.example.com", Port: 80},
		}}}}},
	}}})
	if res.Err != nil {
		t.Fatal(res.Err)
	}
	n := 0
	set := func(s *state.State, count int, at time.Time, life time.Duration) (*state.State, state.Result) {
		cmd := &raftv1.OverrideCommand{Author: "a", Time: timestamppb.New(at)}
		for range count {
			n++
			cmd.Sets = append(cmd.Sets, &lbdv1.Override{
				Pool: "p", Address: fmt.Sprintf("10.%d.%d.%d:80", n>>16, n>>8&255, n&255), What: &lbdv1.Override_Weight{Weight: 0},
				ExpireTime: timestamppb.New(at.Add(life)),
			})
		}
		return s.Apply(&raftv1.Command{Kind: &raftv1.Command_Override{Override: cmd}})
	}
	start := time.Unix(2000, 0)
	for range state.OverridesMax / state.OverridesChangedMax {
		if s, res = set(s, state.OverridesChangedMax, start, time.Hour); res.Err != nil {
			t.Fatal(res.Err)
		}
	}
	var refused *state.InvalidError
	if _, res := set(s, 1, start.Add(time.Minute), time.Hour); !errors.As(res.Err, &refused) {
		t.Errorf("one more than the limit: %v", res.Err)
	}
	after, res := set(s, 1, start.Add(time.Hour), time.Hour)
	if res.Err != nil {
		t.Errorf("once the others have expired: %v", res.Err)
	}
	left := 0
	for range after.Overrides("") {
		left++
	}
	if left != 1 {
		t.Errorf("%d are left, want 1", left)
	}
}
