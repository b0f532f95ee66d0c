package rpc

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectalphapb "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"

	lbdv1 "lbd/proto/lbd/v1"
)

// guard stands before every handler: it bounds calls in number and time, turns errors into statuses and contains
// panics.
type guard struct {
	log   *slog.Logger
	calls chan struct{}
	waits chan struct{}
	// stopping is done when Close begins: streams that wait end then.
	stopping context.Context
	// receivers are the goroutines of RecvMsg.
	receivers sync.WaitGroup
}

func newGuard(log *slog.Logger, stopping context.Context) *guard {
	return &guard{
		log:      log,
		calls:    make(chan struct{}, callsMax),
		waits:    make(chan struct{}, waitsMax),
		stopping: stopping,
	}
}

// waitingMethods are streams whose clients wait for something to happen. They have slots and a time limit of their own.
var waitingMethods = map[string]bool{
	lbdv1.ConfigService_WaitForRevision_FullMethodName:                  true,
	lbdv1.ConfigService_Watch_FullMethodName:                            true,
	lbdv1.BackendService_WatchStatus_FullMethodName:                     true,
	lbdv1.TrafficService_WatchStats_FullMethodName:                      true,
	lbdv1.TrafficService_WatchEvents_FullMethodName:                     true,
	healthpb.Health_Watch_FullMethodName:                                true,
	reflectpb.ServerReflection_ServerReflectionInfo_FullMethodName:      true,
	reflectalphapb.ServerReflection_ServerReflectionInfo_FullMethodName: true,
}

func (g *guard) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	var answer any
	err := g.run(ctx, info.FullMethod, func(ctx context.Context) (err error) {
		answer, err = handler(ctx, req)
		return err
	})
	if err != nil {
		return nil, err
	}
	return answer, nil
}

func (g *guard) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	return g.run(stream.Context(), info.FullMethod, func(ctx context.Context) error {
		return handler(srv, &guardedStream{ServerStream: stream, ctx: ctx, guard: g})
	})
}

// run calls a handler with a slot and a deadline.
func (g *guard) run(ctx context.Context, method string, call func(context.Context) error) (err error) {
	slots, timeout := g.calls, callTimeoutMax
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if waitingMethods[method] {
		slots, timeout = g.waits, waitTimeoutMax
		defer context.AfterFunc(g.stopping, func() { cancel(errStopping) })()
	}
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
	default:
		return unavailable(reasonBusy, fmt.Sprintf("%d calls are in flight and no more are taken", cap(slots)))
	}
	ctx, cancelTimeout := context.WithTimeout(ctx, timeout)
	defer cancelTimeout()
	defer g.contain(method, &err)
	return g.answer(method, call(ctx))
}

// contain turns a panic into an error of this call alone.
func (g *guard) contain(method string, err *error) {
	cause := recover()
	if cause == nil {
		return
	}
	g.log.Error("a control call panicked", "method", method, "panic", fmt.Sprint(cause), "stack", string(debug.Stack()))
	*err = status.Error(codes.Internal, "lbd failed in this call; nothing else is affected, the node's log has the details")
}

// answer turns what a handler returned into a status, and logs what is our own fault.
func (g *guard) answer(method string, err error) error {
	if err == nil {
		return nil
	}
	err = statusOf(err)
	if code := status.Code(err); code == codes.Internal || code == codes.Unknown {
		g.log.Error("a control call failed", "method", method, "error", err)
	}
	return err
}

// guardedStream gives a handler the context with the guard's deadline, and holds what it receives to it.
type guardedStream struct {
	grpc.ServerStream
	ctx   context.Context
	guard *guard
}

func (s *guardedStream) Context() context.Context { return s.ctx }

// RecvMsg ends with the context and with the server: gRPC's own waits as long as the client likes. One that is given up
// ends when the handler returns, and Close waits for it.
func (s *guardedStream) RecvMsg(m any) error {
	got := make(chan error, 1)
	s.guard.receivers.Go(func() { got <- s.ServerStream.RecvMsg(m) })
	select {
	case err := <-got:
		return err
	case <-s.ctx.Done():
		return context.Cause(s.ctx)
	case <-s.guard.stopping.Done():
		return errStopping
	}
}
