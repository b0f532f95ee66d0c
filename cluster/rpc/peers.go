package rpc

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"google.golang.org/grpc"

	"lbd/cluster"
	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// Seat is this node's seat in the cluster, as far as other nodes are concerned with it.
type Seat interface {
	// ID is this node's.
	ID() string
	State() *state.State
	Next() <-chan struct{}
	// Leader is the id of the node that leads, as far as this one knows; empty: none.
	Leader() string
	Membership
	// Applied is the last entry of the log in the state; WaitApplied waits until it is at least index.
	Applied() uint64
	WaitApplied(ctx context.Context, index uint64) error
	// ReadBarrier returns when this node has applied everything that was acknowledged before the call; Fresh is how long ago that
	// was so last.
	ReadBarrier(ctx context.Context) error
	Fresh() (age time.Duration, ever bool)
	// AnswerReadIndex and AcceptNode are the leader's side of other nodes' questions.
	AnswerReadIndex(ctx context.Context, report cluster.Report) (uint64, error)
	AcceptNode(ctx context.Context, node *lbdv1.Node) (uint64, error)
	// DigestAt is what this node holds at an entry of the log; it waits for it. 0: now.
	DigestAt(ctx context.Context, index uint64) (at uint64, revision int64, digest [32]byte, err error)
}

// PeersConfig is what [Peers] work with. Certificate is required.
type PeersConfig struct {
	// Certificate is what this node shows to others now. It does not wait.
	Certificate func() *tls.Certificate
	// Seed are the members as a node that joins was told, until its own state says it.
	Seed []*lbdv1.Node
	// Logger defaults to slog.Default().
	Logger *slog.Logger
	// Now judges the dates of certificates. Default time.Now.
	Now func() time.Time
}

// Peers are the other nodes: who is one, how they are reached, and the connections to them. It is the cluster.Network of a node, and
// what calls travel by that another node has to answer.
//
// Its goroutines: one that ends what belongs to nodes that were removed, one per question who is a member, and gRPC's.
type Peers struct {
	cfg      PeersConfig
	life     context.Context
	end      context.CancelFunc
	incoming chan net.Conn // of raft
	done     sync.WaitGroup
	learning learning
	run      string // of this process
	copies   copies
	// moved is where members say that they are themselves, by id (movedTo): the state learns it from a leader, who may need their vote first.
	moved sync.Map

	mu      sync.Mutex
	seat    Seat // nil before Take
	closed  bool
	clients map[string]*peerClient // by node
	open    map[*peerConn]struct{} // to and from other nodes
	// sources are from where each node was verified last.
	sources map[string]netip.Prefix
}

// NewPeers prepares the connections. None is made before Take.
func NewPeers(cfg PeersConfig) *Peers {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	p := &Peers{cfg: cfg, run: rand.Text(), incoming: make(chan net.Conn), clients: map[string]*peerClient{}, open: map[*peerConn]struct{}{}, sources: map[string]netip.Prefix{}}
	p.life, p.end = context.WithCancel(context.Background())
	p.learning.init()
	return p
}

// Take begins to let others in, by the membership that the seat's state has. It is called once, before the seat's raft starts.
func (p *Peers) Take(seat Seat) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	p.seat = seat
	p.done.Go(func() { p.watch(seat) })
}

// seated is the seat, once it is taken.
func (p *Peers) seated() Seat {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seat
}

// watch ends what belongs to nodes that were removed, or are elsewhere now.
func (p *Peers) watch(seat Seat) {
	for {
		next := seat.Next() // before the state, so that no removal is missed
		p.endRemoved()
		select {
		case <-next:
		case <-p.life.Done():
			return
		}
	}
}

func (p *Peers) endRemoved() {
	var gone []io.Closer
	p.mu.Lock()
	for c := range p.open {
		if p.endedLocked(c) {
			gone = append(gone, c)
		}
	}
	for id := range p.sources {
		if _, ok := p.memberOf(p.seat, id); !ok {
			delete(p.sources, id)
		}
	}
	for id, client := range p.clients { // at another address there is another connection, also where the old one hangs
		if n, ok := p.memberOf(p.seat, id); !ok || n.GetAddress() != client.address {
			delete(p.clients, id)
			gone = append(gone, client)
		}
	}
	p.mu.Unlock()
	for _, c := range gone {
		_ = c.Close()
	}
}

// endedLocked tells whether a connection's node was a member and is none. One that is none yet may become one: its connection is a member's from
// then on.
func (p *Peers) endedLocked(c *peerConn) bool {
	if p.admits(c.id, c.key) {
		c.member = true
		return false
	}
	r, removed := p.seat.State().RemovedNode(c.id)
	return c.member || removed && r.GetKey() == c.key
}

// Accept returns the connections of members' raft.
func (p *Peers) Accept() (net.Conn, error) {
	select {
	case c := <-p.incoming:
		return c, nil
	case <-p.life.Done():
		return nil, net.ErrClosed
	}
}

// deliver hands a verified connection over to raft, until ctx ends.
func (p *Peers) deliver(ctx context.Context, c net.Conn) error {
	select {
	case p.incoming <- c:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-p.life.Done():
		return net.ErrClosed
	}
}

// ReadIndex asks the leader which entry this node must have applied.
func (p *Peers) ReadIndex(ctx context.Context, leader string, report cluster.Report) (uint64, error) {
	conn, err := p.Own(leader)
	if err != nil {
		return 0, err
	}
	answer, err := raftv1.NewPeerServiceClient(conn).ReadIndex(ctx, &raftv1.ReadIndexRequest{AppliedIndex: report.Applied, ServedRevision: report.Served, Run: p.run})
	return answer.GetIndex(), p.Explain(err)
}

