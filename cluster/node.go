// Package cluster is one node's seat in the replicated state machine: it opens the durable state, takes part in raft,
// and turns proposed changes into revisions.
package cluster

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"lbd/cluster/state"
)

// Config is what a node needs to know.
type Config struct {
	// Dir is the data directory; made if it is not there.
	Dir string
	// Node is the node's name for people. The node's identity is an id of its own, kept in Dir.
	Node string
	// Logger gets what happens here and in raft. Required.
	Logger *slog.Logger
	// Now dates revisions. Default time.Now.
	Now func() time.Time
	// MaxPartBytes is the size above which a change travels in parts. Default and most: state.PartBytesMax.
	MaxPartBytes int
}

// Node is a node's seat.
type Node struct {
	config Config
	logger *slog.Logger
	id     string

	lock      *os.File
	faults    faults
	durable   *durable
	log       *raftLog
	votes     *votes
	snapshots raft.SnapshotStore
	machine   *machine

	state   atomic.Pointer[state.State] // written by the machine
	changed chan struct{}
	next    atomic.Pointer[chan struct{}] // closed and replaced by the machine after each new state
	stuck   atomic.Bool                   // set by the machine: it stays before an entry that it does not know

	closing  chan struct{} // closed when Close begins
	stopped  chan struct{} // closed when raft is gone
	callers  sync.WaitGroup
	watchers sync.WaitGroup
	leading  leading

	scrubbing sync.Mutex // one Scrub at a time

	mu     sync.Mutex
	raft   *raft.Raft // nil before Start
	closed bool
}

// Start takes the seat: raft begins to elect, to replay and to accept proposals. It does not wait for a leader.
func (n *Node) Start() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed || n.raft != nil {
		return fmt.Errorf("start node: %w", ErrClosed)
	}
	config := n.raftConfig()
	address, transport := raft.NewInmemTransport(raft.ServerAddress(n.id))
	err := contain(func() (err error) {
		if err := n.bootstrap(config, address, transport); err != nil {
			return err
		}
		n.log.running.Store(true)
		n.votes.running.Store(true)
		n.raft, err = raft.NewRaft(config, n.machine, n.log, n.votes, n.snapshots, transport)
		return err
	})
	if err != nil {
		n.raft = nil
		n.log.running.Store(false)
		n.votes.running.Store(false)
		return errors.Join(openError(n.log.path, err), transport.Close())
	}
	n.watchers.Go(func() { n.watchLeadership(n.raft, n.leading.notify) })
	return nil
}

func (n *Node) raftConfig() *raft.Config {
	config := raft.DefaultConfig()
	config.LocalID = raft.ServerID(n.id)
	config.HeartbeatTimeout = soleElectionTimeout
	config.ElectionTimeout = soleElectionTimeout
	config.LeaderLeaseTimeout = soleElectionTimeout
	config.ShutdownOnRemove = false
	config.SnapshotThreshold = snapshotEntries
	config.SnapshotInterval = snapshotInterval
	config.TrailingLogs = trailingEntries
	config.NoSnapshotRestoreOnStart = true
	config.NotifyCh = n.leading.notify
	config.Logger = raftLogger(n.logger)
	return config
}

// bootstrap makes a node that has never had a log the only voter of its cluster.
func (n *Node) bootstrap(config *raft.Config, address raft.ServerAddress, transport raft.Transport) error {
	exists, err := raft.HasExistingState(n.log, n.votes, n.snapshots)
	if err != nil || exists {
		return err
	}
	return raft.BootstrapCluster(config, n.log, n.votes, n.snapshots, transport, raft.Configuration{
		Servers: []raft.Server{{Suffrage: raft.Voter, ID: config.LocalID, Address: address}},
	})
}

// State is the last applied state. It never waits.
func (n *Node) State() *state.State { return n.state.Load() }

// Changed gets a value after a revision or an override has changed. It has one slot, for one reader: many changes may be one
// value.
func (n *Node) Changed() <-chan struct{} { return n.changed }

// Next is closed when there is another state than at the time of the call, in whatever: a revision, an override, a credential. Any
// number may wait for it; who wants to miss nothing calls Next before State.
func (n *Node) Next() <-chan struct{} { return *n.next.Load() }

// ID is the node's identity, for good; Name is what people call it.
func (n *Node) ID() string { return n.id }

// Name is the node's name.
func (n *Node) Name() string { return n.config.Node }

// Role is "leader", "follower", "candidate" or, without raft, "none".
func (n *Node) Role() string {
	if r := n.running(); r != nil && r.State() != raft.Shutdown {
		return strings.ToLower(r.State().String())
	}
	return "none"
}

// Leader is the id of the node that leads, as far as this one knows; empty: none.
func (n *Node) Leader() string {
	r := n.running()
	if r == nil {
		return ""
	}
	_, id := r.LeaderWithID()
	return string(id)
}

// Problems says in words what is wrong with this node's disk; none: nothing.
func (n *Node) Problems() []string { return n.faults.list() }

func (n *Node) running() *raft.Raft {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.raft
}

// show makes a durable state the current one.
func (n *Node) show(before, st *state.State) {
	n.state.Store(st)
	if before == st {
		return
	}
	next := make(chan struct{})
	close(*n.next.Swap(&next))
	if before.Revision() == st.Revision() && before.OverrideVersion() == st.OverrideVersion() && before.ClusterID() == st.ClusterID() {
		return // nothing to serve otherwise
	}
	select {
	case n.changed <- struct{}{}:
	default:
	}
}

// Close gives the seat up: proposals under way end, then raft, then the files. State stays readable.
func (n *Node) Close() error {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return nil
	}
	n.closed = true
	r := n.raft
	close(n.closing)
	n.mu.Unlock()

	n.callers.Wait() // before raft: afterwards nobody answers what is on its way to the machine
	var err error
	if r != nil {
		err = r.Shutdown().Error()
	}
	close(n.stopped)
	n.watchers.Wait()
	return errors.Join(err, n.closeFiles())
}

func (n *Node) closeFiles() error {
	var errs []error
	if n.durable != nil {
		errs = append(errs, n.durable.close())
	}
	if n.log != nil {
		errs = append(errs, n.log.close())
	}
	if n.votes != nil {
		errs = append(errs, n.votes.close())
	}
	if n.lock != nil {
		errs = append(errs, n.lock.Close())
	}
	return errors.Join(errs...)
}
