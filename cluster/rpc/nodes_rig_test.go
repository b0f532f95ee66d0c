package rpc

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cluster"
	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// nodesRig is a few servers on real ports, with a stand-in for raft: one of them leads, and what it applies the others have at once or,
// where that is held, when they ask.
type nodesRig struct {
	t     *testing.T
	nodes []*nodeRig

	mu     sync.Mutex
	leader string // empty: none
	index  uint64
	held   bool
	truth  *state.State
}

// nodeRig is one of them.
type nodeRig struct {
	*portRig
	id, name string
	shown    *tls.Certificate
	peers    *Peers
	seat     *standInSeat
}

const testClusterID = "c-0123456789abcdef"

func nodeID(i int) string { return fmt.Sprintf("n-%016x", i) }

// newNodes starts n nodes; the first leads.
func newNodes(t *testing.T, n int) *nodesRig {
	t.Helper()
	c := &nodesRig{t: t, leader: nodeID(1)}
	var listeners []net.Listener
	for i := 1; i <= n; i++ {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners = append(listeners, l)
		c.nodes = append(c.nodes, &nodeRig{id: nodeID(i), name: fmt.Sprintf("edge-%d", i), shown: nodeCertificate(t, nodeID(i), nil)})
	}
	c.truth = c.founded(listeners)
	for i, node := range c.nodes {
		node.start(c, listeners[i])
	}
	return c
}

// founded is a state with the nodes as members.
func (c *nodesRig) founded(listeners []net.Listener) *state.State {
	c.t.Helper()
	s := state.New(testClusterID)
	apply := func(cmd *raftv1.Command) {
		next, result := s.Apply(cmd)
		if result.Err != nil {
			c.t.Fatal(result.Err)
		}
		s, c.index = next, c.index+1
	}
	apply(&raftv1.Command{Kind: &raftv1.Command_Authority{Authority: &raftv1.AuthorityCommand{
		Authority: &raftv1.Authority{Certificate: c.nodes[0].shown.Certificate[0], SealedKey: []byte("sealed")}, Time: timestamppb.New(now),
	}}})
	apply(&raftv1.Command{Kind: &raftv1.Command_JoinToken{JoinToken: &raftv1.JoinTokenCommand{
		Author: "test", Time: timestamppb.New(now), Create: &raftv1.StoredJoinToken{SecretSha256: make([]byte, 32), Token: &lbdv1.JoinToken{
			Id: "aaaaaaaa", Author: "test", CreateTime: timestamppb.New(now), ExpireTime: timestamppb.New(now.Add(time.Hour)), Reusable: true,
		}},
	}}})
	for i, n := range c.nodes {
		apply(joins(n.id, n.name, listeners[i].Addr().String(), n.shown))
	}
	return s
}

// joins is the command by which a node becomes a member.
func joins(id, name, address string, shown *tls.Certificate) *raftv1.Command {
	return &raftv1.Command{Kind: &raftv1.Command_Node{Node: &raftv1.NodeCommand{Author: "test", Time: timestamppb.New(now), Change: &raftv1.NodeCommand_Join{
		Join: &raftv1.JoinNode{TokenId: "aaaaaaaa", Node: &lbdv1.Node{
			Id: id, Name: name, Address: address, Role: lbdv1.NodeRole_NODE_ROLE_VOTER, Gate: 1, Version: "1.2.3", Key: publicKeyPin(shown.Leaf),
		}},
	}}}}
}

