package main

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	lbdv1 "lbd/proto/lbd/v1"
)

// TestOldAnswers: a node without a leader says how old its answer is, and that is told beside it, once.
func TestOldAnswers(t *testing.T) {
	for age, says := range map[string]string{
		"12s":     "warning: no leader: this is what edge-1 had 12s ago\n",
		"unknown": "warning: no leader: this is what edge-1 had before its start\n",
		"":        "",
	} {
		node := &fakeNode{
			list: func(*lbdv1.ListRequest) (*lbdv1.ListResponse, error) { return &lbdv1.ListResponse{}, nil },
			export: func(*lbdv1.ExportRequest) ([]*lbdv1.Resource, error) {
				return []*lbdv1.Resource{{Spec: &lbdv1.Resource_Pool{Pool: &lbdv1.Pool{Name: "shop"}}}}, nil
			},
		}
		old := metadata.Pairs("lbd-node", "edge-1")
		if age != "" {
			old.Set("lbd-stale", age)
		}
		socket := filepath.Join(t.TempDir(), "control.sock")
		node.serve(t, "unix", socket,
			grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				if err := grpc.SetHeader(ctx, old); err != nil {
					return nil, err
				}
				return handler(ctx, req)
			}),
			grpc.StreamInterceptor(func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
				if err := stream.SetHeader(old); err != nil {
					return err
				}
				return handler(srv, stream)
			}),
		)
		setting(t, "ENDPOINTS=unix:"+socket)
		for _, args := range [][]string{{"get", "pools"}, {"export"}} {
			got := lbctl("", args...)
			if got.code != 0 || got.stderr != says {
				t.Errorf("%s, %v: exit %d, stderr %q, want %q", age, args, got.code, got.stderr, says)
			}
			if strings.Contains(got.stdout, "no leader") {
				t.Errorf("%s, %v: the answer itself has the warning", age, args)
			}
		}
	}
}

// TestStaleNodeIsPassedOver: a node that takes no credential, as it does not know what the others know, is no reason to give up.
func TestStaleNodeIsPassedOver(t *testing.T) {
	stale, err := status.New(codes.Unavailable, "node edge-1 has had no leader for 61s: it takes no token").WithDetails(&errdetails.ErrorInfo{Reason: "STALE", Domain: "lbd"})
	if err != nil {
		t.Fatal(err)
	}
	lost := &fakeNode{list: func(*lbdv1.ListRequest) (*lbdv1.ListResponse, error) { return nil, stale.Err() }}
	good := &fakeNode{list: func(*lbdv1.ListRequest) (*lbdv1.ListResponse, error) { return &lbdv1.ListResponse{}, nil }}
	first, second := filepath.Join(t.TempDir(), "1.sock"), filepath.Join(t.TempDir(), "2.sock")
	lost.serve(t, "unix", first)
	good.serve(t, "unix", second)
	setting(t, "ENDPOINTS=unix:"+first+",unix:"+second)
	if got := lbctl("", "get", "pools"); got.code != 0 || len(received[*lbdv1.ListRequest](lost)) != 1 {
		t.Errorf("with another node: %+v", got)
	}
	setting(t, "ENDPOINTS=unix:"+first)
	if got := lbctl("", "get", "pools"); got.code != 7 || !strings.Contains(got.stderr, "no leader for 61s") {
		t.Errorf("alone: %+v", got)
	}
}
