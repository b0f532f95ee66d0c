package rpc

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"

	"lbd/cluster"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

const (
	// alpnCalls is gRPC, for everybody; alpnRaft is between nodes alone.
	alpnCalls = "h2"
	alpnRaft  = "lbd-raft/1"
	// peerHost is what a node calls another one in its hello: who is called by it shows its certificate as a node at once, also before
	// the cluster's authority has signed it.
	peerHost = "node.lbd.internal"
	// raftWelcome is the one byte with which raft's connection begins: the other one has verified who we are.
	raftWelcome = 1
)

// Dial connects to a member's raft. Both have verified each other when it returns.
func (p *Peers) Dial(ctx context.Context, node string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, peerDialTimeout)
	defer cancel()
	conn, err := p.dial(ctx, node, alpnRaft)
	if err != nil {
		return nil, err
	}
	deadline, _ := ctx.Deadline()
	_ = conn.SetDeadline(deadline)
	var welcome [1]byte
	if _, err := io.ReadFull(conn, welcome[:]); err != nil || welcome[0] != raftWelcome {
		_ = conn.Close()
		return nil, p.turnedAway(ctx, node, err)
	}
	_ = conn.SetDeadline(time.Time{})
	return conn, nil
}

// turnedAway finds out why another node did not let this one in: it tells only its answer to a call.
func (p *Peers) turnedAway(ctx context.Context, node string, cause error) error {
	conn, err := p.Own(node)
	if err == nil {
		_, err = raftv1.NewPeerServiceClient(conn).GetMembers(ctx, &raftv1.GetMembersRequest{})
	}
	if err = p.Explain(err); errors.Is(err, cluster.ErrRemoved) {
		return err
	}
	return fmt.Errorf("node %s does not let this one in: %w", node, errors.Join(cause, err))
}

// dial connects to a member and verifies that it is that one.
func (p *Peers) dial(ctx context.Context, node, alpn string) (net.Conn, error) {
	n, ok := p.Member(node)
	if !ok {
		return nil, errStranger(node)
	}
	if n.GetAddress() == "" {
		return nil, fmt.Errorf("node %s has no control port", n.GetName())
	}
	var err error
	for _, address := range p.addresses(n) {
		var conn net.Conn
		if conn, err = p.dialAddress(ctx, n, address, alpn); err == nil {
			return conn, nil
		}
	}
	return nil, err
}

// movedTo is where a member says that it is, while its record has another address.
type movedTo struct{ from, to string }

// addresses are where a member may be: where it said, as long as its record is the one from before that; where others' newer record says, of one
// that is found no more from the own one; and what that has.
func (p *Peers) addresses(n *lbdv1.Node) (all []string) {
	recorded := n.GetAddress()
	if said, ok := p.moved.Load(n.GetId()); ok {
		if m, _ := said.(movedTo); m.from == recorded && m.to != recorded {
			all = append(all, m.to)
		}
	}
	if told, ok := p.learning.member(n.GetId(), p.seated()); ok && told.GetKey() == n.GetKey() && told.GetAddress() != "" && !slices.Contains(all, told.GetAddress()) {
		all = append(all, told.GetAddress())
	}
	if !slices.Contains(all, recorded) {
		all = append(all, recorded)
	}
	return all
}

func (p *Peers) dialAddress(ctx context.Context, n *lbdv1.Node, address, alpn string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: peerDialTimeout, Control: noticeLoss, KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: peerKeepAliveIdle, Interval: peerKeepAliveInterval, Count: peerKeepAliveCount,
	}}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", n.GetName(), err)
	}
	ctx, cancel := context.WithTimeout(ctx, peerDialTimeout)
	defer cancel()
	secure := tls.Client(conn, p.clientTLS(n.GetId(), alpn))
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("node %s at %s: %w", n.GetName(), address, err)
	}
	tracked, err := p.track(secure, n.GetId(), n.GetKey())
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return tracked, nil
}

