package cluster

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// pulse keeps the node in touch, at each interval and when another node leads:
//
//  1. is this node's state as far as the leader's? the leader hears that way that it is alive
//  2. without a leader: are we a member at all?
//  3. does our record say what we say of ourselves?
func (n *Node) pulse() {
	ticker := time.NewTicker(n.config.Timing.Keeper)
	defer ticker.Stop()
	for {
		alone := false
		n.within(func(ctx context.Context) {
			err := n.barrierOnce(ctx)
			if errors.Is(err, ErrCopied) {
				n.toldBy(err)
			}
			alone = errors.Is(err, ErrNoLeader) && n.Leader() == ""
		})
		if alone {
			n.within(n.askAnybody)
		}
		n.within(n.announce)
		select {
		case <-ticker.C:
		case <-n.observed:
			n.reports.tell()
			n.sayWhoLeads()
		case <-n.closing:
			return
		}
	}
}

// sayWhoLeads tells the log who leads, once each time that it is another one.
func (n *Node) sayWhoLeads() {
	leader := n.Leader()
	if leader == n.saidLeader {
		return
	}
	n.saidLeader = leader
	switch node, ok := n.State().Node(leader); {
	case leader == "":
		n.logger.Warn("no node leads: traffic is served, changes are refused")
	case ok:
		n.logger.Info("a node leads", "leader", node.GetName(), "id", leader)
	default:
		n.logger.Info("a node leads", "id", leader)
	}
}

// within does one thing of the pulse, which must not keep the others from being done.
func (n *Node) within(do func(context.Context)) {
	ctx, cancel := context.WithTimeout(n.life, barrierWait)
	defer cancel()
	do(ctx)
}

// askAnybody asks the members in turn whether this node is still one: a node that was removed while it was away is talked to by nobody.
func (n *Node) askAnybody(ctx context.Context) {
	if n.config.Network == nil || time.Since(n.asked.at) < n.config.Timing.Keeper {
		return
	}
	var others []string
	for node := range n.State().Nodes() {
		if node.GetId() != n.id {
			others = append(others, node.GetId())
		}
	}
	if len(others) == 0 {
		return
	}
	n.asked.at, n.asked.turn = time.Now(), n.asked.turn+1
	slices.Sort(others)
	_, err := n.config.Network.ReadIndex(ctx, others[n.asked.turn%len(others)], n.report())
	n.toldBy(err)
}

// asking is whom askAnybody asked last. Only the pulse uses it.
type asking struct {
	at   time.Time
	turn int
}

// told is what raft's connections hear. Whoever hears a leader, or leads, knows better than another node's word, but for a new epoch: the leader is
// then one of those that were left behind.
func (n *Node) told(err error) {
	if n.Leader() == "" || errors.Is(err, ErrLeftBehind) {
		n.toldBy(err)
	}
}

// toldBy closes Removed where an error of the network says so.
func (n *Node) toldBy(err error) {
	switch {
	case errors.Is(err, ErrLeftBehind):
		n.leave("the cluster has begun anew without it, as another node says")
		n.retire()
	case errors.Is(err, ErrCopied):
		n.giveUp(err)
	case errors.Is(err, ErrRemoved):
		n.leave("told by another node")
	}
}

// retire ends raft for good, in a node that was left behind: with others that were it could elect a leader, and agree on what nobody else will ever know of. A node that
// was removed goes on until it closes, as its vote may count until the others have agreed otherwise; but it takes no changes.
func (n *Node) retire() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed || n.retired {
		return
	}
	n.retired = true
	n.watchers.Go(n.endRaft)
}

func (n *Node) endRaft() {
	n.recovering.Lock()
	defer n.recovering.Unlock()
	n.mu.Lock()
	r, transport := n.raft, n.transport
	closed := n.closed
	if !closed {
		n.raft, n.transport = nil, nil
	}
	n.mu.Unlock()
	if closed || r == nil { // Close ends it
		return
	}
	err := transport.Close() // first: what is under way comes to nothing, as a leader that reaches nobody steps down
	n.callers.Wait()
	err = errors.Join(err, r.Shutdown().Error())
	n.leading.set(false)
	n.log.running.Store(false)
	n.votes.running.Store(false)
	n.logger.Warn("this node takes no part in elections and changes any more", "error", err)
}

// isRemoved tells whether this node knows that it is no member any more.
func (n *Node) isRemoved() bool {
	select {
	case <-n.removed:
		return true
	default:
		return false
	}
}

func (n *Node) leave(why string) {
	n.left.Do(func() {
		n.logger.Error("this node is no member of the cluster any more", "node", n.config.Node, "id", n.id, "reason", why)
		close(n.removed)
	})
}

// giveUp ends raft of a node that runs elsewhere, too.
func (n *Node) giveUp(why error) {
	n.doubled.Do(func() {
		n.logger.Error("this node's data directory is a copy, and the other one runs", "node", n.config.Node, "id", n.id, "reason", why)
		close(n.copied)
	})
	n.retire()
}

// Copied is closed once the node knows that the node of its data directory runs elsewhere: it takes no part any more.
func (n *Node) Copied() <-chan struct{} { return n.copied }

// Removed is closed once the node knows that it is no member of the cluster any more: its state says so, or a member told it.
func (n *Node) Removed() <-chan struct{} { return n.removed }

// observe makes raft tell the pulse of each change of the leader; what does not fit is no news.
func (n *Node) observe(r *raft.Raft) {
	r.RegisterObserver(raft.NewObserver(n.observed, false, func(o *raft.Observation) bool {
		_, ok := o.Data.(raft.LeaderObservation)
		return ok
	}))
}

// worries are what is wrong beside the disk, in words, by what it is about.
type worries struct {
	mu  sync.Mutex
	all map[string]string
}

const (
	worryMembers  = "members"
	worrySelf     = "self"
	worryRecovery = "recovery"
)

// set keeps a worry; an empty text ends it.
func (w *worries) set(about, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if text == "" {
		delete(w.all, about)
		return
	}
	if w.all == nil {
		w.all = make(map[string]string)
	}
	w.all[about] = text
}

func (w *worries) list() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []string
	for _, about := range []string{worryRecovery, worryMembers, worrySelf} {
		if text := w.all[about]; text != "" {
			all = append(all, text)
		}
	}
	return all
}
