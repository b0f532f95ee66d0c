package main

import (
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cluster/state"
	"lbd/lb"
	lbdv1 "lbd/proto/lbd/v1"
)

// Events implements rpc.Observer.
func (a *appliance) Events(since time.Time) ([]*lbdv1.WatchEventsResponse, <-chan struct{}) {
	return a.events.since(since)
}

// Stats implements rpc.Observer.
func (a *appliance) Stats() *lbdv1.WatchStatsResponse {
	out := &lbdv1.WatchStatsResponse{Time: timestamppb.Now(), Connections: a.server.Stats().Connections}
	for _, tr := range a.server.Traffic() {
		for _, line := range tr.Lines {
			requests := map[string]int64{}
			for class, n := range line.Requests {
				if n > 0 {
					requests[codeClasses[class]] = n
				}
			}
			out.Traffic = append(out.Traffic, &lbdv1.TrafficStats{
				Listener: tr.Listener, Route: tr.Route, Pool: line.Pool, Backend: line.Backend, Requests: requests,
			})
		}
	}
	return out
}

// Connections implements rpc.Observer.
func (a *appliance) Connections(req *lbdv1.ListConnectionsRequest) (*lbdv1.ListConnectionsResponse, error) {
	filter, err := connectionFilter(req.GetListener(), req.GetClient(), req.GetPool())
	if err != nil {
		return nil, err
	}
	filter.Limit = int(req.GetLimit()) + 1
	all := a.server.Connections(filter)
	out := &lbdv1.ListConnectionsResponse{Truncated: len(all) > int(req.GetLimit())}
	for _, c := range all[:min(len(all), int(req.GetLimit()))] {
		out.Connections = append(out.Connections, &lbdv1.Connection{
			Id: c.ID, Node: a.cfg.node, Listener: c.Listener, ClientAddress: c.Client.String(), StartTime: timestamppb.New(c.Since),
			State: c.State, Requests: int64(c.Requests), Route: c.Route, Pool: c.Pool, Backend: c.Backend,
			TlsVersion: c.TLSVersion, ServerName: c.ServerName,
		})
	}
	return out, nil
}

// KillConnections implements rpc.Observer.
func (a *appliance) KillConnections(req *lbdv1.KillConnectionsRequest) (int64, error) {
	filter, err := connectionFilter(req.GetListener(), req.GetClient(), req.GetPool())
	if err != nil {
		return 0, err
	}
	filter.IDs = req.GetIds()
	return int64(a.server.KillConnections(filter)), nil
}

// EndEjection implements rpc.Observer.
func (a *appliance) EndEjection(pool, address string) bool {
	view := a.view.Load()
	if view == nil {
		return false
	}
	for _, b := range view.pools[pool].backends {
		if b.address == address {
			return a.server.EndEjection(pool, b.key)
		}
	}
	return false
}

func connectionFilter(listener, client, pool string) (lb.ConnectionFilter, error) {
	f := lb.ConnectionFilter{Listener: listener, Pool: pool}
	if client == "" {
		return f, nil
	}
	network, err := state.ParseNetwork(client)
	if err != nil {
		return f, status.Errorf(codes.InvalidArgument, "client: %v", err)
	}
	f.Client = network
	return f, nil
}
