package state_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// counted is what the records take, counted one by one.
func counted(s *state.State) (total int64) {
	for key, record := range s.Records() {
		if record.GetPart() != nil {
			continue
		}
		record.ProtoReflect().Range(func(_ protoreflect.FieldDescriptor, v protoreflect.Value) bool {
			total += int64(len(key) + proto.Size(v.Message().Interface()))
			return true
		})
	}
	return total
}

// pages is a change of a hundred routes with large answers, six megabytes together.
func pages(letter string) *raftv1.ChangeCommand {
	change := &raftv1.ChangeCommand{Owner: "web", Time: &timestamppb.Timestamp{}, Upserts: []*raftv1.StoredResource{{Resource: &lbdv1.Resource{
		Spec: &lbdv1.Resource_Listener{Listener: &lbdv1.Listener{Name: "http", Addresses: []string{":80"}, Protocol: lbdv1.Protocol_PROTOCOL_HTTP}},
	}}}}
	for i := range 100 {
		change.Upserts = append(change.Upserts, &raftv1.StoredResource{Resource: &lbdv1.Resource{Spec: &lbdv1.Resource_Route{Route: &lbdv1.Route{
			Name: fmt.Sprint("r", i), Listeners: []string{"http"}, Hosts: []string{fmt.Sprintf("r%d.example", i)},
			Action: &lbdv1.Route_Respond{Respond: &lbdv1.Respond{Status: 200, Body: strings.Repeat(letter, 60_000)}},
		}}}})
	}
	return change
}

func budget(bytes int64) *raftv1.ChangeCommand {
	return &raftv1.ChangeCommand{Owner: "web", Time: &timestamppb.Timestamp{}, Upserts: []*raftv1.StoredResource{
		{Resource: &lbdv1.Resource{Spec: &lbdv1.Resource_ClusterSettings{ClusterSettings: &lbdv1.ClusterSettings{StateBytes: bytes}}}},
	}}
}

// TestBudget fills a state with the history of changes: what would pass the budget is refused with what takes it, and the
// ways out stay open.
func TestBudget(t *testing.T) {
	s := mustApply(t, state.New("c"), budget(state.StateBytesMin))
	letters, refused := 0, error(nil)
	for ; refused == nil; letters++ {
		next, res := s.Apply(command(pages(string(rune('a' + letters)))))
		if refused = res.Err; refused == nil {
			s = next
		} else if next != s {
			t.Error("a refused change left something behind")
		}
	}
	var invalid *state.InvalidError
	if !errors.As(refused, &invalid) || letters != 3 {
		t.Fatalf("change %d: %v", letters, refused)
	}
	for _, part := range []string{"17.2 MiB", "of the 16.0 MiB", "resources 5.7 MiB", "history 1", "raise `state_bytes`"} {
		if !strings.Contains(refused.Error(), part) {
			t.Errorf("%q does not say %q", refused, part)
		}
	}
	if s.Usage().Total() != counted(s) {
		t.Errorf("%d bytes, counted one by one %d", s.Usage().Total(), counted(s))
	}
	drop := &raftv1.ChangeCommand{Owner: "web", Time: &timestamppb.Timestamp{}}
	for i := range 100 {
		drop.Deletes = append(drop.Deletes, fmt.Sprint("routes/r", i))
	}
	if dropped := mustApply(t, s, drop); dropped.Usage().Resources > 100_000 || dropped.Usage().History < 11<<20 {
		t.Errorf("after deleting all: %+v", dropped.Usage())
	}
	s = mustApply(t, s, budget(2*state.StateBytesMin))
	s = mustApply(t, s, pages("z"))
	_, res := s.Apply(command(budget(state.StateBytesMin)))
	if !errors.As(res.Err, &invalid) || !strings.Contains(res.Err.Error(), "bytes that are in use") {
		t.Errorf("a budget below what is in use: %v", res.Err)
	}
	if s.StateBytes() != 2*state.StateBytesMin || state.New("c").StateBytes() != state.StateBytesDefault {
		t.Errorf("a budget of %d", s.StateBytes())
	}
	// Filled to the brim: who repeats what is there, and who deletes beside it, is let through.
	s = mustApply(t, s, budget(s.Usage().Total()+2000))
	for i := range 30 {
		again := pages("z")
		again.RequestId = fmt.Sprint(strings.Repeat("r", 60), i)
		s = mustApply(t, s, again)
	}
	if s.Usage().Total() <= s.StateBytes() {
		t.Fatal("the state is not full")
	}
	pruned := pages("z")
	pruned.Upserts, pruned.Deletes = pruned.Upserts[:100], []string{"routes/r99"}
	s = mustApply(t, s, pruned)
	if _, res := s.Apply(command(poolChange("web", "more", "10.0.0.1:80", 1))); !errors.As(res.Err, &invalid) {
		t.Errorf("a pool more: %v", res.Err)
	}
}

// TestHistoryMakesRoom: an owner who changes much and often does not keep the others from changing anything.
func TestHistoryMakesRoom(t *testing.T) {
	s := mustApply(t, state.New("c"), budget(state.StateBytesMin))
	quiet := func(n int) *raftv1.ChangeCommand {
		return &raftv1.ChangeCommand{Owner: "quiet", Author: "a", Time: &timestamppb.Timestamp{}, Upserts: []*raftv1.StoredResource{{Resource: &lbdv1.Resource{
			Owner: "quiet", Spec: &lbdv1.Resource_Pool{Pool: &lbdv1.Pool{Name: "q", Backends: []*lbdv1.Backend{{Address: fmt.Sprintf("10.0.0.%d:80", n)}}}},
		}}}}
	}
	s = mustApply(t, s, quiet(1))
	told := ""
	for i := range 60 {
		change := pages(string(rune('a' + i%26)))
		change.Upserts = change.Upserts[:10]
		next, res := s.Apply(command(change))
		if res.Err != nil {
			t.Fatalf("change %d: %v", i, res.Err)
		}
		for _, w := range res.Warnings {
			if strings.Contains(w.GetDescription(), "forgotten before their time") {
				told = w.GetDescription()
			}
		}
		s = next
	}
	if !strings.Contains(told, "of owner `web`") || strings.Contains(told, "quiet") {
		t.Errorf("told %q", told)
	}
	if used := s.Usage().Total(); used > state.StateBytesMin || used != counted(s) {
		t.Errorf("%d bytes, counted one by one %d", used, counted(s))
	}
	s = mustApply(t, s, quiet(2))
	kept := map[string]int{}
	for _, owner := range []string{"web", "quiet"} {
		for range s.Revisions(owner) {
			kept[owner]++
		}
	}
	if kept["quiet"] != 2 || kept["web"] < 10 || kept["web"] > 40 {
		t.Errorf("revisions kept: %v", kept)
	}
}
