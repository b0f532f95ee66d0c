package state_test

import (
	"errors"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
)

// TestSlimMeansTheSame: on the state that it was made of a slim change does what the whole does, and is the same request; on any
// other it does, too, or is a conflict.
func TestSlimMeansTheSame(t *testing.T) {
	slimmed := 0
	rapid.Check(t, func(t *rapid.T) {
		s := state.New("c-test")
		for range rapid.IntRange(1, 8).Draw(t, "changes") {
			s, _ = s.Apply(command(genChange(t)))
		}
		whole := genChange(t)
		named := map[state.Key]bool{}
		for _, up := range whole.GetUpserts() {
			key, _ := state.KeyOf(up.GetResource())
			named[key] = true
		}
		for _, kind := range state.Kinds() {
			for stored := range s.All(kind) {
				key, _ := state.KeyOf(stored.GetResource())
				if !named[key] && stored.GetResource().GetOwner() == whole.GetOwner() && rapid.Bool().Draw(t, "repeat") {
					whole.Upserts = append(whole.Upserts, &raftv1.StoredResource{Resource: state.Normalize(stored.GetResource()), Material: stored.GetMaterial()})
				}
			}
		}
		asked := proto.CloneOf(whole)
		slim := s.Slim(whole)
		if !proto.Equal(asked, whole) {
			t.Fatal("the change was changed")
		}
		if len(slim.GetUpserts()) < len(whole.GetUpserts()) {
			slimmed++
		}
		compare := func(on *state.State, mayConflict bool) {
			a, want := on.Apply(command(whole))
			b, got := on.Apply(command(slim))
			var conflict *state.ConflictError
			if mayConflict && errors.As(got.Err, &conflict) && conflict.Reason == state.ResourceMoved {
				return
			}
			want.Warnings, got.Warnings = nil, nil
			if (want.Err == nil) != (got.Err == nil) || want.Err == nil && showResult(want) != showResult(got) || hash(t, a) != hash(t, b) {
				t.Fatalf("the whole: %s%v\nslim: %s%v", showResult(want), want.Err, showResult(got), got.Err)
			}
			if want.Err != nil || whole.GetRequestId() == "" {
				return
			}
			if _, again := b.Apply(command(whole)); !again.Replayed || again.Err != nil {
				t.Fatalf("the whole after the slim: %+v", again)
			}
		}
		if _, res := s.Apply(command(whole)); res.Err == nil {
			compare(s, false)
			other, _ := s.Apply(command(genChange(t)))
			compare(other, true)
		}
	})
	if slimmed == 0 {
		t.Error("nothing was ever left out")
	}
}
