package cluster

import (
	"strings"
	"testing"

	"lbd/cluster/state"
	lbdv1 "lbd/proto/lbd/v1"
)

// viewOf reads a cluster: "a" votes, "b-" is a learner, "c!" is out of contact, "d?" is not in raft, "e~" shall not vote, "f*" is in raft alone, "g." has not caught up. The first one
// leads.
func viewOf(text string) view {
	v := view{seats: map[string]seatKind{}}
	silent, behind := map[string]bool{}, map[string]bool{}
	for i, word := range strings.Fields(text) {
		id, marks := word[:1], word[1:]
		has := func(mark string) bool { return strings.Contains(marks, mark) }
		if i == 0 {
			v.self = id
		}
		silent[id], behind[id] = has("!"), has(".")
		switch {
		case has("?"):
		case has("-"):
			v.seats[id] = learner
		default:
			v.seats[id] = voter
		}
		if !has("*") {
			role := lbdv1.NodeRole_NODE_ROLE_VOTER
			if has("~") {
				role = lbdv1.NodeRole_NODE_ROLE_NON_VOTER
			}
			v.nodes = append(v.nodes, &lbdv1.Node{Id: id, Role: role})
		}
	}
	v.live = func(id string) bool { return id == v.self || !silent[id] }
	v.ready = func(id string) bool { return !silent[id] && !behind[id] }
	return v
}

// TestPlan: raft follows the state a step at a time, and by none the voters that are alive cease to be a majority.
func TestPlan(t *testing.T) {
	for _, c := range []struct {
		what, view string
		want       step
		waiting    string
	}{
		{"nothing to do", "a b c", step{}, ""},
		{"nobody has written himself down", "a*", step{}, ""},
		{"one that joins is a learner first", "a b?", step{add, "b"}, ""},
		{"a learner that has caught up votes", "a b-", step{promote, "b"}, ""},
		{"one that has not does not", "a b-.", step{}, ""},
		{"nor one that shall not", "a b-~", step{}, ""},
		{"nor a sixth", "a b c d e f-", step{}, ""},
		{"nor one that would leave no majority alive", "a b! c!- d-!", step{}, ""},
		{"a vote is taken", "a b c d~", step{demote, "d"}, ""},
		{"one that was removed goes", "a b c d*", step{remove, "d"}, ""},
		{"also one that does not answer", "a b c!*", step{remove, "c"}, ""},
		{"a learner goes whoever is alive", "a b! c! d-*", step{remove, "d"}, ""},
		{"a voter does not where the rest would be no majority", "a b! c~", step{}, "node c shall not vote any more: without it most voters are out of contact"},
		{"a leader that was removed hands over", "a* b c", step{handOver, "b"}, ""},
		{"to one that has caught up", "a* b. c", step{handOver, "c"}, ""},
		{"or waits", "a~ b! c!", step{}, "node a leads and shall not vote any more: no other voter could lead"},
		{"who joins comes before who goes", "a b c* d?", step{add, "d"}, ""},
	} {
		if got, waiting := plan(viewOf(c.view)); got != c.want || waiting != c.waiting {
			t.Errorf("%s (%s): %v of %q, waiting %q; want %v of %q, %q", c.what, c.view, got.act, got.id, waiting, c.want.act, c.want.id, c.waiting)
		}
	}
}

// TestCommonGate: what the oldest build reads is what may be written, and none that says nothing counts as able.
func TestCommonGate(t *testing.T) {
	gates := func(all ...int32) func(func(*lbdv1.Node) bool) {
		return func(yield func(*lbdv1.Node) bool) {
			for _, g := range all {
				if !yield(&lbdv1.Node{Gate: g}) {
					return
				}
			}
		}
	}
	for _, c := range []struct {
		all  []int32
		want int32
	}{
		{nil, 0},
		{[]int32{state.GateMax, state.GateMax}, state.GateMax},
		{[]int32{state.GateMax + 1, state.GateMax}, state.GateMax},
		{[]int32{state.GateMax, state.GateMax - 1, state.GateMax}, state.GateMax - 1},
		{[]int32{0, state.GateMax}, 0},
	} {
		if got := commonGate(gates(c.all...)); got != c.want {
			t.Errorf("%v: %d, want %d", c.all, got, c.want)
		}
	}
}
