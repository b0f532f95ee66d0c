package rpc

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cluster"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// Raft's connections go both ways between members.
func TestRaftConnection(t *testing.T) {
	c := newNodes(t, 2)
	heard := make(chan string, 1)
	go func() {
		conn, err := c.nodes[1].peers.Accept()
		if err != nil {
			heard <- err.Error()
			return
		}
		b, err := io.ReadAll(conn)
		if err != nil {
			b = []byte(err.Error())
		}
		_ = conn.Close()
		heard <- string(b)
	}()
	conn, err := c.nodes[0].peers.Dial(t.Context(), nodeID(2))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte("vote for me")); err != nil {
		t.Error(err)
	}
	_ = conn.Close()
	if got := <-heard; got != "vote for me" {
		t.Errorf("the other one got %q", got)
	}
	if _, err := c.nodes[0].peers.Dial(t.Context(), nodeID(9)); !errors.Is(err, errUnknownNode) {
		t.Errorf("a node that there is not: %v", err)
	}
}

// knock makes a handshake for raft, and returns nil where it is let in.
func knock(ctx context.Context, address string, shown *tls.Certificate) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	config := &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{alpnRaft}, InsecureSkipVerify: true}
	if shown != nil {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return shown, nil }
	}
	secure := tls.Client(conn, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		return err
	}
	_ = secure.SetReadDeadline(time.Now().Add(20 * time.Second))
	_, err = secure.Read(make([]byte, 1))
	return err
}

func TestOnlyMembersShakeHands(t *testing.T) {
	c := newNodes(t, 3)
	n := c.nodes[0]
	if err := knock(t.Context(), n.address, c.nodes[1].shown); err != nil {
		t.Fatalf("a member: %v", err)
	}
	key := c.nodes[1].shown.PrivateKey.(*ecdsa.PrivateKey)
	for name, one := range map[string]struct {
		shown *tls.Certificate
		why   string
	}{
		"no certificate":    {nil, ""},
		"a person's":        {keyPair(t, "person"), "lacks the extended key usage"},
		"another node":      {nodeCertificate(t, nodeID(9), nil), "is no node of this cluster"},
		"a member's id":     {nodeCertificate(t, nodeID(2), nil), "node edge-2 (" + nodeID(2) + ") has another key"},
		"a member's key":    {nodeCertificateOf(t, key, nodeID(3), nil), "node edge-3 (" + nodeID(3) + ") has another key"},
		"the node itself":   {n.shown, "is this node itself"},
		"without the usage": {nodeCertificateOf(t, key, nodeID(2), func(c *x509.Certificate) { c.UnknownExtKeyUsage = nil }), "lacks the extended key usage"},
		"without a name":    {nodeCertificateOf(t, key, nodeID(2), func(c *x509.Certificate) { c.URIs = nil }), "has no name"},
		"of two names":      {nodeCertificateOf(t, key, nodeID(2), func(c *x509.Certificate) { c.URIs = append(c.URIs, c.URIs[0]) }), "has no name"},
		"of another cluster": {nodeCertificateOf(t, key, nodeID(2), func(c *x509.Certificate) {
			c.URIs = []*url.URL{NodeURI("c-1", nodeID(2))}
		}), "is of another cluster"},
		"a member, too late":  {nodeCertificateOf(t, key, nodeID(2), func(c *x509.Certificate) { c.NotAfter = now.Add(-time.Minute) }), "expired at"},
		"a member, too early": {nodeCertificateOf(t, key, nodeID(2), func(c *x509.Certificate) { c.NotBefore = now.Add(time.Minute) }), "is not valid before"},
	} {
		before := len(n.journal.Refusals(time.Time{}))
		if err := knock(t.Context(), n.address, one.shown); err == nil {
			t.Errorf("%s: welcome", name)
		}
		if one.why == "" {
			continue
		}
		e := awaitRefusal(t, n.journal, before)
		if !strings.Contains(e.GetMessage(), one.why) || e.GetSource() != "127.0.0.1" || e.GetMethod() != "handshake of a node" {
			t.Errorf("%s: the journal has %v", name, e)
		}
	}
}

// awaitRefusal waits for one more refusal in a journal than there were.
func awaitRefusal(t *testing.T, j *fakeJournal, before int) *lbdv1.ListAuditResponse {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if all := j.Refusals(time.Time{}); len(all) > before {
			return all[len(all)-1]
		}
	}
	t.Fatal("the journal has no refusal")
	return nil
}

