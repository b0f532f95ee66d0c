package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"lbd/cluster"
	lbdv1 "lbd/proto/lbd/v1"
)

const (
	// fellowsLook is how often it is looked who leads and who answers: neither is in the state.
	fellowsLook = time.Second
	// leaderlessTold is how long nobody leads before that is told: an election is no news.
	leaderlessTold = 5 * time.Second
	// contactGrace is how long a leader, and a node that has joined, have to hear of each other before one is called silent.
	contactGrace = 10 * time.Second
)

// fellowship is the part of the node's seat that fellows looks at.
type fellowship interface {
	ID() string
	Leader() string
	Members() []cluster.Member
	Next() <-chan struct{}
	RaftStats() cluster.RaftStats
}

// fellows tells of the cluster's nodes, as events: who joins, drains and goes, who leads and, on the leader, who answers no more.
type fellows struct {
	events *events
	// elections counts the leaders that this node has heard of, one after the other.
	elections atomic.Int64

	// Only run.
	nodes  map[string]*lbdv1.Node // by id, as last told; nil: nothing was looked at yet
	leader string                 // id; empty: none was heard of yet
	lost   time.Time              // when it was seen first that nobody leads; zero: somebody does
	leads  time.Time              // since when this node leads; zero: it does not
	joined map[string]time.Time   // by id, of those that came while this node runs
	silent map[string]bool        // by id, as told; of a leader only
}

func newFellows(e *events) *fellows {
	return &fellows{events: e, joined: map[string]time.Time{}, silent: map[string]bool{}}
}

// run looks until ctx ends.
func (f *fellows) run(ctx context.Context, seat fellowship) {
	tick := time.NewTicker(fellowsLook)
	defer tick.Stop()
	for {
		next := seat.Next() // before the state, so that none is missed
		f.look(seat, time.Now())
		select {
		case <-next:
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// look tells what is different from the time before.
func (f *fellows) look(seat fellowship, now time.Time) {
	members := seat.Members()
	f.lookAtMembers(members, now)
	f.lookAtLeader(seat, now)
	if seat.Leader() != seat.ID() {
		f.leads, f.silent = time.Time{}, map[string]bool{}
		return
	}
	if f.leads.IsZero() {
		f.leads = now
	}
	f.lookAtContact(members, now)
}

// lookAtMembers tells of those who have come, gone, or given their traffic up. At a start nobody is new.
func (f *fellows) lookAtMembers(members []cluster.Member, now time.Time) {
	before := f.nodes
	f.nodes = map[string]*lbdv1.Node{}
	for _, m := range members {
		f.nodes[m.Node.GetId()] = m.Node
	}
	if before == nil {
		return
	}
	for _, m := range members {
		was, drain := before[m.Node.GetId()], m.Node.GetDrain()
		switch {
		case was == nil:
			f.joined[m.Node.GetId()] = now
			f.tell("node_joined", m.Node.GetName(), "at "+m.Node.GetAddress())
		case was.GetDrain() == nil && drain != nil:
			text := "by " + drain.GetAuthor()
			if drain.GetReason() != "" {
				text += ": " + drain.GetReason()
			}
			f.tell("node_drained", m.Node.GetName(), text)
		case was.GetDrain() != nil && drain == nil:
			f.tell("node_undrained", m.Node.GetName(), "it takes traffic again")
		}
	}
	for _, id := range slices.Sorted(maps.Keys(before)) {
		if f.nodes[id] == nil {
			delete(f.silent, id)
			delete(f.joined, id)
			f.tell("node_removed", before[id].GetName(), "it is no member any more")
		}
	}
}

// lookAtLeader tells who leads, and that nobody does once that lasts.
func (f *fellows) lookAtLeader(seat fellowship, now time.Time) {
	id := seat.Leader()
	switch {
	case id == "" && f.lost.IsZero():
		f.lost = now
	case id == "" && f.leader != "" && now.Sub(f.lost) >= leaderlessTold:
		f.tell("leader_lost", f.called(f.leader), "nobody leads: traffic is served, changes are refused")
		f.leader = ""
	case id != "":
		f.lost = time.Time{}
		if id != f.leader {
			f.elections.Add(1)
			f.tell("leader_changed", f.called(id), fmt.Sprintf("it leads, in term %d", seat.RaftStats().Term))
		}
		f.leader = id
	}
}

// lookAtContact tells who is out of contact, and who is back. Only the leader knows.
func (f *fellows) lookAtContact(members []cluster.Member, now time.Time) {
	for _, m := range members {
		id := m.Node.GetId()
		switch {
		case m.Live && f.silent[id]:
			delete(f.silent, id)
			f.tell("node_back", m.Node.GetName(), "it is in contact with the leader again")
		case !m.Live && !f.silent[id] && now.Sub(f.leads) >= contactGrace && now.Sub(f.joined[id]) >= contactGrace:
			f.silent[id] = true
			f.tell("node_unreachable", m.Node.GetName(), "it is out of contact with the leader")
		}
	}
}

func (f *fellows) tell(kind, node, message string) { f.events.add(kind, "nodes/"+node, message) }

// called is a node's name, as far as it is known.
func (f *fellows) called(id string) string {
	if n := f.nodes[id]; n != nil {
		return n.GetName()
	}
	return id
}