func (n *nodeRig) start(c *nodesRig, l net.Listener) {
	n.seat = &standInSeat{rig: c, node: n, ever: true}
	log := slog.New(slog.DiscardHandler)
	n.peers = NewPeers(PeersConfig{Certificate: func() *tls.Certificate { return n.shown }, Logger: log, Now: func() time.Time { return now }})
	n.portRig = &portRig{address: l.Addr().String(), journal: &fakeJournal{used: map[string]time.Time{}}}
	port := &Port{
		Listener: l, Endpoint: l.Addr().String(), Peers: n.peers, Journal: n.journal, Logger: log,
		Certificate: func(context.Context) (*tls.Certificate, error) { return n.shown, nil },
	}
	n.rig = newRig(c.t, func(cfg *Config) {
		n.rig = &rig{t: c.t}
		store := &sharedStore{memoryStore: cfg.Store.(*memoryStore), rig: c, id: n.id}
		store.state = c.truth
		n.seat.store, n.seat.applied = store, c.index
		n.peers.Take(n.seat)
		port.Begin()
		cfg.Store, cfg.Port, cfg.Peers, cfg.Seat, cfg.Journal, cfg.Node = store, port, n.peers, n.seat, n.journal, n.name
		cfg.Authorities = fakeAuthorities{}
	})
	n.auth = lbdv1.NewAuthServiceClient(n.conn)
	c.t.Cleanup(func() {
		_ = n.server.Close()
		if err := errors.Join(port.Close(), n.peers.Close()); err != nil {
			c.t.Error(err)
		}
	})
}

// lead makes another node the leader, which has everything; 0: nobody.
func (c *nodesRig) lead(i int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leader = ""; i > 0 {
		c.leader = nodeID(i)
		c.nodes[i-1].seat.catchUpLocked()
	}
}

// hold keeps what is new from the followers until they ask for it.
func (c *nodesRig) hold() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held = true
}

// apply is what the leader does with a command.
func (c *nodesRig) apply(id string, cmd *raftv1.Command) (state.Result, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leader != id {
		return state.Result{}, fmt.Errorf("%w: %s leads", cluster.ErrNoLeader, c.leader)
	}
	next, result := c.truth.Apply(cmd)
	c.truth, c.index = next, c.index+1
	for _, n := range c.nodes {
		if n.id == id || !c.held {
			n.seat.catchUpLocked()
		}
	}
	return result, result.Err
}

// moves gives a node another address in its record.
func (c *nodesRig) moves(i int, address string) {
	c.t.Helper()
	n, _ := c.truth.Node(nodeID(i))
	n = proto.CloneOf(n)
	n.Address = address
	if _, err := c.nodes[0].seat.AcceptNode(c.t.Context(), n); err != nil {
		c.t.Fatal(err)
	}
}

// sharedStore is a node's store: only the leader's takes changes.
type sharedStore struct {
	*memoryStore
	rig *nodesRig
	id  string
}

func (s *sharedStore) Propose(ctx context.Context, change *raftv1.ChangeCommand) (state.Result, error) {
	s.mu.Lock()
	instead := s.propose
	s.mu.Unlock()
	if instead != nil {
		return instead(ctx, change)
	}
	return s.rig.apply(s.id, &raftv1.Command{Kind: &raftv1.Command_Change{Change: change}})
}

func (s *sharedStore) ProposeOverride(_ context.Context, override *raftv1.OverrideCommand) (state.Result, error) {
	return s.rig.apply(s.id, &raftv1.Command{Kind: &raftv1.Command_Override{Override: override}})
}

func (s *sharedStore) ProposeCommand(_ context.Context, cmd *raftv1.Command) (state.Result, error) {
	return s.rig.apply(s.id, cmd)
}

// standInSeat is a node's seat.
type standInSeat struct {
	rig   *nodesRig
	node  *nodeRig
	store *sharedStore

	// The rig's lock is for these.
	applied  uint64
	age      time.Duration
	ever     bool
	cut      bool            // it does not reach the leader
	believes string          // whom it takes for the leader, if not the rig's
	silent   map[string]bool // members that are out of contact
	mute     map[string]bool // members that do not vote
}

func (s *standInSeat) set(change func()) {
	s.rig.mu.Lock()
	defer s.rig.mu.Unlock()
	change()
}

func (s *standInSeat) ID() string            { return s.node.id }
func (s *standInSeat) State() *state.State   { return s.store.State() }
func (s *standInSeat) Next() <-chan struct{} { return s.store.Next() }

func (s *standInSeat) Leader() string {
	s.rig.mu.Lock()
	defer s.rig.mu.Unlock()
	switch {
	case s.cut:
		return ""
	case s.believes != "":
		return s.believes
	}
	return s.rig.leader
}

func (s *standInSeat) Applied() uint64 {
	s.rig.mu.Lock()
	defer s.rig.mu.Unlock()
	return s.applied
}

