// Package clustertest runs n nodes of a cluster in one process (tests): over a network in memory that can be cut, slowed down and delayed, with
// clocks that can be moved and disks that can refuse.
package clustertest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cluster"
	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// patience bounds every wait; only a failure uses it up.
const patience = 30 * time.Second

// Quick is a timing for tests that do not measure it.
var Quick = cluster.Timing{Election: 250 * time.Millisecond, Lease: 150 * time.Millisecond, Keeper: 100 * time.Millisecond}

// Options are a cluster's.
type Options struct {
	Timing     cluster.Timing // default Quick
	StaleReads bool
}

// Cluster is some hosts on a network.
type Cluster struct {
	t       testing.TB
	options Options
	Network *Network
	Hosts   []*Host
}

// Host is a machine with a directory, and the node on it while that runs.
type Host struct {
	cluster *Cluster
	Name    string
	Dir     string
	ID      string
	Node    *cluster.Node // nil: it does not run
	port    *port
	seeded  bool // it joins at its first start
	address string
	clock   atomic.Int64          // nanoseconds that its clock is ahead
	disk    atomic.Pointer[error] // what its disk says to writes; nil: nothing
}

// New starts a cluster of n nodes, of which up to five vote. It ends with the test.
func New(t testing.TB, n int, options Options) *Cluster {
	t.Helper()
	if options.Timing == (cluster.Timing{}) {
		options.Timing = Quick
	}
	c := &Cluster{t: t, options: options, Network: newNetwork()}
	t.Cleanup(c.close)
	first := c.host()
	first.Start()
	c.Await("the first node has written itself down", func() bool { return len(first.Node.Members()) == 1 })
	for len(c.Hosts) < n {
		c.Join()
	}
	c.AwaitVoters(min(n, 5))
	return c
}

func (c *Cluster) close() {
	for _, h := range c.Hosts {
		h.Stop()
	}
}

// host is a new machine.
func (c *Cluster) host() *Host {
	h := &Host{cluster: c, Name: fmt.Sprintf("h%d", len(c.Hosts)+1), Dir: filepath.Join(c.t.TempDir(), "data")}
	h.address = fmt.Sprintf("10.0.0.%d:7443", len(c.Hosts)+1)
	c.Hosts = append(c.Hosts, h)
	return h
}

// seed makes a new machine one that will join: its node has its id before it runs.
func (h *Host) seed() {
	id, err := cluster.MakeNodeID(h.Dir)
	if err != nil {
		h.cluster.t.Fatal(err)
	}
	h.ID, h.seeded = id, true
}

// Join starts a node on a new machine as one more member. It is a voter once it has caught up.
func (c *Cluster) Join() *Host {
	c.t.Helper()
	h := c.host()
	h.seed()
	c.Admit(h)
	h.Start()
	return h
}

// Admit has the leader let a host's node in, as a join token would, and tells the host who the members are.
func (c *Cluster) Admit(h *Host) {
	c.t.Helper()
	token := "t" + h.Name
	c.Do(&raftv1.Command{Kind: &raftv1.Command_JoinToken{JoinToken: &raftv1.JoinTokenCommand{
		Author: "unix", Time: timestamppb.Now(), Create: &raftv1.StoredJoinToken{
			Token:        &lbdv1.JoinToken{Id: token, Author: "unix", CreateTime: timestamppb.Now(), ExpireTime: timestamppb.New(time.Now().Add(time.Hour)), Uses: 1},
			SecretSha256: bytes.Repeat([]byte{7}, 32),
		},
	}}})
	node := h.self()
	node.Id, node.Gate, node.Role = h.ID, state.GateMax, lbdv1.NodeRole_NODE_ROLE_VOTER
	c.Change(&raftv1.NodeCommand{Change: &raftv1.NodeCommand_Join{Join: &raftv1.JoinNode{Node: node, TokenId: token}}})
	leader := c.Leader()
	c.Network.mu.Lock()
	defer c.Network.mu.Unlock()
	for n := range leader.Node.State().Nodes() {
		c.Network.nodes[n.GetId()] = n
	}
}

