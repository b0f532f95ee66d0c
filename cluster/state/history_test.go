package state_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// model is history as one would keep it without a thought for its cost: a copy of everything after each revision.
type model struct {
	revisions []modelRevision // the one before the first is empty
	overrides map[string]int32
}

type modelRevision struct {
	owner   string
	changed map[string]bool
	pools   map[string]modelPool
}

type modelPool struct {
	owner    string
	backends string // addresses, joined
}

func newModel() *model {
	return &model{revisions: []modelRevision{{}}, overrides: map[string]int32{}}
}

func (m *model) newest() map[string]modelPool { return m.revisions[len(m.revisions)-1].pools }

// change makes what differs a revision, and ends overrides of what is gone.
func (m *model) change(owner string, after map[string]modelPool) {
	before := m.newest()
	changed := map[string]bool{}
	for name := range union(before, after) {
		was, had := before[name]
		is, has := after[name]
		if had != has || was != is {
			changed[name] = true
		}
	}
	if len(changed) == 0 {
		return
	}
	m.revisions = append(m.revisions, modelRevision{owner, changed, after})
	for key := range m.overrides {
		pool, address, _ := strings.Cut(key, "/")
		if p, ok := after[pool]; !ok || !slices.Contains(strings.Split(p.backends, " "), address) {
			delete(m.overrides, key)
		}
	}
}

// rollback is what the pools would be; not ok where somebody else has changed one of them since.
func (m *model) rollback(owner string, to int) (map[string]modelPool, bool) {
	after := maps.Clone(m.newest())
	if after == nil {
		after = map[string]modelPool{}
	}
	touched := map[string]bool{}
	for n := to + 1; n < len(m.revisions); n++ {
		r := m.revisions[n]
		for name := range r.changed {
			switch {
			case r.owner != owner && touched[name]:
				return nil, false
			case r.owner != owner || touched[name]:
				continue
			}
			touched[name] = true
			if was, had := m.revisions[n-1].pools[name]; had {
				after[name] = modelPool{owner, was.backends}
			} else {
				delete(after, name)
			}
		}
	}
	return after, true
}

// undo is what the pools would be without one revision; not ok where a later one has changed one of them.
func (m *model) undo(n int) (map[string]modelPool, bool) {
	undone := m.revisions[n]
	for _, later := range m.revisions[n+1:] {
		for name := range later.changed {
			if undone.changed[name] {
				return nil, false
			}
		}
	}
	after := maps.Clone(m.newest())
	for name := range undone.changed {
		if was, had := m.revisions[n-1].pools[name]; had {
			after[name] = modelPool{undone.owner, was.backends}
		} else {
			delete(after, name)
		}
	}
	return after, true
}

func union(a, b map[string]modelPool) map[string]bool {
	all := map[string]bool{}
	for k := range a {
		all[k] = true
	}
	for k := range b {
		all[k] = true
	}
	return all
}

// TestHistoryAgainstModel makes random changes, rollbacks and overrides, and compares everything that can be asked about
// past and present with the model.
func TestHistoryAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, m := state.New("c"), newModel()
		owners, names := rapid.SampledFrom([]string{"web", "api"}), rapid.SampledFrom([]string{"a", "b", "c"})
		for range rapid.IntRange(1, 25).Draw(t, "steps") {
			owner := owners.Draw(t, "owner")
			switch rapid.SampledFrom([]string{"apply", "apply", "rollback", "undo", "override", "clear", "restore"}).Draw(t, "step") {
			case "apply":
				s = applyBoth(t, s, m, owner, rapid.SliceOfNDistinct(names, 1, 3, rapid.ID).Draw(t, "names"))
			case "rollback":
				s = rollbackBoth(t, s, m, owner)
			case "undo":
				s = undoBoth(t, s, m, owner)
			case "override":
				s = overrideBoth(t, s, m, names.Draw(t, "pool"))
			case "clear":
				pool := names.Draw(t, "pool")
				clears := []*raftv1.OverrideKey{{Pool: pool}}
				next, res := s.Apply(&raftv1.Command{Kind: &raftv1.Command_Override{Override: &raftv1.OverrideCommand{Clears: clears}}})
				if _, exists := m.newest()[pool]; exists != (res.Err == nil) {
					t.Fatalf("clear overrides of pool %s: %v, and its being there is %t", pool, res.Err, exists)
				}
				maps.DeleteFunc(m.overrides, func(key string, _ int32) bool { return strings.HasPrefix(key, pool+"/") })
				s = next
			case "restore":
				restored := reencode(t, s)
				if hash(t, restored) != hash(t, s) || restored.OverrideVersion() != s.OverrideVersion() || restored.Index() != s.Index() {
					t.Fatal("a restored state differs")
				}
				s = restored
			}
			compareHistory(t, s, m)
		}
	})
}

