package rpc

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	lbdv1 "lbd/proto/lbd/v1"
)

func TestTestRoute(t *testing.T) {
	r := newRig(t)
	got, err := r.traffic.TestRoute(r.ctx(), &lbdv1.TestRouteRequest{Url: "http://a.example/"})
	if err != nil || got.GetNode() != "n1" || got.GetRoute() != "route of http://a.example/" {
		t.Errorf("decision %v, %v", got, err)
	}
	if _, err := r.traffic.TestRoute(r.ctx(), &lbdv1.TestRouteRequest{}); failureOf(t, err).fields["url"] == "" {
		t.Errorf("without a URL: %v", err)
	}
}

func TestWatchStats(t *testing.T) {
	r := newRig(t)
	stream, err := r.traffic.WatchStats(r.ctx(), &lbdv1.WatchStatsRequest{Interval: durationpb.New(statsIntervalMin)})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if got, err := stream.Recv(); err != nil || got.GetConnections() != 7 || got.GetNode() != "n1" {
			t.Fatalf("stats %v, %v", got, err)
		}
	}
	for _, interval := range []time.Duration{0, time.Millisecond, time.Hour} {
		stream, err := r.traffic.WatchStats(r.ctx(), &lbdv1.WatchStatsRequest{Interval: durationpb.New(interval)})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); failureOf(t, err).fields["interval"] == "" {
			t.Errorf("every %s: %v", interval, err)
		}
	}
}

func TestWatchEvents(t *testing.T) {
	r := newRig(t)
	r.observer.happen(now, "one")
	r.observer.happen(now.Add(time.Second), "two")
	read := func(req *lbdv1.WatchEventsRequest) (recv func() string) {
		stream, err := r.traffic.WatchEvents(r.ctx(), req)
		if err != nil {
			t.Fatal(err)
		}
		return func() string {
			event, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return "end"
			}
			if err != nil {
				t.Fatal(err)
			}
			return event.GetNode() + " " + event.GetMessage()
		}
	}
	past := read(&lbdv1.WatchEventsRequest{})
	if got := strings.Join([]string{past(), past(), past()}, ", "); got != "n1 one, n1 two, end" {
		t.Errorf("events %s", got)
	}
	follow := read(&lbdv1.WatchEventsRequest{Since: timestamppb.New(now), Follow: true})
	if got := follow(); got != "n1 two" {
		t.Errorf("event %s", got)
	}
	r.observer.happen(now.Add(2*time.Second), "three")
	if got := follow(); got != "n1 three" {
		t.Errorf("event %s", got)
	}
}

func TestConnections(t *testing.T) {
	r := newRig(t)
	got, err := r.traffic.ListConnections(r.ctx(), &lbdv1.ListConnectionsRequest{Client: "10.0.0.0/8"})
	if err != nil || len(got.GetConnections()) != 1 || got.GetConnections()[0].GetNode() != "n1" {
		t.Errorf("connections %v, %v", got, err)
	}
	if asked := r.observer.last().(*lbdv1.ListConnectionsRequest); asked.GetLimit() != connectionsListedDefault || asked.GetClient() != "10.0.0.0/8" {
		t.Errorf("asked for %v", asked)
	}
	killed, err := r.traffic.KillConnections(r.ctx(), &lbdv1.KillConnectionsRequest{Ids: []int64{3, 4}})
	if err != nil || killed.GetKilled() != 2 {
		t.Errorf("killed %v, %v", killed, err)
	}
	for what, req := range map[string]*lbdv1.ListConnectionsRequest{
		"limit":  {Limit: connectionsListedMax + 1},
		"client": {Client: "10.0.0.0/99"},
	} {
		if _, err := r.traffic.ListConnections(r.ctx(), req); failureOf(t, err).fields[what] == "" {
			t.Errorf("a bad %s: %v", what, err)
		}
	}
	for what, req := range map[string]*lbdv1.KillConnectionsRequest{"ids": {}, "client": {Client: "x"}} {
		if _, err := r.traffic.KillConnections(r.ctx(), req); failureOf(t, err).fields[what] == "" {
			t.Errorf("kill with bad %s: %v", what, err)
		}
	}
}

func TestDoctorMetricsProfile(t *testing.T) {
	r := newRig(t)
	findings, err := r.system.RunDoctor(r.ctx(), &lbdv1.RunDoctorRequest{})
	if err != nil || len(findings.GetFindings()) != 1 || findings.GetFindings()[0].GetNode() != "n1" {
		t.Errorf("findings %v, %v", findings, err)
	}
	metrics, err := r.system.GetMetrics(r.ctx(), &lbdv1.GetMetricsRequest{})
	if err != nil || metrics.GetText() != "lbd_revision 1\n" {
		t.Errorf("metrics %v, %v", metrics, err)
	}
	cpu := lbdv1.ProfileKind_PROFILE_KIND_CPU
	profile, err := r.system.GetProfile(r.ctx(), &lbdv1.GetProfileRequest{Kind: cpu})
	if err != nil || string(profile.GetProfile()) != "PROFILE_KIND_CPU 10s" {
		t.Errorf("profile %v, %v", profile, err)
	}
	for what, test := range map[string]struct {
		req  *lbdv1.GetProfileRequest
		code codes.Code
	}{
		"no kind":   {&lbdv1.GetProfileRequest{}, codes.InvalidArgument},
		"too long":  {&lbdv1.GetProfileRequest{Kind: cpu, Duration: durationpb.New(time.Hour)}, codes.InvalidArgument},
		"a failure": {&lbdv1.GetProfileRequest{Kind: cpu, Duration: durationpb.New(profileMax)}, codes.Internal},
	} {
		if _, err := r.system.GetProfile(r.ctx(), test.req); failureOf(t, err).code != test.code {
			t.Errorf("profile with %s: %v", what, err)
		}
	}
}
