package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"lbd/cluster/state"
)

// Open opens a node's durable state, or makes it at a first start. State is there when it returns; raft comes with
// Start. Its errors are *OpenError.
//
//  1. lock the directory; find out who we are, and whether anything was lost
//  2. open and verify the applied state and the log
//  3. refuse files that do not belong together
//  4. take a snapshot that is further than the applied state
func Open(config Config) (*Node, error) {
	n := newNode(config)
	if err := n.open(); err != nil {
		return nil, errors.Join(err, n.closeFiles())
	}
	return n, nil
}

func newNode(config Config) *Node {
	if config.Now == nil {
		config.Now = time.Now
	}
	if config.MaxPartBytes <= 0 || config.MaxPartBytes > state.PartBytesMax {
		config.MaxPartBytes = state.PartBytesMax
	}
	config.Timing = config.Timing.withDefaults()
	n := &Node{
		config:   config,
		logger:   config.Logger,
		faults:   faults{logger: config.Logger},
		changed:  make(chan struct{}, 1),
		began:    time.Now(),
		observed: make(chan raft.Observation, 1),
		incoming: make(chan net.Conn),
		removed:  make(chan struct{}),
		copied:   make(chan struct{}),
	}
	n.life, n.end = context.WithCancel(context.Background())
	n.closing = n.life.Done()
	n.leading.init()
	n.reports.init()
	next, further := make(chan struct{}), make(chan struct{})
	n.next.Store(&next)
	n.further.Store(&further)
	return n
}

func (n *Node) path(name string) string { return filepath.Join(n.config.Dir, name) }

func (n *Node) open() error {
	if err := os.MkdirAll(n.config.Dir, 0o700); err != nil {
		return &OpenError{n.config.Dir, err, remedyAccess}
	}
	lock, err := lockFile(n.path("lock"))
	if err != nil {
		return err
	}
	n.lock = lock
	id, err := n.expect()
	if err != nil {
		return err
	}
	st, at, err := n.openFiles()
	if err != nil {
		return err
	}
	if st, err = n.identify(id, st); err != nil {
		return err
	}
	if err := n.settle(st, at); err != nil {
		return err
	}
	return n.readIntent()
}

// expect reads the node id and refuses to go on without a file that must be there.
func (n *Node) expect() (id string, err error) {
	id, err = readNodeID(n.path("node-id"))
	if err != nil || id == "" {
		return "", err
	}
	for _, name := range []string{"state.db", "raft.db", "votes"} {
		if info, err := os.Stat(n.path(name)); errors.Is(err, os.ErrNotExist) || err == nil && info.Size() == 0 {
			return "", &OpenError{n.path(name), errLost, remedyDamaged}
		}
	}
	return id, nil
}

func (n *Node) openFiles() (st *state.State, at applied, err error) {
	if n.durable, st, at, err = openDurable(n.path("state.db")); err != nil {
		return nil, applied{}, err
	}
	if st != nil && st.Gate() > state.GateMax {
		gate, nodes := n.durable.storedGate()
		return nil, applied{}, checkGate(n.durable.path, max(gate, st.Gate()), nodes)
	}
	if n.log, err = openRaftLog(n.path("raft.db"), &n.faults, n.closing); err != nil {
		return nil, applied{}, err
	}
	if n.votes, err = openVotes(n.path("votes"), &n.faults, n.closing); err != nil {
		return nil, applied{}, err
	}
	n.durable.disk, n.log.disk, n.votes.disk = n.config.Disk, n.config.Disk, n.config.Disk
	if err := n.closeToOthers(); err != nil {
		return nil, applied{}, &OpenError{n.path("snapshots"), err, remedyAccess}
	}
	logger := raftLogger(n.logger)
	if n.snapshots, err = raft.NewFileSnapshotStoreWithLogger(n.config.Dir, snapshotsKept, logger); err != nil {
		return nil, applied{}, &OpenError{n.path("snapshots"), err, remedyAccess}
	}
	return st, at, nil
}

// closeToOthers keeps the snapshots, whose files raft makes readable, from this machine's other users. A data directory that was there
// before may be more than ours, and is left as it is.
func (n *Node) closeToOthers() error {
	if info, err := os.Stat(n.config.Dir); err == nil && info.Mode().Perm()&0o077 != 0 {
		n.logger.Warn("others may look into the data directory: chmod 700 it unless that is meant", "dir", n.config.Dir, "mode", info.Mode().Perm().String())
	}
	return errors.Join(os.MkdirAll(n.path("snapshots"), 0o700), os.Chmod(n.path("snapshots"), 0o700))
}

