package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
)

// What is read shall be what was acknowledged before: a node asks the leader which entry of the log it must have applied, and waits until it has.
// The leader is sure that it leads once most voters have said so after the question.

// ReadBarrier returns when this node has applied everything that was acknowledged before the call. Where an election is under way it waits for that.
// Errors: ErrNoLeader, ErrRemoved, ErrClosed, and the context's.
func (n *Node) ReadBarrier(ctx context.Context) error {
	if staleReads || n.config.StaleReads {
		return nil
	}
	err := n.barrierOnce(ctx)
	for errors.Is(err, ErrNoLeader) && ctx.Err() == nil {
		if age, ever := n.Fresh(); !ever || age > leaderWait {
			return err
		}
		if !pause(electionPoll, n.closing) {
			return ErrClosed
		}
		err = n.barrierOnce(ctx)
	}
	return err
}

func (n *Node) barrierOnce(ctx context.Context) error {
	began := time.Now()
	index, err := n.readIndex(ctx)
	if err == nil {
		err = n.WaitApplied(ctx, index)
	}
	if err != nil {
		n.toldBy(err)
		return err
	}
	n.refresh(began)
	return nil
}

// readIndex finds out how far the state has to be.
func (n *Node) readIndex(ctx context.Context) (uint64, error) {
	r := n.running()
	if r == nil {
		return 0, ErrClosed
	}
	if r.State() == raft.Leader {
		n.reports.take(n.report(), n.Applied())
		return n.verified(ctx)
	}
	leader := n.Leader()
	if leader == "" || leader == n.id || n.config.Network == nil {
		return 0, &NotLeaderError{}
	}
	ctx, cancel := n.whileOpen(ctx)
	defer cancel()
	index, err := n.config.Network.ReadIndex(ctx, leader, n.report())
	if err != nil && !errors.Is(err, ErrNoLeader) && !errors.Is(err, ErrRemoved) {
		return 0, fmt.Errorf("%w: node %s does not say how far it is: %w", ErrNoLeader, leader, err)
	}
	return index, err
}

// AnswerReadIndex answers another node's readIndex, and takes its report. The caller has made sure which node it is. Errors: ErrNoLeader (a [*NotLeaderError]),
// ErrRemoved, ErrLeftBehind, ErrClosed, and the context's.
func (n *Node) AnswerReadIndex(ctx context.Context, report Report) (uint64, error) {
	if r, gone := n.State().RemovedNode(report.Node); gone {
		if r.GetLeftBehind() {
			return 0, ErrLeftBehind
		}
		return 0, ErrRemoved
	}
	if err := n.mustLead(); err != nil {
		return 0, err
	}
	n.reports.take(report, n.Applied())
	n.reports.tell()
	return n.verified(ctx)
}

// verified is the last entry that may have been acknowledged, by a leader that still is one.
func (n *Node) verified(ctx context.Context) (uint64, error) {
	r, err := n.enter()
	if err != nil {
		return 0, err
	}
	defer n.callers.Done()
	if err := n.leading.wait(ctx, n.closing, n.other); err != nil { // what its predecessors have acknowledged may not be applied yet
		return 0, err
	}
	index := n.Applied()
	answer := make(chan error, 1)
	n.callers.Go(func() { answer <- r.VerifyLeader().Error() }) // it cannot be left alone: Close waits for it
	select {
	case err := <-answer:
		if err != nil {
			return 0, &NotLeaderError{Leader: n.other()}
		}
		return index, nil
	case <-ctx.Done():
		return 0, fmt.Errorf("%w: %w", ErrNoLeader, ctx.Err())
	}
}

// mustLead refuses where this node does not lead.
func (n *Node) mustLead() error {
	r := n.running()
	switch {
	case r == nil:
		return ErrClosed
	case r.State() == raft.Leader:
		return nil
	}
	return &NotLeaderError{Leader: n.other()}
}

// other is the node that leads in this one's place, if it is known.
func (n *Node) other() string {
	if leader := n.Leader(); leader != n.id {
		return leader
	}
	return ""
}

// whileOpen is a context that also ends when the node closes.
func (n *Node) whileOpen(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(n.life, cancel)
	return ctx, func() { stop(); cancel() }
}

// report is how far this node is.
func (n *Node) report() Report {
	r := Report{Node: n.id, Applied: n.Applied()}
	if served := n.served.Load(); served != nil {
		r.Served = (*served)()
	}
	return r
}

// SetServed tells how to find out which revision is served, for what the node reports.
func (n *Node) SetServed(served func() int64) { n.served.Store(&served) }

// Fresh is how long ago this node last knew that its state had everything; not ever: not since its start. It does not depend on the time of day.
func (n *Node) Fresh() (age time.Duration, ever bool) {
	at := n.fresh.Load()
	if at == 0 {
		return 0, false
	}
	return max(time.Since(n.began)-time.Duration(at), 0), true
}

func (n *Node) refresh(at time.Time) {
	mark := int64(max(at.Sub(n.began), 1))
	for {
		before := n.fresh.Load()
		if before >= mark || n.fresh.CompareAndSwap(before, mark) {
			return
		}
	}
}

// Applied is the last entry of the log within the state.
func (n *Node) Applied() uint64 { return n.applied.Load() }

// WaitApplied waits until the state has an entry of the log, which has to be one of the state's: Applied of some node, or what ReadIndex told.
// Errors: ErrClosed, and the context's.
func (n *Node) WaitApplied(ctx context.Context, index uint64) error {
	for {
		further := *n.further.Load()
		if n.Applied() >= index {
			return nil
		}
		select {
		case <-further:
		case <-n.closing:
			return ErrClosed
		case <-ctx.Done():
			return fmt.Errorf("wait for entry %d of the log, this node is at %d: %w", index, n.Applied(), ctx.Err())
		}
	}
}

// arrive notes that the state has an entry. The machine calls it, once the state is shown.
func (n *Node) arrive(index uint64) {
	n.applied.Store(index)
	further := make(chan struct{})
	close(*n.further.Swap(&further))
}
