package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	lbdv1 "lbd/proto/lbd/v1"
)

// seatKind is a node's place in raft's configuration.
type seatKind int

const (
	noSeat seatKind = iota
	learner
	voter
)

// seatsOf reads raft's newest configuration, by node.
func seatsOf(r *raft.Raft) map[string]seatKind {
	seats := make(map[string]seatKind)
	future := r.GetConfiguration()
	if future.Error() != nil {
		return seats
	}
	for _, s := range future.Configuration().Servers {
		seats[string(s.ID)] = learner
		if s.Suffrage == raft.Voter {
			seats[string(s.ID)] = voter
		}
	}
	return seats
}

// suffrage is whose vote counts; empty while raft does not run.
func (n *Node) suffrage() map[string]seatKind {
	if r := n.running(); r != nil {
		return seatsOf(r)
	}
	return map[string]seatKind{}
}

// Seated is whether raft counts a node in, by its id.
func (n *Node) Seated(id string) bool { return n.suffrage()[id] != noSeat }

// Member is a node of the cluster as this one sees it.
type Member struct {
	Node *lbdv1.Node
	// Voter and Leader are what raft says.
	Voter, Leader bool
	// Live is whether it has reported within the last seconds. Only the leader knows that of all; others know it of themselves and of the leader.
	Live bool
	// Applied and Served are what it reported last: the entry of the log within its state, and the revision that it serves.
	Applied uint64
	Served  int64
}

// Members are the nodes of the applied state, by name.
func (n *Node) Members() []Member {
	seats, leader, leads := n.suffrage(), n.Leader(), n.leading.is()
	age, ever := n.Fresh()
	var all []Member
	for node := range n.State().Nodes() {
		id := node.GetId()
		m := Member{Node: node, Voter: seats[id] == voter, Leader: id == leader && leader != ""}
		report := n.reports.of(id)
		m.Applied, m.Served = report.Applied, report.Served
		switch {
		case id == n.id:
			own := n.report()
			m.Live, m.Applied, m.Served = true, own.Applied, own.Served
		case leads:
			m.Live = n.liveReport(report)
		default:
			m.Live = m.Leader && ever && age < n.config.Timing.Live // it has answered then
		}
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b Member) int { return strings.Compare(a.Node.GetName(), b.Node.GetName()) })
	return all
}

// AwaitMembers waits until the members are as wanted; it looks after each change of the state, of raft's configuration, and now and then. Errors: ErrNoLeader (a
// [*NotLeaderError]) where this node does not lead, ErrClosed, and the context's.
func (n *Node) AwaitMembers(ctx context.Context, wanted func([]Member) bool) error {
	tick := time.NewTicker(n.config.Timing.Keeper)
	defer tick.Stop()
	for {
		moved, next := *n.reports.moved.Load(), n.Next()
		if err := n.mustLead(); err != nil {
			return err
		}
		if wanted(n.Members()) {
			return nil
		}
		select {
		case <-moved:
		case <-next:
		case <-tick.C:
		case <-n.closing:
			return ErrClosed
		case <-ctx.Done():
			return fmt.Errorf("wait for the nodes: %w", ctx.Err())
		}
	}
}

// AwaitReports waits, on a node that has led only since a moment ago, until every member has reported to it or has had the time to: before that it takes those for
// out of contact that are not. Errors as AwaitMembers's.
func (n *Node) AwaitReports(ctx context.Context) error {
	return n.AwaitMembers(ctx, func(members []Member) bool {
		silent := slices.ContainsFunc(members, func(m Member) bool { return !m.Live })
		return !silent || time.Since(n.began) >= time.Duration(n.led.Load())+reportsFor*n.config.Timing.Keeper
	})
}

// reports are what nodes have told this one, while it led.
type reports struct {
	moved atomic.Pointer[chan struct{}] // closed and replaced when something has changed that the keeper goes by

	mu  sync.Mutex
	all map[string]told
}

// told is a node's last report.
type told struct {
	Report
	at   time.Time
	near time.Time // since when it has been as far as this node, nearly; zero: it is not
}

func (r *reports) init() {
	r.all = make(map[string]told)
	moved := make(chan struct{})
	r.moved.Store(&moved)
}

// take keeps a report; applied is how far this node is.
func (r *reports) take(report Report, applied uint64) {
	now := time.Now()
	r.mu.Lock()
	before, known := r.all[report.Node]
	t := told{Report: report, at: now, near: before.near}
	switch caughtUp := report.Applied+caughtUpEntries >= applied; {
	case !caughtUp:
		t.near = time.Time{}
	case t.near.IsZero() || now.Sub(before.at) > liveFor:
		t.near = now
	}
	if !known && len(r.all) >= reportsMax {
		clear(r.all)
	}
	r.all[report.Node] = t
	r.mu.Unlock()
	if !known || before.Served != report.Served || now.Sub(before.at) > liveFor || !t.near.IsZero() && before.near.IsZero() {
		r.tell()
	}
}

func (r *reports) of(node string) told {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all[node]
}

// forget begins anew: reports are to whoever leads.
func (r *reports) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.all)
}

// tell wakes who waits for the members.
func (r *reports) tell() {
	moved := make(chan struct{})
	close(*r.moved.Swap(&moved))
}

// liveReport is whether a node has reported a moment ago.
func (n *Node) liveReport(t told) bool {
	return !t.at.IsZero() && time.Since(t.at) < n.config.Timing.Live
}
