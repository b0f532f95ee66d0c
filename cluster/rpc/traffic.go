package rpc

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"lbd/cluster/state"
	lbdv1 "lbd/proto/lbd/v1"
)

// trafficService answers lbd.v1.TrafficService.
type trafficService struct {
	lbdv1.UnimplementedTrafficServiceServer
	node     string
	store    Store
	observer Observer
	fleet    *fleet
}

// TestRoute says what would become of a request.
func (s *trafficService) TestRoute(ctx context.Context, req *lbdv1.TestRouteRequest) (*lbdv1.TestRouteResponse, error) {
	if req.GetUrl() == "" {
		return nil, invalidField("url", "is missing: as in https://shop.example.com/cart")
	}
	answer, err := s.observer.TestRoute(ctx, req)
	if err != nil {
		return nil, err
	}
	answer.Node = s.node
	return answer, nil
}

// WatchStats streams counters at once and then every interval.
func (s *trafficService) WatchStats(req *lbdv1.WatchStatsRequest, stream grpc.ServerStreamingServer[lbdv1.WatchStatsResponse]) error {
	if there, err := passed(s.fleet, lbdv1.TrafficService_WatchStats_FullMethodName, req, stream); there || err != nil {
		return err
	}
	interval := statsIntervalDefault
	if req.GetInterval() != nil {
		interval = req.GetInterval().AsDuration()
	}
	if interval < statsIntervalMin || interval > statsIntervalMax {
		return invalidField("interval", "%s is out of range: %s to %s", interval, statsIntervalMin, statsIntervalMax)
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		stats := s.observer.Stats()
		stats.Node = s.node
		if err := stream.Send(stats); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-stream.Context().Done():
			return context.Cause(stream.Context())
		}
	}
}

// WatchEvents streams what is remembered, and then what happens if the client wants to follow: on this node, on another, or on each.
func (s *trafficService) WatchEvents(req *lbdv1.WatchEventsRequest, stream grpc.ServerStreamingServer[lbdv1.WatchEventsResponse]) error {
	if there, err := passed(s.fleet, lbdv1.TrafficService_WatchEvents_FullMethodName, req, stream); there || err != nil {
		return err
	}
	if req.GetNode() == everyNode && !isNodeOnly(stream.Context()) {
		return s.watchEverywhere(req, stream)
	}
	return s.watchHere(stream.Context(), req, stream.Send)
}

