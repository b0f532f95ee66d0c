package main

import (
	"context"

	"google.golang.org/grpc"

	lbdv1 "lbd/proto/lbd/v1"
)

// fakeLive is what a fakeNode answers about requests, connections and itself.
type fakeLive struct {
	setState    func(*lbdv1.SetStateRequest) (*lbdv1.SetStateResponse, error)
	setWeight   func(*lbdv1.SetWeightRequest) (*lbdv1.SetWeightResponse, error)
	overrides   func(*lbdv1.ListOverridesRequest) (*lbdv1.ListOverridesResponse, error)
	clear       func(*lbdv1.ClearOverridesRequest) (*lbdv1.ClearOverridesResponse, error)
	testRoute   func(*lbdv1.TestRouteRequest) (*lbdv1.TestRouteResponse, error)
	events      func(*lbdv1.WatchEventsRequest, grpc.ServerStreamingServer[lbdv1.WatchEventsResponse]) error
	connections func(*lbdv1.ListConnectionsRequest) (*lbdv1.ListConnectionsResponse, error)
	kill        func(*lbdv1.KillConnectionsRequest) (*lbdv1.KillConnectionsResponse, error)
	doctor      func() (*lbdv1.RunDoctorResponse, error)
	metrics     func() (*lbdv1.GetMetricsResponse, error)
	profile     func(*lbdv1.GetProfileRequest) (*lbdv1.GetProfileResponse, error)
	logLevel    func(*lbdv1.SetLogLevelRequest) (*lbdv1.SetLogLevelResponse, error)
	debug       func(*lbdv1.CollectDebugRequest, grpc.ServerStreamingServer[lbdv1.CollectDebugResponse]) error
}

func (f *fakeBackend) SetState(_ context.Context, r *lbdv1.SetStateRequest) (*lbdv1.SetStateResponse, error) {
	f.node.note(r)
	return f.node.setState(r)
}

func (f *fakeBackend) SetWeight(_ context.Context, r *lbdv1.SetWeightRequest) (*lbdv1.SetWeightResponse, error) {
	f.node.note(r)
	return f.node.setWeight(r)
}

func (f *fakeBackend) ListOverrides(_ context.Context, r *lbdv1.ListOverridesRequest) (*lbdv1.ListOverridesResponse, error) {
	f.node.note(r)
	return f.node.overrides(r)
}

func (f *fakeBackend) ClearOverrides(_ context.Context, r *lbdv1.ClearOverridesRequest) (*lbdv1.ClearOverridesResponse, error) {
	f.node.note(r)
	return f.node.clear(r)
}

type fakeTraffic struct {
	lbdv1.UnimplementedTrafficServiceServer
	node *fakeNode
}

func (f *fakeTraffic) TestRoute(_ context.Context, r *lbdv1.TestRouteRequest) (*lbdv1.TestRouteResponse, error) {
	f.node.note(r)
	return f.node.testRoute(r)
}

func (f *fakeTraffic) WatchEvents(r *lbdv1.WatchEventsRequest, stream grpc.ServerStreamingServer[lbdv1.WatchEventsResponse]) error {
	f.node.note(r)
	return f.node.events(r, stream)
}

func (f *fakeTraffic) ListConnections(_ context.Context, r *lbdv1.ListConnectionsRequest) (*lbdv1.ListConnectionsResponse, error) {
	f.node.note(r)
	return f.node.connections(r)
}

func (f *fakeTraffic) KillConnections(_ context.Context, r *lbdv1.KillConnectionsRequest) (*lbdv1.KillConnectionsResponse, error) {
	f.node.note(r)
	return f.node.kill(r)
}

func (f *fakeSystem) RunDoctor(context.Context, *lbdv1.RunDoctorRequest) (*lbdv1.RunDoctorResponse, error) {
	return f.node.doctor()
}

func (f *fakeSystem) GetMetrics(context.Context, *lbdv1.GetMetricsRequest) (*lbdv1.GetMetricsResponse, error) {
	return f.node.metrics()
}

func (f *fakeSystem) GetProfile(_ context.Context, r *lbdv1.GetProfileRequest) (*lbdv1.GetProfileResponse, error) {
	f.node.note(r)
	return f.node.profile(r)
}

func (f *fakeSystem) SetLogLevel(_ context.Context, r *lbdv1.SetLogLevelRequest) (*lbdv1.SetLogLevelResponse, error) {
	f.node.note(r)
	return f.node.logLevel(r)
}

func (f *fakeSystem) CollectDebug(r *lbdv1.CollectDebugRequest, stream grpc.ServerStreamingServer[lbdv1.CollectDebugResponse]) error {
	f.node.note(r)
	return f.node.debug(r, stream)
}
