package main

import (
	"slices"
	"testing"
	"time"

	"lbd/cluster"
	lbdv1 "lbd/proto/lbd/v1"
)

type fakeSeat struct {
	members []cluster.Member
	leader  string
	term    uint64
}

func (s *fakeSeat) Members() []cluster.Member    { return s.members }
func (s *fakeSeat) ID() string                   { return "id-a" }
func (s *fakeSeat) Leader() string               { return s.leader }
func (s *fakeSeat) RaftStats() cluster.RaftStats { return cluster.RaftStats{Term: s.term} }
func (s *fakeSeat) Next() <-chan struct{}        { return nil }

func fellow(name string, live bool, drain *lbdv1.NodeDrain) cluster.Member {
	return cluster.Member{Node: &lbdv1.Node{Id: "id-" + name, Name: name, Address: name + ":7443", Drain: drain}, Live: live}
}

func TestFellows(t *testing.T) {
	e := newEvents("a")
	f := newFellows(e)
	seat := &fakeSeat{members: []cluster.Member{fellow("a", true, nil)}, leader: "id-a", term: 2}
	now := time.Now()
	var seen time.Time
	expect := func(after time.Duration, want ...string) {
		t.Helper()
		now = now.Add(after)
		f.look(seat, now)
		past, _ := e.since(seen)
		var got []string
		for _, event := range past {
			seen = event.GetTime().AsTime()
			got = append(got, event.GetType()+" "+event.GetResource()+": "+event.GetMessage())
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	expect(0, "leader_changed nodes/a: it leads, in term 2")
	expect(10 * time.Second)

	// One that has joined has a while to be heard of.
	seat.members = []cluster.Member{fellow("a", true, nil), fellow("b", false, nil)}
	expect(time.Second, "node_joined nodes/b: at b:7443")
	expect(9 * time.Second)
	expect(time.Second, "node_unreachable nodes/b: it is out of contact with the leader")
	expect(time.Second)
	seat.members[1].Live = true
	expect(time.Second, "node_back nodes/b: it is in contact with the leader again")

	seat.members[1] = fellow("b", true, &lbdv1.NodeDrain{Author: "token ops (k3v9)", Reason: "new kernel"})
	expect(time.Second, "node_drained nodes/b: by token ops (k3v9): new kernel")
	seat.members[1] = fellow("b", true, nil)
	expect(time.Second, "node_undrained nodes/b: it takes traffic again")

	// An election is no news, another leader is. Who does not lead does not know who is in contact.
	seat.leader = ""
	expect(time.Second)
	seat.leader, seat.term = "id-b", 3
	seat.members[0].Live, seat.members[1].Live = false, false
	expect(time.Second, "leader_changed nodes/b: it leads, in term 3")
	expect(20 * time.Second)
	seat.leader = ""
	expect(time.Second)
	expect(5*time.Second, "leader_lost nodes/b: nobody leads: traffic is served, changes are refused")
	expect(time.Minute)
	seat.leader, seat.term = "id-b", 4
	expect(time.Second, "leader_changed nodes/b: it leads, in term 4")

	seat.members = seat.members[:1]
	expect(time.Second, "node_removed nodes/b: it is no member any more")
	if n := f.elections.Load(); n != 3 {
		t.Errorf("%d elections, want 3", n)
	}
}
