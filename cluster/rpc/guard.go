package rpc

import (
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	reflectpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectalphapb "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/types/known/timestamppb"

	lbdv1 "lbd/proto/lbd/v1"
)

// guard stands before every handler: it lets in who may call, bounds calls in number and time, turns errors into statuses and
// contains panics.
type guard struct {
	log      *slog.Logger
	now      func() time.Time
	journal  Journal
	auth     *authenticator
	fleet    *fleet
	rules    rules // set before the server serves
	node     string
	seat     Seat   // nil: this node has no others beside it
	peers    *Peers // nil: none can be reached
	failures failures
	sessions sessions

	calls         *shares
	waits         *shares
	nodes         *shares // other nodes that call for themselves
	relayed       *shares // what other nodes ask in their callers' names, which they have bounded
	strangers     *shares // who has no credential
	strangerWaits *shares
	// stopping is done when Close begins: streams that wait end then.
	stopping context.Context
	// receivers are the goroutines of RecvMsg, and those that look after calls which are passed on.
	receivers sync.WaitGroup
	// undecided are the places of calls whose credential is looked for a second time.
	undecided chan struct{}
}

func newGuard(cfg Config, stopping context.Context) *guard {
	return &guard{
		log:           cfg.Logger,
		now:           cfg.Now,
		journal:       cfg.Journal,
		fleet:         newFleet(cfg),
		auth:          &authenticator{node: cfg.Node, store: cfg.Store, now: cfg.Now, rescue: cfg.LocalAdmin, peers: cfg.Peers},
		node:          cfg.Node,
		seat:          cfg.Seat,
		peers:         cfg.Peers,
		failures:      failures{sources: map[netip.Prefix]*failureCount{}},
		sessions:      sessions{store: cfg.Store, open: map[string]map[*session]struct{}{}},
		calls:         newShares(callsMax, callsEachMax, callsReserved),
		waits:         newShares(waitsMax, waitsEachMax, waitsReserved),
		nodes:         newShares(peerCallsMax, peerCallsEachMax, 0),
		relayed:       newShares(relayedMax, relayedMax, 0),
		undecided:     make(chan struct{}, undecidedMax),
		strangers:     newShares(strangerCallsMax, strangerCallsMax, 0),
		strangerWaits: newShares(strangerWaitsMax, strangerWaitsMax, 0),
		stopping:      stopping,
	}
}

// admit decides who may call, before a byte of the message is read. It runs on the connection's own goroutine and waits for
// nothing.
func (g *guard) admit(ctx context.Context, info *tap.Info) (context.Context, error) {
	if openToAll[info.FullMethodName] {
		return ctx, nil
	}
	if openToJoiners[info.FullMethodName] {
		return g.auth.admitJoiner(ctx, info.Header), nil
	}
	p, _ := peer.FromContext(ctx)
	source := sourceOf(p)
	c, err := g.auth.caller(ctx, info.Header)
	if g.mayBeOnItsWay(source, err) && g.leaveUndecided(ctx) {
		return withUndecided(ctx, info.Header), nil
	}
	if err != nil {
		return ctx, g.refuseLogin(source, info.FullMethodName, err)
	}
	if known, ok := p.AuthInfo.(portPeer); ok {
		known.conn.trust(c.connection())
	}
	return g.let(ctx, c, info.FullMethodName)
}

// let lets a known caller in, if he may call the method.
func (g *guard) let(ctx context.Context, c Caller, method string) (context.Context, error) {
	if err := g.rules.permit(c, method); err != nil {
		g.noteRefusal(c, method, err)
		return ctx, err
	}
	if c.TokenID != "" {
		g.journal.Use(c.TokenID, g.now())
	}
	return withCaller(ctx, c), nil
}

// Ask is a question to this node that is no call of gRPC.
type Ask struct {
	// Method is what the journal calls it.
	Method string
	// Source is "host:port" of who asks.
	Source string
	// Authorization is what came in the header fields of that name.
	Authorization []string
	// Chain is what the client has shown in TLS.
	Chain []*x509.Certificate
	// Least is the role that it takes.
	Least lbdv1.Role
}

// Admit finds out who asks, as for a call, and refuses who has too low a role. Its errors are statuses: UNAUTHENTICATED,
// PERMISSION_DENIED, RESOURCE_EXHAUSTED after too many failures.
func (s *Server) Admit(ask Ask) error {
	g := s.guard
	var c Caller
	var err error
	if len(ask.Authorization) > 0 {
		c, err = g.auth.bearer(ask.Source, ask.Authorization)
	} else {
		c, err = g.auth.certificate(ask.Source, ask.Chain)
	}
	if err != nil {
		return g.refuseLogin(ask.Source, ask.Method, err)
	}
	if err := g.stale(c); err != nil {
		return err
	}
	if c.Role < ask.Least {
		err := roleTooLow(c, ask.Least)
		g.noteRefusal(c, ask.Method, err)
		return err
	}
	g.journal.Use(c.TokenID, g.now())
	return nil
}

