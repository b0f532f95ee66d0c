package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

func drain(pool, id string) *raftv1.OverrideCommand {
	return &raftv1.OverrideCommand{RequestId: id, Author: "anna", Sets: []*lbdv1.Override{{
		Pool: pool, Address: "10.0.0.0:80", What: &lbdv1.Override_State{State: lbdv1.BackendState_BACKEND_STATE_DRAIN},
	}}}
}

// A credential that is made or revoked wakes who waits for it, and not who publishes.
func TestNextHearsOfTokens(t *testing.T) {
	n := start(t, config(t.TempDir()))
	propose(t, n, pool("shop", 2))
	<-n.Changed()
	token := &lbdv1.Token{Id: "first", Role: lbdv1.Role_ROLE_VIEWER, CreateTime: timestamppb.Now()}
	for _, cmd := range []*raftv1.TokenCommand{
		{Creates: []*raftv1.StoredToken{{Token: token, SecretSha256: bytes.Repeat([]byte{1}, 32)}}},
		{Revokes: []string{token.GetId()}},
	} {
		cmd.Author, cmd.Time = "anna", timestamppb.Now()
		next := n.Next()
		if res, err := n.ProposeCommand(t.Context(), &raftv1.Command{Kind: &raftv1.Command_Token{Token: cmd}}); err != nil || res.Err != nil {
			t.Fatal(err, res.Err)
		}
		select {
		case <-next:
		default:
			t.Errorf("nobody is told of %v", cmd)
		}
	}
	select {
	case <-n.Changed():
		t.Error("what is served is the same, and somebody looks")
	default:
	}
}

// An override wakes who publishes, makes no revision, and is there after a restart and in a snapshot, as is the past.
func TestOverridesAreDurable(t *testing.T) {
	dir := t.TempDir()
	n := start(t, config(dir))
	propose(t, n, pool("shop", 2))
	propose(t, n, pool("shop", 3))
	<-n.Changed()
	next := n.Next()
	res, err := n.ProposeOverride(t.Context(), drain("shop", "d"))
	if err != nil || len(res.Overrides) != 1 || res.Revision != 2 {
		t.Fatalf("%+v, %v", res, err)
	}
	select {
	case <-n.Changed():
	default:
		t.Error("nobody was told of the override")
	}
	select {
	case <-next:
	default:
		t.Error("those who wait were not told of the override")
	}
	want := snapshotBytes(t, n.State())
	stop(t, n)

	n = start(t, config(dir))
	if !bytes.Equal(snapshotBytes(t, n.State()), want) {
		t.Fatal("the state differs after a restart")
	}
	restored, _, err := readSnapshot(bytes.NewReader(want))
	if err != nil {
		t.Fatal(err)
	}
	for what, st := range map[string]*state.State{"restart": n.State(), "snapshot": restored} {
		var all []string
		for o := range st.Overrides("shop") {
			all = append(all, fmt.Sprint(o.GetAddress(), " ", o.GetAuthor(), " ", o.GetCreateTime() != nil))
		}
		if !slices.Equal(all, []string{"10.0.0.0:80 anna true"}) {
			t.Errorf("after %s: overrides %v", what, all)
		}
		past, err := st.At(1)
		if err != nil {
			t.Fatal(err)
		}
		if stored, _ := past.Get(state.Pools, "shop"); len(stored.GetResource().GetPool().GetBackends()) != 2 {
			t.Errorf("after %s: the past is %v", what, stored)
		}
	}
	if res, err = n.ProposeOverride(t.Context(), drain("shop", "d")); err != nil || !res.Replayed {
		t.Errorf("a retry: %+v, %v", res, err)
	}
	var missing *state.MissingError
	if _, err = n.ProposeOverride(t.Context(), drain("shp", "")); !errors.As(err, &missing) {
		t.Errorf("an override of no pool: %v", err)
	}
	if revision := n.State().Revision(); revision != 2 {
		t.Errorf("revision %d, want 2", revision)
	}
}
