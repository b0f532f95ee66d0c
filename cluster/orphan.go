package cluster

import (
	"context"
	"errors"
	"slices"
	"syscall"
	"time"
)

// When a leader's process ends, its machine resets its connections and refuses new ones. Who sees both knows more than a heartbeat that does
// not come could tell, and stands for election at once: one voter after the other, so that they do not split the votes. Where the machine
// itself is gone, or the way to it, nothing is refused and raft's own timeout decides.

const (
	// standApart is between the voters' turns: an election takes less.
	standApart = 150 * time.Millisecond
	// refusalWait is how long a connection to the leader may take to be refused.
	refusalWait = 300 * time.Millisecond
)

// orphaned looks whether the leader is gone, when a connection from a peer has ended. It does not wait.
func (n *Node) orphaned(peer string) {
	if peer == "" || n.config.Network == nil || n.Leader() != peer {
		return
	}
	if _, looking := n.orphaning.LoadOrStore(peer, true); looking {
		return
	}
	if _, err := n.enter(); err != nil {
		n.orphaning.Delete(peer)
		return
	}
	go func() { // ends within a second or two; Close waits for it as for a caller
		defer n.callers.Done()
		defer n.orphaning.Delete(peer)
		if turn := n.turnAfter(peer); turn < 0 || !pause(time.Duration(turn)*standApart, n.closing) {
			return
		}
		if n.leftBy(peer) && n.refusedBy(peer) && n.leftBy(peer) {
			n.standNow(peer)
		}
	}()
}

// leftBy tells whether nobody leads in a node's place: who stood before may have been too far behind to be elected.
func (n *Node) leftBy(leader string) bool {
	now := n.Leader()
	return now == leader || now == ""
}

// turnAfter is this node's turn among the voters that a leader leaves; -1: it does not vote.
func (n *Node) turnAfter(leader string) int {
	var voters []string
	for id, seat := range n.suffrage() {
		if seat == voter && id != leader {
			voters = append(voters, id)
		}
	}
	slices.Sort(voters)
	return slices.Index(voters, n.id)
}

// refusedBy tells whether a node's machine answers that nobody listens there.
func (n *Node) refusedBy(node string) bool {
	ctx, cancel := context.WithTimeout(n.life, refusalWait)
	defer cancel()
	conn, err := n.config.Network.Dial(ctx, node)
	if err == nil {
		_ = conn.Close() // it lives
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

func (n *Node) standNow(leader string) {
	n.mu.Lock()
	t := n.transport
	n.mu.Unlock()
	if t == nil {
		return
	}
	n.logger.Info("the leader's process has ended: this node stands for election", "leader", leader)
	t.stand()
}
