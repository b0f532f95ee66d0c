package cluster

import (
	"context"
	"net"

	lbdv1 "lbd/proto/lbd/v1"
)

// Network carries raft's connections and the nodes' few questions. The real one is rpc's; clustertest has one in memory. All of it
// names nodes by their id: address and key are found in the membership.
type Network interface {
	// Dial connects to a node's raft and has verified that it is that node. ErrRemoved: the other one says that we are no member any more.
	Dial(ctx context.Context, node string) (net.Conn, error)
	// Accept returns connections of verified members only. It fails once Close was called.
	Accept() (net.Conn, error)
	// ReadIndex asks the leader for the entry that a node must have applied to know all that was acknowledged before the call, and
	// tells it how far this node is. Errors: ErrNoLeader (it does not lead), ErrRemoved (we are no member any more), and what the network says.
	ReadIndex(ctx context.Context, leader string, report Report) (uint64, error)
	// ProposeNode takes this node's own record to the leader, and returns the entry in which it is. Errors as ReadIndex's, and what the state refuses.
	ProposeNode(ctx context.Context, leader string, node *lbdv1.Node) (uint64, error)
	// Close ends Accept and what is open.
	Close() error
}

// Report is how far a node is. Node is its id; the leader takes it from the connection, not from what was sent.
type Report struct {
	Node    string
	Applied uint64
	Served  int64
}

// Seed is what a node that joins was told by those that let it in. A node with a seed makes no cluster of its own: it waits for a leader that knows it. It counts only
// at a first start; afterwards the data directory says to which cluster it belongs.
type Seed struct {
	ClusterID string
}