// ProposeNode takes this node's own record to the leader, or to one that may lead. From one that does not it learns where the others are: the leader may have
// moved at the same time, and then neither finds the other by its own state.
func (p *Peers) ProposeNode(ctx context.Context, leader string, node *lbdv1.Node) (uint64, error) {
	conn, err := p.Own(leader)
	if err != nil {
		return 0, err
	}
	answer, err := raftv1.NewPeerServiceClient(conn).ProposeNode(ctx, &raftv1.ProposeNodeRequest{Node: node, Run: p.run})
	if err = p.Explain(err); errors.Is(err, cluster.ErrNoLeader) {
		p.learnLater()
	}
	return answer.GetIndex(), err
}

// Explain makes one of package cluster's errors of another node's answer, where there is one.
func (p *Peers) Explain(err error) error {
	switch reasonOf(err) {
	case reasonLeftBehind:
		return errors.Join(cluster.ErrLeftBehind, err)
	case reasonCopied:
		return errors.Join(cluster.ErrCopied, err)
	case reasonRemoved:
		return errors.Join(cluster.ErrRemoved, err)
	case reasonNoLeader:
		return errors.Join(cluster.ErrNoLeader, err)
	case reasonOutcomeUnknown:
		return errors.Join(cluster.ErrOutcomeUnknown, err)
	}
	return err
}

// Own is a connection to a member for this node's own questions, apart from what it passes on for others.
func (p *Peers) Own(id string) (grpc.ClientConnInterface, error) {
	c, err := p.client(id)
	if err != nil {
		return nil, err
	}
	return c.own, nil
}

// Conn is a connection to a member for calls in somebody's name (see relayed).
func (p *Peers) Conn(id string) (grpc.ClientConnInterface, error) {
	c, err := p.client(id)
	if err != nil {
		return nil, err
	}
	return c.relay(), nil
}

// client finds or makes the connections to a member; they are made by the first call.
func (p *Peers) client(id string) (*peerClient, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.seat == nil {
		return nil, unavailable(reasonStopping, "this node does not talk to others now")
	}
	if c := p.clients[id]; c != nil {
		return c, nil
	}
	n, ok := p.memberOf(p.seat, id)
	if !ok {
		return nil, notFound("nodes/"+id, "%s is no node of this cluster", id)
	}
	c, err := p.newClient(id)
	if err != nil {
		return nil, err
	}
	c.address = n.GetAddress()
	p.clients[id] = c
	return c, nil
}

// Close ends Accept and all connections, and returns when every goroutine has ended.
func (p *Peers) Close() error {
	p.mu.Lock()
	p.closed = true
	var all []io.Closer
	for c := range p.open {
		all = append(all, c)
	}
	for _, c := range p.clients {
		all = append(all, c)
	}
	p.clients = map[string]*peerClient{}
	p.mu.Unlock()
	p.end()
	for _, c := range all {
		_ = c.Close()
	}
	p.done.Wait()
	return nil
}

// peerConn is a connection to or from another node, as long as that is a member, or from one that is none yet.
type peerConn struct {
	net.Conn
	id, key string
	peers   *Peers
	member  bool // has been; the lock of peers is for it
}

// track keeps a connection in the list of those that end with their node's membership. A nil error: it is in.
func (p *Peers) track(conn net.Conn, id, key string) (*peerConn, error) {
	c := &peerConn{Conn: conn, id: id, key: key, peers: p, member: true}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, net.ErrClosed
	}
	if !p.admits(id, key) { // since it was verified
		return nil, errStranger(id)
	}
	p.open[c] = struct{}{}
	p.sources[id] = sourceNetwork(conn.RemoteAddr().String())
	return c, nil
}

// trackClaimed keeps the connection of who shows a node's certificate in that list, too, where this node does not know it: what it begins on the
// connection once it is a member must not outlive that. nil: it is no node's, or of one that was removed, which may only be told so.
func (p *Peers) trackClaimed(conn net.Conn, leaf *x509.Certificate) *peerConn {
	who, err := readIdentity(leaf)
	if err != nil {
		return nil
	}
	c := &peerConn{Conn: conn, id: who.id, key: who.key, peers: p}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.seat == nil || p.endedLocked(c) {
		return nil
	}
	p.open[c] = struct{}{}
	return c
}

// Node is the id of the node at the other end.
func (c *peerConn) Node() string { return c.id }

// NetConn is the connection below.
func (c *peerConn) NetConn() net.Conn { return c.Conn }

func (c *peerConn) Close() error {
	c.peers.mu.Lock()
	delete(c.peers.open, c)
	c.peers.mu.Unlock()
	return c.Conn.Close()
}

// callsFrom tells whether a source is one that members call from: where one was verified, or what an address of theirs says.
func (p *Peers) callsFrom(source netip.Prefix) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.seat == nil {
		return false
	}
	for _, s := range p.sources {
		if s == source {
			return true
		}
	}
	for n := range p.seat.State().Nodes() {
		if n.GetId() != p.seat.ID() && source == sourceNetwork(n.GetAddress()) {
			return true
		}
	}
	for _, n := range p.cfg.Seed {
		if _, ok := p.memberOf(p.seat, n.GetId()); ok && source == sourceNetwork(n.GetAddress()) {
			return true
		}
	}
	return false
}