// identify makes sure that nothing was lost and that the files are this node's, and gives new ones a name. The node id
// file is written last: a first start that was cut off is repeated.
func (n *Node) identify(id string, st *state.State) (*state.State, error) {
	inState, err := n.durable.readNode()
	if err != nil {
		return nil, openError(n.durable.path, err)
	}
	inLog, err := n.log.readNode()
	if err != nil {
		return nil, openError(n.log.path, err)
	}
	last, err := n.log.LastIndex()
	if err != nil {
		return nil, openError(n.log.path, err)
	}
	joins, err := readNodeID(n.path(joinIDFile))
	if err != nil {
		return nil, err
	}
	n.id = cmp.Or(id, inState, inLog, n.votes.node, joins, newID("n"))
	if st == nil {
		inState = ""
	}
	n.seeded = n.config.Seed != nil && id == "" || joins == n.id
	snapshots, err := os.ReadDir(n.path("snapshots"))
	if err != nil {
		return nil, openError(n.path("snapshots"), err)
	}
	// later: what a first start makes later, or never, is there.
	later := id != "" || last > 0 || slices.ContainsFunc(snapshots, os.DirEntry.IsDir)
	for _, file := range slices.Backward([]struct{ path, node string }{
		{n.durable.path, inState}, {n.log.path, inLog}, {n.votes.path, n.votes.node},
	}) {
		if file.node == "" && later {
			return nil, &OpenError{file.path, errLost, remedyDamaged}
		}
		later = later || file.node != ""
		if file.node != "" && file.node != n.id {
			return nil, &OpenError{file.path, errStranger, remedyDamaged}
		}
	}
	if id == "" {
		return n.found(st)
	}
	return st, nil
}

// found writes what a first start leaves behind; each step may have been done by one that was cut off.
func (n *Node) found(st *state.State) (*state.State, error) {
	fresh := st == nil
	if fresh {
		st = state.New(newID("c"))
		if n.seeded && n.config.Seed != nil {
			st = state.New(n.config.Seed.ClusterID)
		}
	}
	write := func() error {
		if n.seeded { // first: without it a later start would make a cluster
			if err := writeNodeID(n.path(joinIDFile), n.id); err != nil {
				return err
			}
		}
		if fresh {
			if err := n.durable.replace(st, 0); err != nil {
				return err
			}
		}
		if err := errors.Join(n.durable.writeNode(n.id), n.log.writeNode(n.id), n.votes.found(n.id)); err != nil {
			return err
		}
		return writeNodeID(n.path("node-id"), n.id)
	}
	if err := write(); err != nil {
		return nil, &OpenError{n.config.Dir, err, remedyAccess}
	}
	n.logger.Info("node made", "node", n.config.Node, "id", n.id, "cluster", st.ClusterID())
	return st, nil
}

var errOlder = errors.New("it holds less of the log than state.db: it is an older copy")

// settle decides with which state the node goes on. raft skips what its newest snapshot holds, so the state must not
// be behind that; and it numbers new entries after its log, so the log must not be behind the state.
func (n *Node) settle(st *state.State, at applied) error {
	newer, index, err := newestSnapshot(n.snapshots, at.index)
	if err != nil {
		return openError(n.path("snapshots"), err)
	}
	if newer != nil {
		n.logger.Warn("state.db is behind the newest snapshot: it is rebuilt from it", "index", at.index, "snapshot", index)
		if err := n.durable.replace(newer, index); err != nil {
			return openError(n.durable.path, err)
		}
		st, at.index = newer, index
	}
	last, err := n.log.LastIndex()
	if err != nil {
		return openError(n.log.path, err)
	}
	metas, err := n.snapshots.List()
	if err != nil {
		return &OpenError{n.path("snapshots"), err, remedyDamaged}
	}
	first, err := n.log.FirstIndex()
	if err != nil {
		return openError(n.log.path, err)
	}
	snapshot := uint64(0)
	if len(metas) > 0 {
		snapshot = metas[0].Index
	}
	if first > snapshot+1 {
		return &OpenError{n.path("snapshots"), fmt.Errorf("%w: the log begins at entry %d, the newest snapshot is at %d", errLost, first, snapshot), remedyDamaged}
	}
	last = max(last, snapshot)
	if last < at.index {
		return &OpenError{n.log.path, errOlder, remedyDamaged}
	}
	n.state.Store(st)
	n.past.begin(at.index, st)
	n.applied.Store(at.index)
	n.machine = &machine{node: n, applied: at.index}
	if _, gone := st.RemovedNode(n.id); gone {
		n.leave("removed")
	}
	return nil
}

// Timing is how fast nodes notice each other.
type Timing struct {
	// Election is how long a follower waits for its leader, and a candidate for votes. Default 750 ms.
	Election time.Duration
	// Lease is how long a leader goes on without most voters. Default 500 ms; at most Election.
	Lease time.Duration
	// Keeper is how often nodes report, and how often the leader looks after the members. Default 1 s.
	Keeper time.Duration
	// Live is how long ago a node may have reported to count as live. Default 5 s.
	Live time.Duration
}

func (t Timing) withDefaults() Timing {
	return Timing{
		Election: cmp.Or(t.Election, 750*time.Millisecond),
		Lease:    cmp.Or(t.Lease, 500*time.Millisecond),
		Keeper:   cmp.Or(t.Keeper, time.Second),
		Live:     cmp.Or(t.Live, liveFor),
	}
}