// A node that was removed is out at once, under every id, whatever it has; it is told by an answer to a call.
func TestRemovedNode(t *testing.T) {
	c := newNodes(t, 3)
	first, gone := c.nodes[0], c.nodes[2]
	accepted := make(chan net.Conn, 1)
	go func() {
		if conn, err := first.peers.Accept(); err == nil {
			accepted <- conn
		}
	}()
	conn, err := gone.peers.Dial(t.Context(), nodeID(1))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	other := <-accepted
	defer other.Close()
	own, err := gone.peers.Own(nodeID(1))
	if err != nil {
		t.Fatal(err)
	}
	question := func() error {
		_, err := raftv1.NewPeerServiceClient(own).ReadIndex(first.ctx(), &raftv1.ReadIndexRequest{})
		return gone.peers.Explain(err)
	}
	if err := question(); err != nil {
		t.Fatal(err)
	}

	c.hold()
	gone.seat.set(func() { gone.seat.cut = true })
	if _, err := c.apply(first.id, removes(gone.id, first.shown)); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("its connection ended with %v", err)
	}
	key := gone.shown.PrivateKey.(*ecdsa.PrivateKey)
	for _, id := range []string{gone.id, nodeID(1), nodeID(2), nodeID(9)} {
		if err := knock(t.Context(), first.address, nodeCertificateOf(t, key, id, nil)); err == nil {
			t.Errorf("welcome as %s", id)
		}
	}
	if _, err := gone.peers.Dial(t.Context(), nodeID(1)); !errors.Is(err, cluster.ErrRemoved) {
		t.Errorf("its dial: %v", err)
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		err := question()
		if errors.Is(err, cluster.ErrRemoved) {
			break
		}
		if err == nil || time.Now().After(end) {
			t.Fatalf("its question: %v", err)
		}
	}
	_, err = lbdv1.NewAuthServiceClient(first.asNode(gone.shown)).WhoAmI(first.ctx(), &lbdv1.WhoAmIRequest{})
	if f := failureOf(t, err); f.reason != reasonRemoved {
		t.Errorf("a call of somebody's by it: %+v", f)
	}
	if e := first.journal.last(); e.GetResult() != "unauthenticated" {
		t.Errorf("the journal: %v", e)
	}
}

// removes is the command by which a node becomes one that was a member.
func removes(id string, shown *tls.Certificate) *raftv1.Command {
	return &raftv1.Command{Kind: &raftv1.Command_Node{Node: &raftv1.NodeCommand{Author: "test", Time: timestamppb.New(now), Change: &raftv1.NodeCommand_Remove{
		Remove: &raftv1.RemoveNode{Id: id, Authority: &raftv1.Authority{Certificate: shown.Certificate[0], SealedKey: []byte("sealed anew")}},
	}}}}
}

// A node that is behind asks the members that it knows about one that it does not.
func TestLaggingNodeLearns(t *testing.T) {
	c := newNodes(t, 2)
	c.hold()
	newer := nodeCertificate(t, nodeID(3), nil)
	if _, err := c.apply(nodeID(1), joins(nodeID(3), "edge-3", "127.0.0.1:1", newer)); err != nil {
		t.Fatal(err)
	}
	lagging := c.nodes[1]
	lagging.seat.set(func() { lagging.seat.age = time.Hour })
	if _, ok := lagging.store0().Node(nodeID(3)); ok {
		t.Fatal("it is not behind: this test tests nothing")
	}
	if err := knock(t.Context(), lagging.address, newer); err != nil {
		t.Errorf("the newer member: %v", err)
	}
	if n, _ := lagging.peers.Member(nodeID(3)); n.GetName() != "edge-3" {
		t.Errorf("it has learned %v", n)
	}
	if err := knock(t.Context(), lagging.address, nodeCertificate(t, nodeID(3), nil)); err == nil {
		t.Error("the newer member's id under another key: welcome")
	}
	// Once the leader has confirmed the own state, that counts, whatever entry others have named.
	lagging.seat.set(func() { lagging.seat.age = 0 })
	if n, ok := lagging.peers.Member(nodeID(3)); ok {
		t.Errorf("what others have told counts for more than its own state: %v", n)
	}
}

