package rpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	lbdv1 "lbd/proto/lbd/v1"
)

// fleet is all nodes of the cluster, as questions to each of them see it. What is asked of another node is asked in the name of the caller, and
// answered by that node for itself alone.
type fleet struct {
	id, name string // this node's; alone it has no id but its name
	store    Store
	seat     Seat  // nil: this node is alone
	others   asker // nil: likewise
	patience time.Duration
}

// asker finds the way to another node.
type asker interface {
	// way is for questions in the name of the caller of ctx.
	way(ctx context.Context, node string) (context.Context, grpc.ClientConnInterface, error)
	// own is for this node's own questions.
	own(ctx context.Context, node string) (context.Context, grpc.ClientConnInterface, error)
}

func newFleet(cfg Config) *fleet {
	f := &fleet{id: cfg.Node, name: cfg.Node, store: cfg.Store, patience: askTimeout}
	if cfg.Seat != nil {
		f.id, f.seat = cfg.Seat.ID(), cfg.Seat
	}
	if cfg.Peers != nil {
		f.others = ways{cfg.Peers}
	}
	return f
}

// ways are those of the peers.
type ways struct{ peers *Peers }

func (w ways) way(ctx context.Context, node string) (context.Context, grpc.ClientConnInterface, error) {
	conn, err := w.peers.Conn(node)
	return nodeOnly(ctx), conn, err
}

func (w ways) own(ctx context.Context, node string) (context.Context, grpc.ClientConnInterface, error) {
	conn, err := w.peers.Own(node)
	return ctx, conn, err
}

// leader is the name of the node that leads; empty: none is known.
func (f *fleet) leader() string {
	if f.seat == nil {
		return f.name
	}
	if n, ok := f.store.State().Node(f.seat.Leader()); ok {
		return n.GetName()
	}
	return ""
}