func (s *standInSeat) catchUpLocked() {
	if s.applied == s.rig.index {
		return
	}
	s.applied = s.rig.index
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	s.store.state = s.rig.truth
	close(s.store.next)
	s.store.next = make(chan struct{})
}

func (s *standInSeat) WaitApplied(_ context.Context, index uint64) error {
	s.rig.mu.Lock()
	defer s.rig.mu.Unlock()
	if s.applied < index {
		s.catchUpLocked()
	}
	return nil
}

func (s *standInSeat) ReadBarrier(ctx context.Context) error {
	leader := s.Leader()
	switch leader {
	case "":
		return cluster.ErrNoLeader
	case s.node.id:
		return nil
	}
	index, err := s.node.peers.ReadIndex(ctx, leader, cluster.Report{Applied: s.Applied(), Served: 1})
	if err != nil {
		return err
	}
	return s.WaitApplied(ctx, index)
}

func (s *standInSeat) Fresh() (time.Duration, bool) {
	s.rig.mu.Lock()
	defer s.rig.mu.Unlock()
	return s.age, s.ever
}

func (s *standInSeat) AnswerReadIndex(_ context.Context, report cluster.Report) (uint64, error) {
	s.rig.mu.Lock()
	defer s.rig.mu.Unlock()
	if s.rig.leader != s.node.id {
		return 0, cluster.ErrNoLeader
	}
	if report.Node == "" || report.Node == s.node.id {
		return 0, errors.New("a report of nobody")
	}
	return s.rig.index, nil
}

func (s *standInSeat) AcceptNode(_ context.Context, n *lbdv1.Node) (uint64, error) {
	_, err := s.rig.apply(s.node.id, &raftv1.Command{Kind: &raftv1.Command_Node{Node: &raftv1.NodeCommand{
		Author: "test", Time: timestamppb.New(now), Change: &raftv1.NodeCommand_Update{Update: n},
	}}})
	return s.Applied(), err
}

func (s *standInSeat) DigestAt(context.Context, uint64) (uint64, int64, [32]byte, error) {
	return s.Applied(), s.State().Revision(), s.State().Digest(), nil
}

func (s *standInSeat) Members() []cluster.Member {
	var all []cluster.Member
	for n := range s.State().Nodes() {
		m := cluster.Member{Node: n, Leader: n.GetId() == s.Leader()}
		s.set(func() { m.Voter, m.Live = !s.mute[n.GetId()], !s.silent[n.GetId()] })
		all = append(all, m)
	}
	return all
}

func (s *standInSeat) AwaitMembers(ctx context.Context, wanted func([]cluster.Member) bool) error {
	return nil
}

// AwaitReports returns at once: everybody has reported.
func (s *standInSeat) AwaitReports(context.Context) error { return nil }

func (s *standInSeat) Seated(string) bool { return false }

// TransferLeader makes the one that was asked for the leader, or the second node.
func (s *standInSeat) TransferLeader(_ context.Context, id string) error {
	if id == "" {
		id = nodeID(2)
	}
	s.set(func() { s.rig.leader = id })
	return nil
}

func (s *standInSeat) Recover(context.Context, *raftv1.EpochCommand) error {
	return errors.New("not here")
}

// nodeCertificate is a node's, over a key of its own, signed by itself; change makes another one of it.
func nodeCertificate(t *testing.T, id string, change func(*x509.Certificate)) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return nodeCertificateOf(t, key, id, change)
}

func nodeCertificateOf(t *testing.T, key *ecdsa.PrivateKey, id string, change func(*x509.Certificate)) *tls.Certificate {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "lbd node"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		UnknownExtKeyUsage: []asn1.ObjectIdentifier{NodeKeyUsage}, URIs: []*url.URL{NodeURI(testClusterID, id)},
	}
	if change != nil {
		change(template)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// asNode connects to a node's port with a node's certificate, as whoever holds that could.
func (n *nodeRig) asNode(shown *tls.Certificate, options ...grpc.DialOption) *grpc.ClientConn {
	n.t.Helper()
	return n.dialPort(shown, options...)
}