// applyBoth changes or deletes pools, taking over what another holds.
func applyBoth(t *rapid.T, s *state.State, m *model, owner string, names []string) *state.State {
	change := &raftv1.ChangeCommand{Owner: owner, TakeOver: true, Time: &timestamppb.Timestamp{}}
	after := maps.Clone(m.newest())
	if after == nil {
		after = map[string]modelPool{}
	}
	for _, name := range names {
		if _, exists := after[name]; exists && rapid.Bool().Draw(t, "delete") {
			change.Deletes = append(change.Deletes, "pools/"+name)
			delete(after, name)
			continue
		}
		pool := &lbdv1.Pool{Name: name}
		var addresses []string
		for _, n := range rapid.SliceOfNDistinct(rapid.IntRange(1, 3), 1, 3, rapid.ID).Draw(t, "backends") {
			addresses = append(addresses, fmt.Sprintf("10.0.0.%d:80", n))
			pool.Backends = append(pool.Backends, &lbdv1.Backend{Address: addresses[len(addresses)-1]})
		}
		r, _ := state.Wrap("", pool)
		change.Upserts = append(change.Upserts, &raftv1.StoredResource{Resource: r})
		after[name] = modelPool{owner, strings.Join(addresses, " ")}
	}
	m.change(owner, after)
	return applyChange(t, s, change)
}

func rollbackBoth(t *rapid.T, s *state.State, m *model, owner string) *state.State {
	own := []int{0}
	for n, r := range m.revisions {
		if r.owner == owner {
			own = append(own, n)
		}
	}
	to := rapid.SampledFrom(own).Draw(t, "to")
	change, err := s.Rollback(owner, int64(to))
	if len(own) == 1 {
		if !errors.Is(err, state.ErrNotKept) {
			t.Fatalf("roll back an owner without history: %v", err)
		}
		return s
	}
	after, ok := m.rollback(owner, to)
	var conflict *state.ConflictError
	if !ok {
		if !errors.As(err, &conflict) || conflict.Reason != state.ChangedSince {
			t.Fatalf("roll back over somebody else's change: %v", err)
		}
		return s
	}
	if err != nil {
		t.Fatal(err)
	}
	m.change(owner, after)
	change.Time = &timestamppb.Timestamp{}
	return applyChange(t, s, change)
}

// undoBoth undoes one revision, of whatever owner.
func undoBoth(t *rapid.T, s *state.State, m *model, owner string) *state.State {
	n := rapid.IntRange(0, len(m.revisions)).Draw(t, "only")
	change, err := s.RollbackOnly(owner, int64(n))
	if n == 0 || n == len(m.revisions) || m.revisions[n].owner != owner {
		if !errors.Is(err, state.ErrNotKept) {
			t.Fatalf("undo what is none of owner %s's revisions: %v", owner, err)
		}
		return s
	}
	after, ok := m.undo(n)
	var conflict *state.ConflictError
	if !ok {
		if !errors.As(err, &conflict) || conflict.Reason != state.ChangedLater {
			t.Fatalf("undo what a later revision has changed: %v", err)
		}
		return s
	}
	if err != nil {
		t.Fatal(err)
	}
	m.change(owner, after)
	change.Time = &timestamppb.Timestamp{}
	return applyChange(t, s, change)
}