// clientTLS shows this node's certificate to a member, and takes none for it but the member itself.
func (p *Peers) clientTLS(node, alpn string) *tls.Config {
	offered := []string{alpn}
	if alpn == alpnRaft { // not of calls, by which the other side finds out who is at an address (runAt): that would ask back without end
		offered = append(offered, alpnRun+p.run)
	}
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		NextProtos:         offered,
		ServerName:         peerHost,
		InsecureSkipVerify: true, // VerifyConnection is what judges
		VerifyConnection: func(s tls.ConnectionState) error {
			if s.NegotiatedProtocol != alpn {
				return errors.New("it is no control port of lbd")
			}
			return p.verifyServer(s.PeerCertificates, node)
		},
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return p.cfg.Certificate(), nil },
	}
}

func (p *Peers) verifyServer(chain []*x509.Certificate, node string) error {
	if len(chain) == 0 {
		return errors.New("it shows no certificate")
	}
	n, err := p.verify(chain[0])
	if err != nil {
		return err
	}
	if n.GetId() != node {
		return fmt.Errorf("it is node %s (%s)", n.GetName(), n.GetId())
	}
	return nil
}

// peerClient is the gRPC connections to one member.
type peerClient struct {
	address string // of the record when it was made
	own     *grpc.ClientConn
	relays  [peerRelays]*grpc.ClientConn
	turn    atomic.Uint32
}

// relay is one of the connections for calls in somebody's name: each carries a bounded number at a time.
func (c *peerClient) relay() *grpc.ClientConn { return c.relays[c.turn.Add(1)%peerRelays] }

func (p *Peers) newClient(id string) (*peerClient, error) {
	c := &peerClient{}
	for _, slot := range append([]**grpc.ClientConn{&c.own}, c.slots()...) {
		conn, err := grpc.NewClient("passthrough:///"+peerHost,
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return p.dial(ctx, id, alpnCalls) }),
			grpc.WithTransportCredentials(insecure.NewCredentials()), // dial has done what there is to do
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(answerBytesMax), grpc.MaxCallSendMsgSize(messageBytesMax)),
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: peerRetryMin, Multiplier: 2, Jitter: 0.2, MaxDelay: peerRetryMax},
				MinConnectTimeout: peerDialTimeout,
			}),
			grpc.WithDisableServiceConfig(),
			grpc.WithNoProxy(),
		)
		if err != nil {
			_ = c.Close()
			return nil, err
		}
		*slot = conn
	}
	return c, nil
}

func (c *peerClient) slots() []**grpc.ClientConn {
	var all []**grpc.ClientConn
	for i := range c.relays {
		all = append(all, &c.relays[i])
	}
	return all
}

// Close ends the connections and the calls on them.
func (c *peerClient) Close() error {
	for _, slot := range append(c.slots(), &c.own) {
		if *slot != nil {
			_ = (*slot).Close()
		}
	}
	return nil
}

// readyFor is a connection that can take a call for a member now: where there is none, nothing was sent.
func (p *Peers) readyFor(ctx context.Context, id string) (*grpc.ClientConn, error) {
	c, err := p.client(id)
	if err != nil {
		return nil, err
	}
	conn := c.relay()
	if !ready(ctx, conn) {
		return nil, errors.New("no connection")
	}
	return conn, nil
}

// ready waits until a connection can take a call: one that cannot has sent nothing.
func ready(ctx context.Context, conn *grpc.ClientConn) bool {
	ctx, cancel := context.WithTimeout(ctx, peerDialTimeout)
	defer cancel()
	for failed := false; ; {
		now := conn.GetState()
		switch {
		case now == connectivity.Ready:
			return true
		case now == connectivity.TransientFailure && failed:
			return false
		case now == connectivity.Shutdown:
			return false
		case now == connectivity.Connecting:
			failed = true // what it becomes next is of this attempt
		}
		conn.Connect()
		if !conn.WaitForStateChange(ctx, now) {
			return false
		}
	}
}
