package state_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// TestOverridesAreShared: neither a pool nor an owner takes all the room that there is, and what has expired takes none.
func TestOverridesAreShared(t *testing.T) {
	s := state.New("c")
	pools := map[string]string{"a": "one", "b": "one", "c": "one", "d": "two", "e": "two", "f": "two", "g": "three"}
	for _, name := range slices.Sorted(maps.Keys(pools)) {
		change := &raftv1.ChangeCommand{Owner: pools[name], Author: "a", Time: timestamppb.New(time.Unix(1000, 0))}
		change.Upserts = []*raftv1.StoredResource{{Resource: &lbdv1.Resource{Owner: pools[name], Spec: &lbdv1.Resource_Pool{Pool: &lbdv1.Pool{
			Name: name, Discovery: &lbdv1.Discovery{Host: "b.example.com", Port: 80},
		}}}}}
		var res state.Result
		if s, res = s.Apply(&raftv1.Command{Kind: &raftv1.Command_Change{Change: change}}); res.Err != nil {
			t.Fatal(res.Err)
		}
	}
	n, start := 0, time.Unix(2000, 0)
	set := func(pool string, count int, at time.Time) error {
		t.Helper()
		for count > 0 {
			cmd := &raftv1.OverrideCommand{Author: "a", Time: timestamppb.New(at)}
			for range min(count, state.OverridesChangedMax) {
				n++
				cmd.Sets = append(cmd.Sets, &lbdv1.Override{
					Pool: pool, Address: fmt.Sprintf("10.%d.%d.%d:80", n>>16, n>>8&255, n&255), What: &lbdv1.Override_Weight{Weight: 0},
					ExpireTime: timestamppb.New(at.Add(time.Hour)),
				})
			}
			next, res := s.Apply(&raftv1.Command{Kind: &raftv1.Command_Override{Override: cmd}})
			if res.Err != nil {
				return res.Err
			}
			s, count = next, count-len(cmd.Sets)
		}
		return nil
	}
	wants := func(err error, text string) {
		t.Helper()
		var full *state.FullError
		if text == "" && err != nil || text != "" && (!errors.As(err, &full) || !strings.Contains(full.Text, text)) {
			t.Errorf("%v, want %q", err, text)
		}
	}
	wants(set("a", state.OverridesPoolMax, start), "")
	wants(set("a", 1, start), "pool `a`")
	wants(set("b", state.OverridesPoolMax, start), "")
	wants(set("c", state.OverridesOwnerMax-2*state.OverridesPoolMax, start), "")
	wants(set("c", 1, start), "owner `one`")
	wants(set("g", 100, start), "")
	wants(set("d", state.OverridesPoolMax, start), "")
	wants(set("e", state.OverridesPoolMax, start), "")
	wants(set("f", state.OverridesMax-state.OverridesOwnerMax-2*state.OverridesPoolMax-100, start), "")
	wants(set("g", 1, start), "most of them (2000) of pool `a`")
	n = 0 // the same backends again: no more than there are
	wants(set("a", 10, start), "")
	n = 1 << 20
	wants(set("a", 1, start.Add(time.Hour)), "")
	left := 0
	for range s.Overrides("") {
		left++
	}
	if left != 1 {
		t.Errorf("%d are left once the others have expired, want 1", left)
	}
}