// A member that has moved is found where it says that it is, until its record says where; where it is not there, its record counts.
func TestMovedMember(t *testing.T) {
	c := newNodes(t, 2)
	p := c.nodes[0].peers
	recorded, _ := p.Member(nodeID(2))
	for _, moved := range []movedTo{
		{recorded.GetAddress(), "127.0.0.1:1"}, // nobody listens there
		{"127.0.0.1:2", "127.0.0.1:1"},         // of a record before this one
	} {
		p.moved.Store(nodeID(2), moved)
		if _, err := p.ReadIndex(t.Context(), nodeID(2), cluster.Report{}); !errors.Is(err, cluster.ErrNoLeader) {
			t.Errorf("%v: %v, want an answer", moved, err)
		}
	}
	if got := p.addresses(recorded); len(got) != 1 || got[0] != recorded.GetAddress() {
		t.Errorf("its addresses are %v", got)
	}
	p.moved.Store(nodeID(2), movedTo{recorded.GetAddress(), "127.0.0.1:1"})
	if got := p.addresses(recorded); len(got) != 2 || got[0] != "127.0.0.1:1" {
		t.Errorf("its addresses are %v", got)
	}
}

// Two have moved at once, and one of them leads: the other finds it by what the one that has stayed tells.
func TestMovedLeader(t *testing.T) {
	c := newNodes(t, 3)
	leader, stayed, lagging := c.nodes[0], c.nodes[1], c.nodes[2]
	c.moves(1, deadAddress(t))
	c.hold()
	c.moves(1, leader.address)
	stayed.seat.set(stayed.seat.catchUpLocked)
	lagging.seat.set(func() { lagging.seat.ever = false })
	own, _ := lagging.peers.Member(lagging.id)
	if _, err := lagging.peers.Dial(t.Context(), leader.id); err == nil {
		t.Fatal("it finds the leader by itself")
	}
	if _, err := lagging.peers.ProposeNode(t.Context(), stayed.id, own); !errors.Is(err, cluster.ErrNoLeader) {
		t.Fatalf("by who does not lead: %v", err)
	}
	lagging.peers.learn(t.Context())
	n, _ := lagging.peers.Member(leader.id)
	if got := lagging.peers.addresses(n); len(got) != 2 || got[0] != leader.address {
		t.Fatalf("its addresses are %v, want %s first", got, leader.address)
	}
	if _, err := lagging.peers.readyFor(t.Context(), leader.id); err != nil {
		t.Errorf("the leader where it is now: %v", err)
	}
}

// deadAddress is one where nobody listens.
func deadAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// A node that was cut off while another one was removed asks, before it lets that one in.
func TestCutOffDuringARemoval(t *testing.T) {
	c := newNodes(t, 3)
	c.hold()
	lagging, gone := c.nodes[1], c.nodes[2]
	if _, err := c.apply(nodeID(1), removes(gone.id, c.nodes[0].shown)); err != nil {
		t.Fatal(err)
	}
	lagging.seat.set(func() { lagging.seat.age = 6 * time.Second })
	if _, ok := lagging.store0().Node(gone.id); !ok {
		t.Fatal("it has heard of the removal: this test tests nothing")
	}
	if err := knock(t.Context(), lagging.address, gone.shown); err == nil {
		t.Error("the removed node: welcome")
	}
	if err := knock(t.Context(), lagging.address, c.nodes[0].shown); err != nil {
		t.Errorf("a member: %v", err)
	}
}

// A node that joins knows the others from the answer, until its own state has it.
func TestSeed(t *testing.T) {
	c := newNodes(t, 2)
	shown := nodeCertificate(t, nodeID(3), nil)
	empty := newNodes(t, 1) // for a state that does not have the node
	store := &sharedStore{memoryStore: empty.nodes[0].seat.store.memoryStore, rig: empty, id: nodeID(3)}
	seat := &standInSeat{rig: empty, node: &nodeRig{id: nodeID(3), name: "edge-3"}, store: store, ever: true}
	var seed []*lbdv1.Node
	for n := range c.nodes[0].store0().Nodes() {
		seed = append(seed, n)
	}
	peers := NewPeers(PeersConfig{Certificate: func() *tls.Certificate { return shown }, Seed: seed, Now: func() time.Time { return now }})
	peers.Take(seat)
	defer peers.Close()
	if _, err := peers.Dial(t.Context(), nodeID(2)); err == nil || errors.Is(err, errUnknownNode) {
		t.Errorf("before it is a member there: %v", err)
	}
	if _, err := c.apply(nodeID(1), joins(nodeID(3), "edge-3", "127.0.0.1:1", shown)); err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = c.nodes[1].peers.Accept() }()
	conn, err := peers.Dial(t.Context(), nodeID(2))
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
}

