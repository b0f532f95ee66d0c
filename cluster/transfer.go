package cluster

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/raft"
)

var errNoHeir = errors.New("there is no other voter in contact")

// TransferLeader makes another voter the leader, by its id; empty: the one that is furthest. It returns when another one leads, or an error where this node leads on.
// Errors: ErrNoLeader (a [*NotLeaderError]) where this node does not lead, ErrClosed, the context's, and what keeps the other one from leading.
func (n *Node) TransferLeader(ctx context.Context, id string) error {
	if err := n.mustLead(); err != nil {
		return err
	}
	id, err := n.heir(id)
	if err != nil {
		return fmt.Errorf("hand leadership over: %w", err)
	}
	r, err := n.enter()
	if err != nil {
		return err
	}
	defer n.callers.Done()
	answer := make(chan error, 1)
	n.callers.Go(func() { // it cannot be left alone: Close waits for it
		answer <- r.LeadershipTransferToServer(raft.ServerID(id), raft.ServerAddress(id)).Error()
	})
	select {
	case err = <-answer:
	case <-ctx.Done():
		err = ctx.Err()
	}
	switch {
	case errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return fmt.Errorf("%w: the leadership is being handed over already", ErrNoLeader)
	case err != nil:
		return fmt.Errorf("hand leadership over to node %s: %w", id, err)
	}
	for leader := n.Leader(); leader == "" || leader == n.id; leader = n.Leader() {
		if ctx.Err() != nil {
			return fmt.Errorf("hand leadership over to node %s: nobody leads yet: %w", id, ctx.Err())
		}
		if !pause(electionPoll, n.closing) {
			return ErrClosed
		}
	}
	return nil
}

// heir is the voter that is to lead: the one that is named, or the one whose state is furthest.
func (n *Node) heir(id string) (string, error) {
	seats, found := n.suffrage(), ""
	furthest := uint64(0)
	for other, seat := range seats {
		t := n.reports.of(other)
		if seat != voter || other == n.id || !n.answers(other) || !n.liveReport(t) {
			continue
		}
		if other == id {
			return id, nil
		}
		if found == "" || t.Applied > furthest {
			found, furthest = other, t.Applied
		}
	}
	switch {
	case id == "" && found != "":
		return found, nil
	case id == "":
		return "", errNoHeir
	case id == n.id:
		return "", fmt.Errorf("node %s leads already", id)
	case seats[id] != voter:
		return "", fmt.Errorf("node %s does not vote", id)
	}
	return "", fmt.Errorf("node %s does not answer", id)
}

// answers is whether a node answers heartbeats.
func (n *Node) answers(id string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.transport == nil {
		return false
	}
	l, ok := n.transport.carrier.(*links)
	return !ok || l.answers(raft.ServerID(id))
}
