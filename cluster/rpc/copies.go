package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"lbd/cluster"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// A data directory is a node's identity, and two processes on two copies of it would be one voter with two votes. A copy that is started with another
// address beside the node asks at the address of its record, before it takes part, whether that is itself (RunsAt), and then the others, who may reach what it
// does not (RunsBeside). Where the node was out of everybody's reach then, the others ask there when it says that it has moved, and whenever another process
// calls as that node than before, or connects to their raft (checkRun).

// RunsAt tells whether at an address there is a control port that shows this key: a node that is about to start, and has another address, is a copy then. What
// does not answer within selfLookTimeout is nobody.
func RunsAt(ctx context.Context, address, key string) bool {
	ctx, cancel := context.WithTimeout(ctx, selfLookTimeout)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return false
	}
	defer conn.Close()
	found := false
	secure := tls.Client(conn, &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{alpnCalls}, ServerName: peerHost,
		InsecureSkipVerify: true, // VerifyConnection is what judges
		VerifyConnection: func(s tls.ConnectionState) error {
			found = len(s.PeerCertificates) > 0 && publicKeyPin(s.PeerCertificates[0]) == key
			return errors.New("that is all there was to know")
		},
	})
	_ = secure.HandshakeContext(ctx)
	return found
}

// RunsBeside asks the members, of a node that has another address than before and takes no part yet, whether another process of it answers them at the
// address that they know: cluster.ErrCopied. Who does not answer within selfLookTimeout has nothing to say.
func (p *Peers) RunsBeside(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, selfLookTimeout)
	defer cancel()
	members := p.known()
	answers := make(chan error, len(members))
	for _, id := range members {
		go func() {
			_, err := p.ReadIndex(ctx, id, cluster.Report{Applied: p.seated().Applied()})
			answers <- err
		}()
	}
	var copied error
	for range members {
		if err := <-answers; errors.Is(err, cluster.ErrCopied) {
			copied = err
		}
	}
	return copied
}

// copies are which process of each member answers at the address of its record, for a moment where it is not the one that calls: both may go on calling.
type copies struct {
	mu    sync.Mutex
	found map[string]copyFound // by node; at most one for each member
}

type copyFound struct {
	address, run string // what was asked for
	sure, copied bool   // it was the one that answered; it was not
	at           time.Time
}

// checkMove refuses a member's other address where the member answers at the one of its record, too, as another process.
func (p *Peers) checkMove(ctx context.Context, n *lbdv1.Node, to, run string) error {
	if n.GetAddress() == to {
		return nil
	}
	return p.checkRun(ctx, n, run)
}

// checkRun refuses a process that calls as a member where another one answers at the address of its record. It asks there once for each process.
func (p *Peers) checkRun(ctx context.Context, n *lbdv1.Node, run string) error {
	if n.GetAddress() == "" || run == "" || !p.runsElsewhere(ctx, n, run) {
		return nil
	}
	return fmt.Errorf("another process of node %s is at %s: %w", n.GetName(), n.GetAddress(), cluster.ErrCopied)
}

// endCopied ends a connection to raft of a process that is on a copy, as soon as that is found out.
func (p *Peers) endCopied(c *peerConn, n *lbdv1.Node, run string) {
	p.start(func() {
		if err := p.checkRun(p.life, n, run); err != nil {
			p.cfg.Logger.Warn("a connection was ended", "source", c.RemoteAddr().String(), "reason", err)
			_ = c.Close()
		}
	})
}

// alpnRun is what a process offers beside alpnRaft, for the other side to know which one connects. It is never agreed on.
const alpnRun = "lbd-run/"

// runOf is the process that says hello; empty: it does not say.
func runOf(hello *tls.ClientHelloInfo) string {
	for _, offered := range hello.SupportedProtos {
		if run, ok := strings.CutPrefix(offered, alpnRun); ok {
			return run
		}
	}
	return ""
}

func (p *Peers) runsElsewhere(ctx context.Context, n *lbdv1.Node, run string) bool {
	p.copies.mu.Lock()
	known, ok := p.copies.found[n.GetId()]
	p.copies.mu.Unlock()
	if ok && known.address == n.GetAddress() && known.run == run && (known.sure || time.Since(known.at) < copyKept) {
		return known.copied
	}
	other, err := p.runAt(ctx, n, n.GetAddress())
	known = copyFound{address: n.GetAddress(), run: run, sure: err == nil && other == run, copied: err == nil && other != run, at: time.Now()}
	p.copies.mu.Lock()
	defer p.copies.mu.Unlock()
	if p.copies.found == nil {
		p.copies.found = map[string]copyFound{}
	}
	p.copies.found[n.GetId()] = known
	return known.copied
}

// runAt asks a member at an address which process it is.
func (p *Peers) runAt(ctx context.Context, n *lbdv1.Node, address string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, oldAddressTimeout)
	defer cancel()
	conn, err := grpc.NewClient("passthrough:///"+peerHost,
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return p.dialAddress(ctx, n, address, alpnCalls)
		}),
		grpc.WithTransportCredentials(insecure.NewCredentials()), // the dialer has done what there is to do
		grpc.WithDisableServiceConfig(), grpc.WithNoProxy(),
	)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	answer, err := raftv1.NewPeerServiceClient(conn).GetMembers(ctx, &raftv1.GetMembersRequest{})
	return answer.GetRun(), err
}
