package cluster

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/types/known/timestamppb"

	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// Who the nodes are, and what they shall be, is in the state, like everything that people ask for. raft's configuration, which says whose vote counts, follows:
//
//	in the state, not in raft      add it, without a vote
//	shall vote, has caught up      give it one, while there are less than votersMax
//	shall not vote                 take it
//	not in the state               remove it
//
// One step at a time, and none after which the voters that are alive would be no majority.

// keep runs on each node and works on the leader.
func (n *Node) keep() {
	ticker := time.NewTicker(n.config.Timing.Keeper)
	defer ticker.Stop()
	for {
		moved, next := *n.reports.moved.Load(), n.Next()
		switch intent := n.recovery.Load(); {
		case !n.leading.is():
			n.worries.set(worryMembers, "")
		case intent != nil:
			n.beginEpoch(intent)
		default:
			n.follow()
			n.openGate()
		}
		select {
		case <-ticker.C:
		case <-moved:
		case <-next:
		case <-n.closing:
			return
		}
	}
}

// follow takes raft's configuration to what the state says, as far as that is possible now.
func (n *Node) follow() {
	for range 4 * votersMax {
		s, waiting := plan(n.view())
		n.worries.set(worryMembers, waiting)
		if s.act == stay {
			return
		}
		err := n.take(s)
		n.reports.tell()
		if err != nil {
			n.logger.Warn("member not changed: it is tried again", "node", s.id, "change", s.act.String(), "error", err)
			return
		}
		n.logger.Info("member changed", "node", s.id, "change", s.act.String())
	}
}

// act is what can be done about a member.
type act int

const (
	stay act = iota
	add
	promote
	demote
	remove
	handOver
)

func (a act) String() string {
	return [...]string{"none", "added without a vote", "votes", "votes no more", "removed", "leads in this node's place"}[a]
}

type step struct {
	act act
	id  string
}

// view is what the keeper decides by.
type view struct {
	self  string
	nodes []*lbdv1.Node
	seats map[string]seatKind
	live  func(id string) bool
	ready func(id string) bool // live and caught up
}

func (n *Node) view() view {
	v := view{self: n.id, seats: n.suffrage(), nodes: slices.Collect(n.State().Nodes())}
	v.live = func(id string) bool { return id == n.id || n.liveReport(n.reports.of(id)) }
	v.ready = func(id string) bool {
		t := n.reports.of(id)
		return n.liveReport(t) && !t.near.IsZero() && time.Since(t.near) >= caughtUpFor
	}
	return v
}

// plan finds the next step; waiting says in words what has to wait, and for what.
func plan(v view) (s step, waiting string) {
	if len(v.nodes) == 0 { // nobody has written himself down yet
		return step{}, ""
	}
	wanted := make(map[string]*lbdv1.Node)
	for _, node := range v.nodes {
		wanted[node.GetId()] = node
		if v.seats[node.GetId()] == noSeat {
			return step{add, node.GetId()}, ""
		}
	}
	for _, node := range v.nodes { // those that joined first, first
		if v.wantsVote(node) && v.voters() < votersMax && v.ready(node.GetId()) && v.holds(node.GetId(), 1) {
			return step{promote, node.GetId()}, ""
		}
	}
	for _, id := range v.ids() {
		node := wanted[id]
		act := remove
		switch {
		case node != nil && (node.GetRole() != lbdv1.NodeRole_NODE_ROLE_NON_VOTER || v.seats[id] != voter):
			continue
		case node != nil:
			act = demote
		}
		switch {
		case v.seats[id] == learner:
			return step{act, id}, ""
		case id == v.self:
			if heir := v.heir(wanted); heir != "" {
				return step{handOver, heir}, ""
			}
			waiting = fmt.Sprintf("node %s leads and shall not vote any more: no other voter could lead", id)
		case v.holds(id, -1):
			return step{act, id}, ""
		default:
			waiting = fmt.Sprintf("node %s shall not vote any more: without it most voters are out of contact", id)
		}
	}
	return step{}, waiting
}

func (v view) wantsVote(node *lbdv1.Node) bool {
	return node.GetRole() == lbdv1.NodeRole_NODE_ROLE_VOTER && v.seats[node.GetId()] == learner
}

// ids are those of raft's configuration, in an order that does not change.
func (v view) ids() []string {
	var ids []string
	for id := range v.seats {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func (v view) voters() (count int) {
	for _, seat := range v.seats {
		if seat == voter {
			count++
		}
	}
	return count
}

// holds is whether the voters that are alive are a majority after one more (1) or one less (-1).
func (v view) holds(id string, change int) bool {
	voters, live := v.voters()+change, 0
	for other, seat := range v.seats {
		if seat == voter && other != id && v.live(other) {
			live++
		}
	}
	if change > 0 && v.live(id) {
		live++
	}
	return voters > 0 && live > voters/2
}

// heir is a voter that may lead in this node's place.
func (v view) heir(wanted map[string]*lbdv1.Node) string {
	for _, id := range v.ids() {
		if node := wanted[id]; id != v.self && v.seats[id] == voter && v.ready(id) && node.GetRole() == lbdv1.NodeRole_NODE_ROLE_VOTER {
			return id
		}
	}
	return ""
}

// take does a step and waits until it is agreed on.
func (n *Node) take(s step) error {
	if s.act == handOver {
		ctx, cancel := context.WithTimeout(n.life, leaderWait)
		defer cancel()
		return n.TransferLeader(ctx, s.id)
	}
	r, err := n.enter()
	if err != nil {
		return err
	}
	defer n.callers.Done()
	id, address := raft.ServerID(s.id), raft.ServerAddress(s.id)
	var future raft.IndexFuture
	switch s.act {
	case add:
		future = r.AddNonvoter(id, address, 0, enqueueWait)
	case promote:
		future = r.AddVoter(id, address, 0, enqueueWait)
	case demote:
		future = r.DemoteVoter(id, 0, enqueueWait)
	default:
		future = r.RemoveServer(id, 0, enqueueWait)
	}
	answer := make(chan error, 1)
	go func() { answer <- future.Error() }() // ends with raft at the latest
	select {
	case err = <-answer:
		return err
	case <-n.closing: // raft may have no majority to agree with, and Close waits for this before it ends raft
		return ErrClosed
	}
}

// openGate lets newer kinds of entries be written once every node can read them.
func (n *Node) openGate() {
	st := n.State()
	gate := commonGate(st.Nodes())
	if gate <= st.Gate() {
		return
	}
	cmd := &raftv1.Command{Kind: &raftv1.Command_Gate{Gate: &raftv1.GateCommand{Gate: gate, Time: timestamppb.New(n.config.Now())}}}
	ctx, cancel := context.WithTimeout(n.life, leaderWait)
	defer cancel()
	if _, err := n.ProposeCommand(ctx, cmd); err != nil {
		n.logger.Warn("newer kinds of entries not let in: it is tried again", "gate", gate, "error", err)
		return
	}
	n.logger.Info("every node reads newer kinds of entries: older builds cannot join any more", "gate", gate)
}