// Floods of handshakes, as nodes and as callers, from elsewhere keep no member waiting.
func TestFloodsDelayNoMember(t *testing.T) {
	c := newNodes(t, 2)
	ctx, cancel := context.WithCancel(t.Context())
	f := &flood{}
	defer f.wait()
	defer cancel()
	address, stranger := c.nodes[1].address, nodeCertificate(t, nodeID(9), nil)
	for range 40 {
		f.start(func() {
			for ctx.Err() == nil {
				f.shake(ctx, address, alpnRaft, stranger)
			}
		})
		f.start(func() {
			for ctx.Err() == nil {
				f.shake(ctx, address, alpnCalls, nil)
			}
		})
	}
	go func() {
		for {
			conn, err := c.nodes[1].peers.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	f.await(t, 200)
	for range 20 {
		began := time.Now()
		conn, err := c.nodes[0].peers.Dial(t.Context(), nodeID(2))
		if err != nil {
			t.Fatalf("after %v: %v", time.Since(began), err)
		}
		_ = conn.Close()
	}
	if _, err := c.nodes[0].peers.ReadIndex(t.Context(), nodeID(2), cluster.Report{}); errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

type flood struct {
	made atomic.Int64
	done sync.WaitGroup
}

func (f *flood) start(work func()) { f.done.Go(work) }
func (f *flood) wait()             { f.done.Wait() }

// await waits until so many handshakes were made.
func (f *flood) await(t *testing.T, n int64) {
	t.Helper()
	for end := time.Now().Add(time.Minute); f.made.Load() < n; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("only %d handshakes in a minute", f.made.Load())
		}
	}
}

// shake makes one handshake, from an address that no member calls from.
func (f *flood) shake(ctx context.Context, address, alpn string, shown *tls.Certificate) {
	defer f.made.Add(1)
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 9)}}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return
	}
	defer conn.Close()
	config := &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{alpn}, InsecureSkipVerify: true}
	if shown != nil {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return shown, nil }
	}
	secure := tls.Client(conn, config)
	limited, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if secure.HandshakeContext(limited) == nil {
		_ = secure.SetReadDeadline(time.Now().Add(time.Second))
		_, _ = secure.Read(make([]byte, 1))
	}
}

// dialCounting is a connection with a node's certificate, and how often it had to be made.
func (n *nodeRig) dialCounting(shown *tls.Certificate) (*grpc.ClientConn, *atomic.Int64) {
	made := new(atomic.Int64)
	return n.asNode(shown, grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
		made.Add(1)
		return new(net.Dialer).DialContext(ctx, "tcp", address)
	})), made
}

// What a node has begun on a connection from before it was known ends with its membership, too, and so does what it passes on for others.
func TestConnectionFromBeforeTheMembership(t *testing.T) {
	c := newNodes(t, 2)
	n := c.nodes[0]
	newer := nodeCertificate(t, nodeID(3), nil)
	conn, made := n.dialCounting(newer)
	if _, err := raftv1.NewPeerServiceClient(conn).GetMembers(n.ctx(), &raftv1.GetMembersRequest{}); failureOf(t, err).code != codes.Unauthenticated {
		t.Fatalf("a node that is none yet: %v", err)
	}
	if _, err := c.apply(n.id, joins(nodeID(3), "edge-3", "127.0.0.1:1", newer)); err != nil {
		t.Fatal(err)
	}
	ctx := metadata.AppendToOutgoingContext(n.ctx(), headerSource, "unix", headerUser, "0", headerRole, "4")
	stream, err := lbdv1.NewConfigServiceClient(conn).Watch(ctx, &lbdv1.WatchRequest{Kind: "pools"})
	if err != nil {
		t.Fatal(err)
	}
	n.mustApply(owner("web"), web()...)
	n.mustTell(stream, "create shop of web at 1")
	if made.Load() != 1 {
		t.Fatalf("the connection was made %d times: this test tests nothing", made.Load())
	}
	if _, err := c.apply(n.id, removes(nodeID(3), n.shown)); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("its stream ended with %v", err)
	}
}

// Also where this node hears of the joining and of the removal at once.
func TestConnectionFromBeforeAShortMembership(t *testing.T) {
	c := newNodes(t, 2)
	c.hold()
	lagging := c.nodes[1]
	newer := nodeCertificate(t, nodeID(3), nil)
	conn, made := lagging.dialCounting(newer)
	stream, err := healthpb.NewHealthClient(conn).Watch(lagging.ctx(), &healthpb.HealthCheckRequest{}) // which is open to all
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	for _, cmd := range []*raftv1.Command{joins(nodeID(3), "edge-3", "127.0.0.1:1", newer), removes(nodeID(3), lagging.shown)} {
		if _, err := c.apply(nodeID(1), cmd); err != nil {
			t.Fatal(err)
		}
	}
	if err := lagging.seat.WaitApplied(t.Context(), c.index); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable || made.Load() != 1 {
		t.Errorf("its stream ended with %v, after %d connections", err, made.Load())
	}
}
