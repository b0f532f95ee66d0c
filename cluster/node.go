// Package cluster is one node's seat in the replicated state machine: it opens the durable state, takes part in raft,
// and turns proposed changes into revisions.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
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
	// Network reaches the other nodes. nil: the node is alone for good. The node closes it.
	Network Network
	// Seed is for a first start: the cluster that the node joins. nil: it makes one.
	Seed *Seed
	// Self is what the node says of itself: name, address, version and key. nil: nothing, and it is in no list of members.
	Self *lbdv1.Node
	// Timing has defaults for whatever is zero.
	Timing Timing
	// Disk is asked before each write to a file of the directory, and its error is what the write comes to: for tests of disks that refuse. nil: nobody.
	Disk func(path string) error
	// StaleReads makes ReadBarrier a lie, for the test that shows that its absence is noticed.
	StaleReads bool
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

	applied atomic.Uint64                 // index of the last entry within the state
	further atomic.Pointer[chan struct{}] // closed and replaced when applied grows
	past    past
	seeded  bool // it was let into a cluster, and makes none

	began    time.Time
	fresh    atomic.Int64 // when the state was known to have everything, since began; 0: never
	served   atomic.Pointer[func() int64]
	reports  reports
	led      atomic.Int64 // when this node began to lead last, since began
	worries  worries
	observed chan raft.Observation // a change of the leader
	said     announcement
	// saidLeader is whom the log names as leader. Only the pulse uses it.
	saidLeader string
	asked      asking
	// orphaning has the leaders of which it is being looked whether they are gone.
	orphaning sync.Map
	incoming  chan net.Conn // the others' connections, for whichever raft runs
	removed   chan struct{} // closed by leave
	left      sync.Once

	life     context.Context // ends when Close begins
	end      context.CancelFunc
	closing  <-chan struct{} // life's
	callers  sync.WaitGroup
	watchers sync.WaitGroup
	leading  leading

	scrubbing  sync.Mutex                          // one Scrub at a time
	recovering sync.Mutex                          // one Recover at a time, and Close after it
	recovery   atomic.Pointer[raftv1.EpochCommand] // what Recover has begun; nil: nothing

	mu        sync.Mutex
	raft      *raft.Raft // nil before Start, and for a moment within Recover
	transport *transport // raft's
	closed    bool
	retired   bool // raft ends, or has, and does not begin again
}

// Start takes the seat: raft begins to elect, to replay and to accept proposals. It does not wait for a leader.
func (n *Node) Start() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed || n.raft != nil {
		return fmt.Errorf("start node: %w", ErrClosed)
	}
	if err := n.startLocked(); err != nil {
		return err
	}
	n.watchers.Go(n.watchLeadership)
	n.watchers.Go(n.pulse)
	n.watchers.Go(n.keep)
	if n.config.Network != nil {
		n.watchers.Go(n.accept)
	}
	return nil
}

// startLocked begins raft on the node's files. After an error they are as they were.
func (n *Node) startLocked() error {
	config, c := n.raftConfig(), carrier(nil)
	if n.config.Network == nil {
		c = lone(n.id)
	} else {
		c = newLinks(n, n.incoming, n.follows)
	}
	transport := newTransport(c)
	err := contain(func() (err error) {
		if err := n.bootstrap(config, transport); err != nil {
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
	n.transport = transport
	n.observe(n.raft)
	if n.isSole(n.raft) {
		n.watchers.Go(transport.stand)
	}
	return nil
}

// isSole is whether no other node's vote counts.
func (n *Node) isSole(r *raft.Raft) bool {
	seats := seatsOf(r)
	for id, seat := range seats {
		if seat == voter && id != n.id {
			return false
		}
	}
	return seats[n.id] == voter
}

// follows is whether this node leads and another one is of raft's configuration.
func (n *Node) follows(id raft.ServerID) bool {
	r := n.running()
	return r != nil && r.State() == raft.Leader && seatsOf(r)[string(id)] != noSeat
}

// accept hands the others' connections to raft, which may be another one after Recover.
func (n *Node) accept() {
	for {
		conn, err := n.config.Network.Accept()
		if err != nil {
			if !pause(retryFirst, n.closing) {
				return
			}
			continue
		}
		select {
		case n.incoming <- conn:
		case <-n.closing:
			_ = conn.Close() // nobody uses it
			return
		}
	}
}

func (n *Node) raftConfig() *raft.Config {
	config := raft.DefaultConfig()
	config.LocalID = raft.ServerID(n.id)
	config.HeartbeatTimeout = n.config.Timing.Election
	config.ElectionTimeout = n.config.Timing.Election
	config.LeaderLeaseTimeout = min(n.config.Timing.Lease, n.config.Timing.Election)
	config.ShutdownOnRemove = false
	config.SnapshotThreshold = snapshotEntries
	config.SnapshotInterval = snapshotInterval
	config.TrailingLogs = trailingEntries
	config.NoSnapshotRestoreOnStart = true
	config.NotifyCh = n.leading.notify
	config.Logger = raftLogger(n.logger)
	return config
}

// bootstrap makes a node that has never had a log the only voter of its cluster, unless others let it into theirs; and one that shall go on alone the only
// voter of what it has.
func (n *Node) bootstrap(config *raft.Config, transport raft.Transport) error {
	exists, err := raft.HasExistingState(n.log, n.votes, n.snapshots)
	switch {
	case err != nil:
		return err
	case n.recovery.Load() != nil:
		return n.settleAlone(config, transport)
	case exists || n.seeded:
		return nil
	}
	return raft.BootstrapCluster(config, n.log, n.votes, n.snapshots, transport, n.alone())
}

// State is the last applied state. It never waits.
func (n *Node) State() *state.State { return n.state.Load() }

// Changed gets a value after a revision, an override, or what the state says of this node has changed. It has one slot, for one reader: many changes may be one
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

// Problems says in words what is wrong with this node's disk, and with its place among the others; none: nothing.
func (n *Node) Problems() []string { return append(n.faults.list(), n.worries.list()...) }

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
	if _, gone := st.RemovedNode(n.id); gone {
		n.leave("removed")
	}
	was, _ := before.Node(n.id)
	is, _ := st.Node(n.id)
	if before.Revision() == st.Revision() && before.OverrideVersion() == st.OverrideVersion() && before.TicketKeyVersion() == st.TicketKeyVersion() && before.ClusterID() == st.ClusterID() && was == is {
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
	n.end()
	n.mu.Unlock()

	n.recovering.Lock() // what raft it left
	defer n.recovering.Unlock()
	n.mu.Lock()
	r, transport := n.raft, n.transport
	n.mu.Unlock()
	n.callers.Wait() // before raft: afterwards nobody answers what is on its way to the machine
	var err error
	if r != nil {
		err = errors.Join(transport.Close(), r.Shutdown().Error())
	}
	if n.config.Network != nil {
		err = errors.Join(err, n.config.Network.Close())
	}
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