// Change has the leader change a node.
func (c *Cluster) Change(cmd *raftv1.NodeCommand) {
	c.t.Helper()
	cmd.Author, cmd.Time = "unix", timestamppb.Now()
	c.Do(&raftv1.Command{Kind: &raftv1.Command_Node{Node: cmd}})
}

// Remove has the leader remove a host's node.
func (c *Cluster) Remove(h *Host) {
	c.t.Helper()
	c.Change(&raftv1.NodeCommand{Change: &raftv1.NodeCommand_Remove{Remove: &raftv1.RemoveNode{Id: h.ID}}})
}

// SetRole has the leader say what a host's node shall be.
func (c *Cluster) SetRole(h *Host, role lbdv1.NodeRole) {
	c.t.Helper()
	c.Change(&raftv1.NodeCommand{Change: &raftv1.NodeCommand_Role{Role: &raftv1.SetNodeRole{Id: h.ID, Role: role}}})
}

// Do proposes a command to the leader, again where that was not the right one.
func (c *Cluster) Do(cmd *raftv1.Command) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		_, err := c.Leader().Node.ProposeCommand(ctx, cmd)
		if err == nil {
			return
		}
		if again := errors.Is(err, cluster.ErrNoLeader) || errors.Is(err, cluster.ErrClosed); !again || ctx.Err() != nil {
			c.t.Fatal(err)
		}
	}
}

func (h *Host) self() *lbdv1.Node {
	return &lbdv1.Node{Name: h.Name, Address: h.address, Version: "1.0.0", Key: fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(h.Dir)))}
}

// Open opens the host's directory.
func (h *Host) Open() (*cluster.Node, error) {
	h.disk.Store(nil)
	h.port = h.cluster.Network.port(h.ID, h.address)
	config := cluster.Config{
		Dir: h.Dir, Node: h.Name, Logger: h.logger(), Network: h.port, Self: h.self(),
		Timing: h.cluster.options.Timing, StaleReads: h.cluster.options.StaleReads,
		Now: func() time.Time { return time.Now().Add(time.Duration(h.clock.Load())) },
		Disk: func(string) error {
			if err := h.disk.Load(); err != nil {
				return *err
			}
			return nil
		},
	}
	if h.seeded {
		config.Seed = &cluster.Seed{ClusterID: h.cluster.Hosts[0].Node.State().ClusterID()}
		h.seeded = false
	}
	n, err := cluster.Open(config)
	if err != nil {
		return nil, errors.Join(err, h.port.Close())
	}
	h.ID, h.port.id = n.ID(), n.ID() // the first of a cluster has made its id just now
	h.port.plug(n)
	return n, nil
}

