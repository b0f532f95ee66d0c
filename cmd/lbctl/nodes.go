package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// nodes are the nodes that a command line may talk to. A call goes to one of them; where that one cannot be reached, to the next.
type nodes struct {
	all   []*nodeConn
	at    atomic.Int32 // which one calls go to
	token string
	// warn is told of nodes that are left out.
	warn func(text string)
	// stale is done once it was told how old an answer is.
	stale sync.Once
}

// nodeConn is one of them. It is connected by the first call.
type nodeConn struct {
	endpoint endpoint
	conn     *grpc.ClientConn
	// Why it could not be reached at the last attempt; nil once it was.
	unreached atomic.Pointer[error]
	told      atomic.Bool
}

func (r *reach) open(warn func(string)) (*nodes, error) {
	n := &nodes{token: r.token, warn: warn}
	for _, e := range r.endpoints {
		node := &nodeConn{endpoint: e}
		dial := func(ctx context.Context, _ string) (net.Conn, error) {
			conn, err := r.dial(ctx, e)
			if err != nil {
				err = fmt.Errorf("%s (%w)", e.text, err)
				node.unreached.Store(&err)
				return nil, err
			}
			node.unreached.Store(nil)
			return conn, nil
		}
		var err error
		node.conn, err = grpc.NewClient("passthrough:///lbd",
			grpc.WithContextDialer(dial),
			grpc.WithTransportCredentials(insecure.NewCredentials()), // dial has done what there is to do
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(answerBytesMax)),
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: retryPauseMin, Multiplier: 2, MaxDelay: retryPauseMax},
				MinConnectTimeout: dialTimeout,
			}),
		)
		if err != nil {
			n.Close()
			return nil, fail(exitInternal, "connect: %w", err)
		}
		n.all = append(n.all, node)
	}
	return n, nil
}

// Invoke makes a call with one answer.
func (n *nodes) Invoke(ctx context.Context, method string, args, reply any, options ...grpc.CallOption) error {
	var header metadata.MD
	options = append(options, grpc.Header(&header))
	err := n.try(func(c *grpc.ClientConn) error { return c.Invoke(n.signed(ctx), method, args, reply, options...) })
	if err == nil {
		n.tellAge(header)
	}
	return err
}

// NewStream begins a call that streams.
func (n *nodes) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, options ...grpc.CallOption) (stream grpc.ClientStream, err error) {
	err = n.try(func(c *grpc.ClientConn) (err error) {
		stream, err = c.NewStream(n.signed(ctx), desc, method, options...)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &agedStream{ClientStream: stream, nodes: n}, nil
}

// agedStream tells of an answer that is old as soon as its first part is there.
type agedStream struct {
	grpc.ClientStream
	nodes *nodes
	once  sync.Once
}

// RecvMsg takes the next part.
func (s *agedStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err == nil {
		s.once.Do(func() {
			if header, err := s.Header(); err == nil {
				s.nodes.tellAge(header)
			}
		})
	}
	return err
}

// tellAge warns once of what a node answers from its own memory, as it has no leader to ask whether there is something newer.
func (n *nodes) tellAge(header metadata.MD) {
	age, node := strings.Join(header.Get("lbd-stale"), ""), strings.Join(header.Get("lbd-node"), "")
	switch age {
	case "":
		return
	case "unknown":
		age = "before its start"
	default:
		age += " ago"
	}
	n.stale.Do(func() { n.warn(fmt.Sprintf("no leader: this is what %s had %s", oneLine(node), age)) })
}

// signed is a call's context with the token, if there is one (RFC 6750, section 2.1).
func (n *nodes) signed(ctx context.Context) context.Context {
	if n.token == "" {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+n.token)
}

// try makes a call to the first node that can be reached, beginning with the one that was.
func (n *nodes) try(call func(*grpc.ClientConn) error) error {
	var err error
	for range n.all {
		at := n.at.Load()
		node := n.all[at]
		err = call(node.conn)
		why := node.unreached.Load()
		if reason(err) == "STALE" { // it takes no credential while it does not know what the others know: another one may
			n.leave(at)
			continue
		}
		if status.Code(err) != codes.Unavailable || why == nil {
			return err
		}
		n.leave(at)
		if stranger := new(strangerError); errors.As(*why, &stranger) && len(n.all) > 1 && !node.told.Swap(true) {
			n.warn(fmt.Sprintf("%s is left out: %s", node.endpoint.text, stranger.why))
		}
	}
	return err
}

// leave makes the next node the one that calls go to, unless another call has done so.
func (n *nodes) leave(at int32) { n.at.CompareAndSwap(at, (at+1)%int32(len(n.all))) }

// next is leave for a node that answers, but cannot do what it was asked for now.
func (n *nodes) next() {
	if len(n.all) > 1 {
		n.leave(n.at.Load())
	}
}

// unreached says why none of the nodes could be reached; nil: one was.
func (n *nodes) unreached() error {
	var tried []error
	for _, node := range n.all {
		why := node.unreached.Load()
		if why == nil {
			return nil
		}
		tried = append(tried, *why)
	}
	if len(tried) == 0 {
		return nil
	}
	return joined(tried)
}

// Close ends all connections.
func (n *nodes) Close() {
	for _, node := range n.all {
		node.conn.Close()
	}
}

// joined is errors.Join on one line.
func joined(errs []error) error {
	err := errs[0]
	for _, e := range errs[1:] {
		err = fmt.Errorf("%w or %w", err, e)
	}
	return err
}