func overrideBoth(t *rapid.T, s *state.State, m *model, pool string) *state.State {
	address := fmt.Sprintf("10.0.0.%d:80", rapid.IntRange(1, 3).Draw(t, "backend"))
	weight := rapid.Int32Range(0, 3).Draw(t, "weight")
	set := &lbdv1.Override{Pool: pool, Address: address, What: &lbdv1.Override_Weight{Weight: weight}}
	next, res := s.Apply(&raftv1.Command{Kind: &raftv1.Command_Override{Override: &raftv1.OverrideCommand{Sets: []*lbdv1.Override{set}}}})
	key := pool + "/" + address
	before, had := m.overrides[key]
	if p, ok := m.newest()[pool]; !ok || !slices.Contains(strings.Split(p.backends, " "), address) {
		if res.Err == nil {
			t.Fatalf("override of %s, which is not there, was taken", key)
		}
		return s
	}
	if res.Err != nil {
		t.Fatal(res.Err)
	}
	if changed := !had || before != weight; changed != (s.OverrideVersion() != next.OverrideVersion()) {
		t.Fatalf("override changed: %t, but the versions are %d and %d", changed, s.OverrideVersion(), next.OverrideVersion())
	}
	m.overrides[key] = weight
	return next
}

func applyChange(t *rapid.T, s *state.State, change *raftv1.ChangeCommand) *state.State {
	before := hash(t, s)
	next, res := s.Apply(&raftv1.Command{Kind: &raftv1.Command_Change{Change: change}})
	if res.Err != nil {
		t.Fatal(res.Err)
	}
	if hash(t, s) != before {
		t.Fatal("the state before has changed")
	}
	return next
}

// compareHistory asks for every revision.
func compareHistory(t *rapid.T, s *state.State, m *model) {
	if got, want := s.Revision(), int64(len(m.revisions)-1); got != want {
		t.Fatalf("revision %d, want %d", got, want)
	}
	for n, want := range m.revisions {
		past, err := s.At(int64(n))
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]modelPool{}
		for stored := range past.All(state.Pools) {
			var addresses []string
			for _, b := range stored.GetResource().GetPool().GetBackends() {
				addresses = append(addresses, b.GetAddress())
			}
			got[stored.GetResource().GetPool().GetName()] = modelPool{stored.GetResource().GetOwner(), strings.Join(addresses, " ")}
		}
		if !maps.Equal(got, want.pools) || past.Revision() != int64(n) {
			t.Fatalf("at %d: %v, want %v", n, got, want.pools)
		}
	}
	got := map[string]int32{}
	for o := range s.Overrides("") {
		got[o.GetPool()+"/"+o.GetAddress()] = o.GetWeight()
	}
	if !maps.Equal(got, m.overrides) {
		t.Fatalf("overrides %v, want %v", got, m.overrides)
	}
}

// TestAtIsWhatWas: the past as it is worked out is, but for overrides and the audit, byte for byte what was.
func TestAtIsWhatWas(t *testing.T) {
	s := state.New("c")
	was := []string{hashOf(t, s, false)}
	for i := range 5 {
		pool := &lbdv1.Pool{Name: "shop", Backends: []*lbdv1.Backend{{Address: fmt.Sprintf("10.0.0.%d:80", i+1)}}}
		r, _ := state.Wrap("", pool)
		change := &raftv1.ChangeCommand{Owner: "web", RequestId: fmt.Sprint(i), Time: &timestamppb.Timestamp{}}
		change.Upserts = []*raftv1.StoredResource{{Resource: r}}
		if i == 3 {
			change.Upserts, change.Deletes = nil, []string{"pools/shop"}
		}
		next, res := s.Apply(&raftv1.Command{Kind: &raftv1.Command_Change{Change: change}})
		if res.Err != nil {
			t.Fatal(res.Err)
		}
		s = next
		was = append(was, hashOf(t, s, false))
	}
	for n, want := range was {
		past, err := s.At(int64(n))
		if err != nil {
			t.Fatal(err)
		}
		if hashOf(t, past, false) != want {
			t.Errorf("the state at %d differs from what it was", n)
		}
	}
	if found := s.Requested("2"); found.Revision() != 2 {
		t.Errorf("request 2 found revision %d, want 2", found.Revision())
	}
	if found := s.Requested("new"); found != s {
		t.Error("a new request finds another state than the present one")
	}
}