// logger is silent unless LBD_TEST_LOG is set.
func (h *Host) logger() *slog.Logger {
	if os.Getenv("LBD_TEST_LOG") == "" {
		return slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	return slog.New(slog.NewTextHandler(os.Stderr, nil)).With("host", h.Name)
}

// Start starts the host's node. A first start of a host that was let in makes it a member.
func (h *Host) Start() {
	h.cluster.t.Helper()
	n, err := h.Open()
	if err == nil {
		err = n.Start()
	}
	if err != nil {
		h.cluster.t.Fatal(err)
	}
	h.Node = n
}

// Stop ends the host's node in order.
func (h *Host) Stop() {
	if h.Node == nil {
		return
	}
	if err := h.Node.Close(); err != nil {
		h.cluster.t.Error(err)
	}
	h.Node = nil
}

var errCrashed = errors.New("the machine has crashed")

// Crash ends the host's node as if its process were killed: nothing more reaches its disk or the others.
func (h *Host) Crash() {
	h.disk.Store(&errCrashed)
	_ = h.port.Close()
	_ = h.Node.Close()
	h.Node = nil
}

// FailDisk lets the host's disk refuse all writes with an error; nil: it works again.
func (h *Host) FailDisk(err error) {
	if err == nil {
		h.disk.Store(nil)
		return
	}
	h.disk.Store(&err)
}

// SetClock puts the host's clock forward, or back.
func (h *Host) SetClock(ahead time.Duration) { h.clock.Store(int64(ahead)) }

// Partition cuts all ways between the hosts of a and those of b.
func (c *Cluster) Partition(a, b []*Host) {
	c.Network.change(func() {
		for _, x := range a {
			for _, y := range b {
				c.Network.cut[path{x.ID, y.ID}], c.Network.cut[path{y.ID, x.ID}] = true, true
			}
		}
	})
}

// Isolate cuts a host off from all others.
func (c *Cluster) Isolate(h *Host) { c.Partition([]*Host{h}, c.But(h)) }

// OneWay loses what goes from one host to another.
func (c *Cluster) OneWay(from, to *Host) {
	c.Network.change(func() { c.Network.cut[path{from.ID, to.ID}] = true })
}

// Heal undoes all faults of the network.
func (c *Cluster) Heal() {
	c.Network.change(func() {
		clear(c.Network.cut)
		clear(c.Network.rate)
		c.Network.delay = 0
	})
}

// Delay is how long everything takes, each way.
func (c *Cluster) Delay(d time.Duration) { c.Network.change(func() { c.Network.delay = d }) }

// Rate bounds what goes from one host to another, in bytes a second.
func (c *Cluster) Rate(from, to *Host, bytes int) {
	c.Network.change(func() { c.Network.rate[path{from.ID, to.ID}] = bytes })
}

// Drop ends all connections of a host.
func (c *Cluster) Drop(h *Host) {
	c.Network.change(func() {
		for conn := range h.port.conns {
			conn.closeLocked()
		}
	})
}

// But are the hosts whose nodes run, without some.
func (c *Cluster) But(hosts ...*Host) []*Host {
	return slices.DeleteFunc(slices.Clone(c.Hosts), func(h *Host) bool { return h.Node == nil || slices.Contains(hosts, h) })
}

// Await polls until something is so.
func (c *Cluster) Await(what string, ok func() bool) {
	c.t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			c.t.Fatalf("never: %s", what)
		}
	}
}

// Leader waits until one of some hosts (none: of all that run) leads, and knows that it does.
func (c *Cluster) Leader(among ...*Host) (leader *Host) {
	c.t.Helper()
	if len(among) == 0 {
		among = c.But()
	}
	c.Await("a leader", func() bool {
		for _, h := range among {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			err := cluster.ErrNoLeader
			if h.Node.Role() == "leader" {
				_, err = h.Node.AnswerReadIndex(ctx, cluster.Report{Node: h.ID, Applied: h.Node.Applied()})
			}
			cancel()
			if err == nil {
				leader = h
				return true
			}
		}
		return false
	})
	return leader
}

// AwaitVoters waits until so many nodes vote.
func (c *Cluster) AwaitVoters(n int) {
	c.t.Helper()
	c.Await(fmt.Sprint(n, " voters"), func() bool { return c.Voters() == n })
}

// Voters is how many nodes vote.
func (c *Cluster) Voters() int {
	voters := 0
	for _, m := range c.Leader().Node.Members() {
		if m.Voter {
			voters++
		}
	}
	return voters
}

// Propose applies a change by a host's node, which passes it on where another one leads, as the API does.
func (h *Host) Propose(ctx context.Context, change *raftv1.ChangeCommand) (state.Result, error) {
	res, err := h.Node.Propose(ctx, change)
	var elsewhere *cluster.NotLeaderError
	if !errors.As(err, &elsewhere) || elsewhere.Leader == "" {
		return res, err
	}
	res, err = call(ctx, h.port, elsewhere.Leader, func(n *cluster.Node) (state.Result, error) { return n.Propose(ctx, change) })
	if errors.Is(err, errRefused) || errors.Is(err, errStranger) || errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, cluster.ErrOutcomeUnknown) {
		err = fmt.Errorf("%w: %w", cluster.ErrNoLeader, err)
	}
	return res, err
}

// Equal fails the test unless all nodes that run hold the same state at the same entry.
func (c *Cluster) Equal() {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var first [32]byte
	index := c.Leader().Node.Applied()
	for i, h := range c.But() {
		_, _, digest, err := h.Node.DigestAt(ctx, index)
		if err != nil {
			c.t.Fatalf("%s: %v", h.Name, err)
		}
		if i == 0 {
			first = digest
		}
		if digest != first {
			c.t.Errorf("%s holds another state than %s at entry %d", h.Name, c.But()[0].Name, index)
		}
	}
}
