package rpc

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	lbdv1 "lbd/proto/lbd/v1"
)

// watchEverywhere streams the events of all nodes:
//
//  1. what each remembers, in the order of time
//  2. where that is asked, what is new, as it comes; nodes that join or go meanwhile are followed
//
// A node that does not answer is told as an event of its own.
func (s *trafficService) watchEverywhere(req *lbdv1.WatchEventsRequest, stream grpc.ServerStreamingServer[lbdv1.WatchEventsResponse]) error {
	replies := ask(stream.Context(), s.fleet, func(ctx context.Context) (past []*lbdv1.WatchEventsResponse, err error) {
		err = s.watchHere(ctx, &lbdv1.WatchEventsRequest{Since: req.GetSince()}, func(e *lbdv1.WatchEventsResponse) error {
			past = append(past, e)
			return nil
		})
		return past, err
	}, func(ctx context.Context, conn grpc.ClientConnInterface) (past []*lbdv1.WatchEventsResponse, err error) {
		return eventsOf(ctx, conn, req.GetSince())
	})
	var past []*lbdv1.WatchEventsResponse
	last := map[string]*timestamppb.Timestamp{}
	for _, r := range replies {
		last[r.node.GetId()] = req.GetSince()
		if n := len(r.answer); n > 0 {
			last[r.node.GetId()] = r.answer[n-1].GetTime()
		}
		past = append(past, r.answer...)
		if r.err != nil {
			past = append(past, s.missed(r.node.GetName(), r.err))
		}
	}
	slices.SortStableFunc(past, func(a, b *lbdv1.WatchEventsResponse) int { return a.GetTime().AsTime().Compare(b.GetTime().AsTime()) })
	for _, e := range past {
		if err := stream.Send(e); err != nil {
			return err
		}
	}
	if !req.GetFollow() {
		return nil
	}
	return s.followEverywhere(stream, last)
}

// eventsOf reads what another node remembers.
func eventsOf(ctx context.Context, conn grpc.ClientConnInterface, since *timestamppb.Timestamp) (past []*lbdv1.WatchEventsResponse, err error) {
	stream, err := lbdv1.NewTrafficServiceClient(conn).WatchEvents(ctx, &lbdv1.WatchEventsRequest{Since: since})
	for err == nil {
		var e *lbdv1.WatchEventsResponse
		if e, err = stream.Recv(); err == nil {
			past = append(past, e)
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return past, err
}

// missed is the event of a node that does not answer.
func (s *trafficService) missed(node string, err error) *lbdv1.WatchEventsResponse {
	return &lbdv1.WatchEventsResponse{Time: timestamppb.Now(), Node: node, Type: "node_unreached", Resource: "nodes/" + node, Message: "its events are missing: " + s.fleet.silence(err)}
}

// followEverywhere streams what is new on any node. last is the time of each node's last event that was sent, by id.
func (s *trafficService) followEverywhere(stream grpc.ServerStreamingServer[lbdv1.WatchEventsResponse], last map[string]*timestamppb.Timestamp) error {
	ctx, cancel := context.WithCancel(stream.Context())
	var followers sync.WaitGroup
	defer followers.Wait()
	defer cancel()
	news := make(chan *lbdv1.WatchEventsResponse)
	pass := func(e *lbdv1.WatchEventsResponse) error {
		select {
		case news <- e:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	ends := map[string]context.CancelFunc{}
	for {
		next := s.store.Next() // before the nodes, so that none is missed
		present := map[string]bool{}
		for _, n := range s.fleet.nodes() {
			if present[n.GetId()] = true; ends[n.GetId()] != nil {
				continue
			}
			following, end := context.WithCancel(ctx)
			ends[n.GetId()] = end
			since := last[n.GetId()]
			followers.Go(func() { s.follow(following, n, since, pass) })
		}
		for id, end := range ends {
			if !present[id] {
				end()
				delete(ends, id)
			}
		}
		for more := true; more; {
			select {
			case e := <-news:
				if err := stream.Send(e); err != nil {
					return err
				}
			case <-next:
				more = false
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
}

// follow passes a node's new events on until ctx ends. Where the node does not answer it says so once, and tries again.
func (s *trafficService) follow(ctx context.Context, n *lbdv1.Node, since *timestamppb.Timestamp, pass func(*lbdv1.WatchEventsResponse) error) {
	if n.GetId() == s.fleet.id {
		_ = s.watchHere(ctx, &lbdv1.WatchEventsRequest{Since: since, Follow: true}, pass) // it ends with ctx
		return
	}
	for told := false; ctx.Err() == nil; {
		err := s.followOnce(ctx, n.GetId(), &since, &told, pass)
		if ctx.Err() == nil && !told { // it has ended, whatever for
			told = pass(s.missed(n.GetName(), err)) == nil
		}
		select {
		case <-time.After(waitPause):
		case <-ctx.Done():
		}
	}
}

// followOnce passes on what one stream has. since becomes the time of the last event, and told false: the node answers.
func (s *trafficService) followOnce(ctx context.Context, id string, since **timestamppb.Timestamp, told *bool, pass func(*lbdv1.WatchEventsResponse) error) error {
	there, conn, err := s.fleet.others.way(ctx, id)
	if err != nil {
		return err
	}
	stream, err := lbdv1.NewTrafficServiceClient(conn).WatchEvents(there, &lbdv1.WatchEventsRequest{Since: *since, Follow: true})
	for err == nil {
		var e *lbdv1.WatchEventsResponse
		if e, err = stream.Recv(); err == nil {
			*since, *told = e.GetTime(), false
			err = pass(e)
		}
	}
	return err
}