// refuseLogin notes a caller who could not say who he is, and answers.
func (g *guard) refuseLogin(source, method string, failure error) error {
	answer, result := g.failures.refuse(source, g.now(), failure), "unauthenticated"
	if answer != failure {
		result = "limited"
	}
	g.journal.Refuse(&lbdv1.ListAuditResponse{
		Time: timestamppb.New(g.now()), Source: hostOf(source), Method: g.noted(method), Result: result,
		Message: status.Convert(failure).Message(), Count: 1,
	})
	return answer
}

// noteRefusal notes what a known caller may not do.
func (g *guard) noteRefusal(c Caller, method string, refusal error) {
	g.journal.Refuse(&lbdv1.ListAuditResponse{
		Time: timestamppb.New(g.now()), Author: c.Author, Source: c.from(), Method: g.noted(method), Result: "forbidden",
		Message: status.Convert(refusal).Message(), Count: 1,
	})
}

// noted is how the journal calls a method. Names of methods that there are not are a stranger's to invent.
func (g *guard) noted(method string) string {
	if _, known := g.rules[method]; !known && strings.HasPrefix(method, "/") {
		return "unknown method"
	}
	return shortMethod(method)
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
	err := g.run(ctx, info.FullMethod, call{
		local: localOnly(req),
		here: func(ctx context.Context) (err error) {
			answer, err = g.fleet.unary(ctx, info.FullMethod, req, handler)
			return err
		},
		there: func(ctx context.Context, f *forward) (err error) {
			answer, err = f.unary(ctx, req)
			return err
		},
		check: func() error { return refuseUnknown(req) },
	})
	if err != nil {
		return nil, err
	}
	return answer, nil
}

func (g *guard) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	return g.run(stream.Context(), info.FullMethod, call{
		here: func(ctx context.Context) error {
			return handler(srv, &guardedStream{ServerStream: stream, ctx: ctx, guard: g})
		},
		there: func(ctx context.Context, f *forward) error {
			return f.stream(ctx, &guardedStream{ServerStream: stream, ctx: ctx, guard: g})
		},
		check: func() error { return nil }, // each message, when it comes
	})
}

// call is what run has to do with a call.
type call struct {
	// local: its message says that it is about this node alone.
	local bool
	check func() error
	// here answers it, there has the leader answer it.
	here  func(context.Context) error
	there func(context.Context, *forward) error
}

// run answers a call:
//
//  1. look once more for a credential that may have been on its way
//  2. a slot and a deadline, as long as the caller's credential lasts
//  3. answer it, here or by the leader ([guard.place])
//  4. turn the error into a status
func (g *guard) run(ctx context.Context, method string, one call) (err error) {
	if ctx, err = g.decide(ctx, method); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	c, err := callerOf(ctx)
	slots, timeout := g.slots(ctx, c, method, err != nil), callTimeoutMax
	if waitingMethods[method] {
		timeout = waitTimeoutMax
		defer context.AfterFunc(g.stopping, func() { cancel(errStopping) })()
	}
	bound, ok := slots.take(c, 1)
	if !ok {
		return unavailable(reasonBusy, fmt.Sprintf("%d calls are in flight and no more are taken", bound))
	}
	defer slots.give(c, 1)
	begun := time.Now()
	defer g.sessions.add(c, g.now(), cancel)()
	ctx, cancelTimeout := context.WithTimeout(ctx, timeout)
	defer cancelTimeout()
	defer g.contain(method, &err)
	elsewhere, there := false, one.there
	one.there = func(ctx context.Context, f *forward) error {
		elsewhere = true
		return there(ctx, f)
	}
	if err = one.check(); err == nil {
		err = g.place(ctx, c, method, one)
	}
	if cause := context.Cause(ctx); err != nil && (status.Code(cause) == codes.Unauthenticated || reasonOf(cause) == reasonStale) {
		err = cause // whatever the handler made of it
	}
	err = g.answer(method, err)
	g.log.Debug("control call", "method", shortMethod(method), "author", c.Author, "source", c.from(), "took", time.Since(begun), "code", status.Code(err))
	if status.Code(err) == codes.PermissionDenied && !elsewhere && !openToJoiners[method] { // the leader notes what it refuses, and Join its own
		g.noteRefusal(c, method, err)
	}
	return err
}

// slots are those that a call takes one of. Strangers have their own: they keep nobody else out, and who waits among them no one
// who asks once.
func (g *guard) slots(ctx context.Context, c Caller, method string, stranger bool) *shares {
	switch waits := waitingMethods[method]; {
	case c.Kind == kindNode:
		return g.nodes
	case isNodeOnly(ctx):
		return g.relayed
	case stranger && waits:
		return g.strangerWaits
	case stranger:
		return g.strangers
	case waits:
		return g.waits
	}
	return g.calls
}

// contain turns a panic into an error of this call alone.
func (g *guard) contain(method string, err *error) {
	cause := recover()
	if cause == nil {
		return
	}
	g.log.Error("a control call panicked", "method", method, "panic", fmt.Sprint(cause), "stack", string(debug.Stack()))
	*err = withDetails(codes.Internal, reasonInternal, "lbd failed in this call; nothing else is affected, the node's log has the details")
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
		if err != nil {
			return err
		}
		return refuseUnknown(m)
	case <-s.ctx.Done():
		return context.Cause(s.ctx)
	case <-s.guard.stopping.Done():
		return errStopping
	}
}