// watchHere hands to send what this node remembers, and what happens.
func (s *trafficService) watchHere(ctx context.Context, req *lbdv1.WatchEventsRequest, send func(*lbdv1.WatchEventsResponse) error) error {
	var since time.Time
	if req.GetSince() != nil {
		since = req.GetSince().AsTime()
	}
	for {
		past, next := s.observer.Events(since)
		for _, event := range past {
			since = event.GetTime().AsTime()
			event = proto.CloneOf(event) // it is remembered for others, too
			event.Node = s.node
			if err := send(event); err != nil {
				return err
			}
		}
		if !req.GetFollow() {
			return nil
		}
		select {
		case <-next:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// ListConnections reads clients' connections, of this node or of each.
func (s *trafficService) ListConnections(ctx context.Context, req *lbdv1.ListConnectionsRequest) (*lbdv1.ListConnectionsResponse, error) {
	if err := checkClient(req.GetClient()); err != nil {
		return nil, err
	}
	req = proto.CloneOf(req)
	switch limit := req.GetLimit(); {
	case limit == 0:
		req.Limit = connectionsListedDefault
	case limit < 1 || limit > connectionsListedMax:
		return nil, invalidField("limit", "%d is out of range: 1 to %d", limit, connectionsListedMax)
	}
	here := func(context.Context) (*lbdv1.ListConnectionsResponse, error) {
		answer, err := s.observer.Connections(req)
		for _, c := range answer.GetConnections() {
			c.Node = s.node
		}
		return answer, err
	}
	if req.GetNode() != everyNode {
		return here(ctx)
	}
	answers, unreached, err := answered(s.fleet, ask(ctx, s.fleet, here,
		func(ctx context.Context, conn grpc.ClientConnInterface) (*lbdv1.ListConnectionsResponse, error) {
			return lbdv1.NewTrafficServiceClient(conn).ListConnections(ctx, req)
		}))
	if err != nil {
		return nil, err
	}
	out := &lbdv1.ListConnectionsResponse{Unreached: unreached, Nodes: int32(len(answers))}
	for _, a := range answers {
		out.Connections = append(out.Connections, a.answer.GetConnections()...)
		out.Truncated = out.GetTruncated() || a.answer.GetTruncated()
	}
	slices.SortStableFunc(out.Connections, func(a, b *lbdv1.Connection) int {
		return a.GetStartTime().AsTime().Compare(b.GetStartTime().AsTime())
	})
	if most := int(req.GetLimit()); len(out.GetConnections()) > most {
		out.Connections, out.Truncated = out.GetConnections()[:most], true
	}
	return out, nil
}

// KillConnections closes connections, of this node or of each. One that is to close all has to say so by naming what they have in common;
// ids are each node's own, so that with them the node has to be named where there are others.
//
// A caller who is bound to owners has to name a pool or a listener of theirs: what else is chosen is among its connections then.
func (s *trafficService) KillConnections(ctx context.Context, req *lbdv1.KillConnectionsRequest) (*lbdv1.KillConnectionsResponse, error) {
	if len(req.GetIds()) == 0 && req.GetListener() == "" && req.GetClient() == "" && req.GetPool() == "" {
		return nil, invalidField("ids", "nothing is chosen: name ids, a listener, a client or a pool")
	}
	if err := checkClient(req.GetClient()); err != nil {
		return nil, err
	}
	if err := s.requireOwn(ctx, req); err != nil {
		return nil, err
	}
	if len(req.GetIds()) > 0 && !isNodeOnly(ctx) && req.GetNode() == everyNode && len(s.fleet.nodes()) > 1 {
		return nil, invalidField("node", "ids are each node's own: say whose they are")
	}
	here := func(context.Context) (*lbdv1.KillConnectionsResponse, error) {
		killed, err := s.observer.KillConnections(req)
		return &lbdv1.KillConnectionsResponse{Killed: killed}, err
	}
	if req.GetNode() != everyNode {
		return here(ctx)
	}
	answers, unreached, err := answered(s.fleet, ask(ctx, s.fleet, here,
		func(ctx context.Context, conn grpc.ClientConnInterface) (*lbdv1.KillConnectionsResponse, error) {
			return lbdv1.NewTrafficServiceClient(conn).KillConnections(ctx, req)
		}))
	if err != nil {
		return nil, err
	}
	out := &lbdv1.KillConnectionsResponse{Unreached: unreached}
	for _, a := range answers {
		out.Killed += a.answer.GetKilled()
	}
	return out, nil
}

// requireOwn refuses a bound caller what may be other owners' connections.
func (s *trafficService) requireOwn(ctx context.Context, req *lbdv1.KillConnectionsRequest) error {
	c, err := callerOf(ctx)
	if err != nil || !c.bound() {
		return err
	}
	if req.GetPool() == "" && req.GetListener() == "" {
		return permissionDenied(reasonOwner, "%s is bound to %s: name a pool or a listener of theirs, whose connections are to be closed", c.Author, ownersText(c.Owners))
	}
	for _, key := range []state.Key{{Kind: state.Pools, Name: req.GetPool()}, {Kind: state.Listeners, Name: req.GetListener()}} {
		if key.Name == "" {
			continue
		}
		stored, ok := s.store.State().Get(key.Kind, key.Name)
		if !ok {
			return notFound(key.String(), "there is no %s named `%s`", key.Kind.Singular(), key.Name)
		}
		if err := requireOwner(ctx, stored.GetResource().GetOwner()); err != nil {
			return err
		}
	}
	return nil
}

func checkClient(network string) error {
	if network == "" {
		return nil
	}
	if _, err := state.ParseNetwork(network); err != nil {
		return invalidField("client", "`%s` is neither an address nor a network", network)
	}
	return nil
}