// TestBeforesGoWithTheirRevision: what a forgotten revision remembered is forgotten, and a history with a gap is refused.
func TestBeforesGoWithTheirRevision(t *testing.T) {
	s := state.New("c")
	for i := range state.RevisionsKeptMin + 5 {
		r, _ := state.Wrap("", &lbdv1.Pool{Name: "shop", Backends: []*lbdv1.Backend{{Address: fmt.Sprintf("10.0.%d.%d:80", i/250, i%250+1)}}})
		s, _ = s.Apply(&raftv1.Command{Kind: &raftv1.Command_Change{Change: &raftv1.ChangeCommand{
			Owner: "web", Time: &timestamppb.Timestamp{Seconds: int64(i) * 86400}, Upserts: []*raftv1.StoredResource{{Resource: r}},
		}}})
	}
	befores, oldest := 0, int64(1<<62)
	for _, record := range s.Records() {
		if b := record.GetBefore(); b != nil {
			befores++
			oldest = min(oldest, b.GetRevision())
		}
	}
	if befores != state.RevisionsKeptMin || oldest != 6 {
		t.Errorf("%d resources are remembered from revision %d on, want %d from 6 on", befores, oldest, state.RevisionsKeptMin)
	}
	if _, err := s.At(5); err != nil {
		t.Errorf("the state before the oldest revision kept: %v", err)
	}
	for _, n := range []int64{4, 0, -1, s.Revision() + 1} {
		if _, err := s.At(n); !errors.Is(err, state.ErrNotKept) {
			t.Errorf("the state at %d: %v, want that it is not kept", n, err)
		}
	}
	if _, err := s.Rollback("web", 0); !errors.Is(err, state.ErrNotKept) {
		t.Errorf("roll back beyond what is kept: %v", err)
	}
	if _, err := s.RollbackOnly("web", 5); !errors.Is(err, state.ErrNotKept) {
		t.Errorf("undo a revision that is forgotten: %v", err)
	}
}

// TestOldHistoryLoads: records of a build that kept nothing of the past are a state whose past cannot be told.
func TestOldHistoryLoads(t *testing.T) {
	s := state.New("c")
	for _, address := range []string{"10.0.0.1:80", "10.0.0.2:80"} {
		r, _ := state.Wrap("", &lbdv1.Pool{Name: "shop", Backends: []*lbdv1.Backend{{Address: address}}})
		s, _ = s.Apply(&raftv1.Command{Kind: &raftv1.Command_Change{Change: &raftv1.ChangeCommand{
			Owner: "web", Upserts: []*raftv1.StoredResource{{Resource: r}},
		}}})
	}
	old, err := state.Load(s.Header(), func(yield func(string, *raftv1.SnapshotRecord) bool) {
		for key, record := range s.Records() {
			if record.GetBefore() == nil && !yield(key, record) {
				return
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := old.At(1); !errors.Is(err, state.ErrNotKept) {
		t.Errorf("the past of an old history: %v", err)
	}
	if _, err := old.Rollback("web", 1); !errors.Is(err, state.ErrNotKept) {
		t.Errorf("roll back an old history: %v", err)
	}
	if _, err := old.RollbackOnly("web", 2); !errors.Is(err, state.ErrNotKept) {
		t.Errorf("undo a revision of an old history: %v", err)
	}
	unknown := &raftv1.SnapshotRecord{}
	if err := proto.Unmarshal([]byte{0xfa, 0x01, 0x00}, unknown); err != nil { // field 31
		t.Fatal(err)
	}
	records := []*raftv1.SnapshotRecord{unknown}
	_, err = state.Decode(s.Header(), func() (*raftv1.SnapshotRecord, error) { return records[0], nil })
	if !errors.Is(err, state.ErrFormat) {
		t.Errorf("a record of an unknown kind: %v", err)
	}
}