// nodes are all, by name; this one is among them also where the state does not have it yet.
func (f *fleet) nodes() []*lbdv1.Node {
	var all []*lbdv1.Node
	own := false
	for n := range f.store.State().Nodes() {
		if f.others == nil && n.GetId() != f.id {
			continue
		}
		own = own || n.GetId() == f.id
		all = append(all, n)
	}
	if !own {
		all = append(all, &lbdv1.Node{Id: f.id, Name: f.name})
	}
	slices.SortFunc(all, func(a, b *lbdv1.Node) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return all
}

// named finds a node by its name or, where no name fits, by its id or the beginning of one.
func (f *fleet) named(name string) (*lbdv1.Node, error) {
	all := f.nodes()
	for _, fits := range []func(*lbdv1.Node) bool{
		func(n *lbdv1.Node) bool { return n.GetName() == name },
		func(n *lbdv1.Node) bool { return n.GetId() == name },
		func(n *lbdv1.Node) bool { return len(name) >= len("n-")+4 && strings.HasPrefix(n.GetId(), name) },
	} {
		if i := slices.IndexFunc(all, fits); i >= 0 {
			return all[i], nil
		}
	}
	return nil, notFound("nodes/"+clip(name), "there is no node `%s`", clip(name))
}

// reply is what one node has said.
type reply[T any] struct {
	node   *lbdv1.Node
	answer T
	err    error
}

// ask puts a question to all nodes at once, in the name of the caller, each of which has patience to answer; here is this node's own answer. The replies are by
// name. Of another node that asks it is this one's answer alone.
func ask[T any](ctx context.Context, f *fleet, here func(context.Context) (T, error), there func(context.Context, grpc.ClientConnInterface) (T, error)) []reply[T] {
	return askBy(ctx, f, asker.way, here, there)
}

// askBy is ask by one of the asker's ways.
func askBy[T any](ctx context.Context, f *fleet, way func(asker, context.Context, string) (context.Context, grpc.ClientConnInterface, error),
	here func(context.Context) (T, error), there func(context.Context, grpc.ClientConnInterface) (T, error)) []reply[T] {
	nodes := f.nodes()
	if isNodeOnly(ctx) {
		nodes = slices.DeleteFunc(nodes, func(n *lbdv1.Node) bool { return n.GetId() != f.id })
	}
	replies := make([]reply[T], len(nodes))
	var all sync.WaitGroup
	for i, n := range nodes {
		all.Go(func() {
			r := &replies[i]
			r.node = n
			if n.GetId() == f.id {
				r.answer, r.err = here(ctx)
				return
			}
			limited, cancel := context.WithTimeout(ctx, f.patience)
			defer cancel()
			to, conn, err := way(f.others, limited, n.GetId())
			if r.err = err; err == nil {
				r.answer, r.err = there(to, conn)
			}
		})
	}
	all.Wait()
	return replies
}

// answered parts those that have answered from those that have not. This node's own error is the call's.
func answered[T any](f *fleet, all []reply[T]) ([]reply[T], []*lbdv1.UnreachedNode, error) {
	var answers []reply[T]
	var unreached []*lbdv1.UnreachedNode
	for _, r := range all {
		switch {
		case r.err == nil:
			answers = append(answers, r)
		case r.node.GetId() == f.id:
			return nil, nil, r.err
		default:
			unreached = append(unreached, &lbdv1.UnreachedNode{Node: r.node.GetName(), Reason: f.silence(r.err)})
		}
	}
	return answers, unreached, nil
}

// silence says in words why a node has not answered.
func (f *fleet) silence(err error) string {
	s, _ := status.FromError(err)
	text := s.Message()
	switch {
	case errors.Is(err, context.DeadlineExceeded), s.Code() == codes.DeadlineExceeded:
		return fmt.Sprintf("no answer within %s", f.patience)
	case s.Code() == codes.Unavailable:
		// gRPC wraps what the connection has ended with: `… desc = "transport: Error while dialing: node edge-2: …"`.
		if _, cause, ok := strings.Cut(text, "Error while dialing: "); ok {
			text = strings.TrimRight(cause, "\"")
		}
	}
	return clip(text)
}

// nodeMethods are those whose requests may name a node; true: all of them may be meant, `*`, which the handler sees to.
var nodeMethods = map[string]bool{
	lbdv1.BackendService_GetStatus_FullMethodName:       true,
	lbdv1.CertificateService_GetStatus_FullMethodName:   true,
	lbdv1.TrafficService_ListConnections_FullMethodName: true,
	lbdv1.TrafficService_KillConnections_FullMethodName: true,
	lbdv1.TrafficService_WatchEvents_FullMethodName:     true,
	lbdv1.TrafficService_WatchStats_FullMethodName:      false,
	lbdv1.TrafficService_TestRoute_FullMethodName:       false,
	lbdv1.SystemService_GetVersion_FullMethodName:       false,
	lbdv1.SystemService_GetStatus_FullMethodName:        false,
	lbdv1.SystemService_RunDoctor_FullMethodName:        true,
	lbdv1.SystemService_GetMetrics_FullMethodName:       false,
	lbdv1.SystemService_GetProfile_FullMethodName:       false,
	lbdv1.SystemService_SetLogLevel_FullMethodName:      false,
	lbdv1.SystemService_CollectDebug_FullMethodName:     false,

	lbdv1.SessionTicketService_GetStatus_FullMethodName:     true,
	lbdv1.SessionTicketService_InspectTicket_FullMethodName: false,
}

// everyNode is what a request says that is for all.
const everyNode = "*"

// meant is the other node that a request is for; nil: it is for this one, or for all, which the handler sees to.
func (f *fleet) meant(ctx context.Context, method string, req any) (*lbdv1.Node, error) {
	all, known := nodeMethods[method]
	m, ok := req.(interface{ GetNode() string })
	if !known || !ok || m.GetNode() == "" || isNodeOnly(ctx) {
		return nil, nil
	}
	if m.GetNode() == everyNode {
		if all {
			return nil, nil
		}
		return nil, invalidField("node", "`*` does for no question that is about one node: name it")
	}
	n, err := f.named(m.GetNode())
	if err != nil || n.GetId() == f.id {
		return nil, err
	}
	return n, nil
}

// unary answers a call here, or has the node answer it that it is for.
func (f *fleet) unary(ctx context.Context, method string, req any, handler grpc.UnaryHandler) (any, error) {
	n, err := f.meant(ctx, method, req)
	switch {
	case err != nil:
		return nil, err
	case n == nil || f.others == nil:
		return handler(ctx, req)
	}
	answer, err := emptyAnswer(method)
	if err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeout(ctx, f.patience+lasts(req))
	defer cancel()
	to, conn, err := f.others.way(limited, n.GetId())
	if err == nil {
		err = conn.Invoke(to, method, req, answer)
	}
	if errors.Is(limited.Err(), context.DeadlineExceeded) && ctx.Err() == nil {
		return nil, unavailable(reasonUnreached, fmt.Sprintf("node %s does not answer: %s", n.GetName(), f.silence(context.DeadlineExceeded)))
	}
	if err != nil {
		return nil, f.unreached(n, err)
	}
	return answer, nil
}

// lasts is what a question takes by itself.
func lasts(req any) time.Duration {
	profile, ok := req.(*lbdv1.GetProfileRequest)
	switch {
	case !ok:
		return 0
	case profile.GetDuration() == nil:
		return profileDefault
	}
	return min(profile.GetDuration().AsDuration(), profileMax)
}

// passed has the stream of another node sent that a request is for. It is not ok where this node is to answer.
func passed[T any](f *fleet, method string, req proto.Message, stream grpc.ServerStreamingServer[T]) (ok bool, err error) {
	n, err := f.meant(stream.Context(), method, req)
	if err != nil || n == nil || f.others == nil {
		return err != nil, err
	}
	ctx, conn, err := f.others.way(stream.Context(), n.GetId())
	if err != nil {
		return true, f.unreached(n, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	there, err := openStream[T](ctx, conn, method, req)
	for err == nil {
		var answer *T
		if answer, err = there.Recv(); err == nil {
			err = stream.Send(answer)
		}
	}
	if errors.Is(err, io.EOF) {
		return true, nil
	}
	return true, f.unreached(n, err)
}

func openStream[T any](ctx context.Context, conn grpc.ClientConnInterface, method string, req proto.Message) (*grpc.GenericClientStream[proto.Message, T], error) {
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(stream.SendMsg(req), stream.CloseSend()); err != nil {
		return nil, err
	}
	return &grpc.GenericClientStream[proto.Message, T]{ClientStream: stream}, nil
}

// unreached makes another node's silence an error of this call. What it has answered stays its answer.
func (f *fleet) unreached(n *lbdv1.Node, err error) error {
	if status.Code(err) != codes.Unavailable || reasonOf(err) != "" {
		return err
	}
	return unavailable(reasonUnreached, fmt.Sprintf("node %s does not answer: %s", n.GetName(), f.silence(err)))
}
