package cluster

import "github.com/hashicorp/raft"

// RaftStats is where this node's raft stands.
type RaftStats struct {
	Leads bool
	Term  uint64
	// Indexes of log entries: the last one there, the last that the cluster agreed on, the last that reached the state.
	Last, Committed, Applied uint64
}

// RaftStats reads a few atomics of raft; all zero before Start.
func (n *Node) RaftStats() RaftStats {
	r := n.running()
	if r == nil {
		return RaftStats{}
	}
	return RaftStats{
		Leads: r.State() == raft.Leader, Term: r.CurrentTerm(),
		Last: r.LastIndex(), Committed: r.CommitIndex(), Applied: r.AppliedIndex(),
	}
}

// Term is raft's, as far as this node knows; 0: it has no seat.
func (n *Node) Term() uint64 {
	if r := n.running(); r != nil {
		return r.CurrentTerm()
	}
	return 0
}
