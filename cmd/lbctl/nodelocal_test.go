package main

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lbdv1 "lbd/proto/lbd/v1"
)

// TestNodeLocal: what is said on one node alone goes to that node's socket, whatever contexts and tokens there are, and needs an end.
func TestNodeLocal(t *testing.T) {
	here := says("10.0.0.1:80", drain)
	here.Node, here.ExpireTime = "n1", noon
	everywhere := says("10.0.0.1:80", maintenance)
	node := &fakeNode{backends: nobody, status: func() (*lbdv1.SystemServiceGetStatusResponse, error) {
		return &lbdv1.SystemServiceGetStatusResponse{Node: "n1", RaftRole: "follower"}, nil
	}, fakeLive: fakeLive{
		overrides: func(*lbdv1.ListOverridesRequest) (*lbdv1.ListOverridesResponse, error) {
			return &lbdv1.ListOverridesResponse{Overrides: []*lbdv1.Override{everywhere, here}}, nil
		},
		setState: func(r *lbdv1.SetStateRequest) (*lbdv1.SetStateResponse, error) {
			if r.GetState() == lbdv1.BackendState_BACKEND_STATE_READY {
				return &lbdv1.SetStateResponse{Overrides: []*lbdv1.Override{everywhere}}, nil
			}
			return &lbdv1.SetStateResponse{Overrides: []*lbdv1.Override{everywhere, here}}, nil
		},
		setWeight: func(*lbdv1.SetWeightRequest) (*lbdv1.SetWeightResponse, error) {
			return &lbdv1.SetWeightResponse{}, nil
		},
		clear: func(*lbdv1.ClearOverridesRequest) (*lbdv1.ClearOverridesResponse, error) {
			return &lbdv1.ClearOverridesResponse{Overrides: []*lbdv1.Override{here}}, nil
		},
	}}
	socket := node.start(t)
	t.Setenv("LBCTL_ENDPOINTS", "127.0.0.1:1,unix:"+socket)
	t.Setenv("LBCTL_TOKEN", "lbt_none")

	lbctl("", "--node-local", "backend", "drain", "shop/10.0.0.1:80", "--expires", "2h").wants(t, 0, "shop/10.0.0.1:80: DRAIN on this node alone\n",
		"shop/10.0.0.1:80: replaces override of shop/10.0.0.1:80 on node n1 alone: DRAIN, by node/n1 uid=0: new disk, until 2026-01-02T12:00:00Z\n")
	lbctl("", "backend", "weight", "shop/10.0.0.1:80", "3", "--expires", "2h", "--node-local").wants(t, 0, "weight 3 on this node alone\n", "")
	lbctl("", "--node-local", "backend", "ready", "shop/10.0.0.1:80").wants(t, 0, "READY on this node alone\n",
		"still in force: override of shop/10.0.0.1:80: MAINTENANCE, by node/n1 uid=0: new disk\n")
	lbctl("", "--node-local", "backend", "ready", "shop/10.0.0.1:80", "--expires", "1h").wants(t, 0, "READY", "still in force: ")
	sets := received[*lbdv1.SetStateRequest](node)
	if len(sets) != 3 || !sets[0].GetNodeOnly() || !sets[1].GetNodeOnly() || sets[1].GetExpireTime() != nil || sets[2].GetExpireTime() == nil {
		t.Fatalf("asked %v", sets)
	}
	if left := time.Until(sets[0].GetExpireTime().AsTime()); left < time.Hour || left > 2*time.Hour {
		t.Errorf("ends in %s", left)
	}
	if w := received[*lbdv1.SetWeightRequest](node); len(w) != 1 || !w[0].GetNodeOnly() {
		t.Errorf("asked %v", w)
	}
	lbctl("", "--node-local", "override", "clear", "shop").wants(t, 0, "shop/10.0.0.1:80: DRAIN has ended\n", "")
	lbctl("", "--node-local", "override", "list").wants(t, 0, "MAINTENANCE  -     node/n1", "")
	lbctl("", "--node-local", "status").wants(t, 0, "follower", "")
	if clears := received[*lbdv1.ClearOverridesRequest](node); len(clears) != 1 || !clears[0].GetNodeOnly() {
		t.Errorf("asked %v", clears)
	}

	lbctl("", "--node-local", "backend", "drain", "shop/10.0.0.1:80").wants(t, 2, "", "--expires is needed with --node-local, at most 24h")
	lbctl("", "backend", "ready", "shop/10.0.0.1:80", "--expires", "1h").wants(t, 2, "", "--expires goes with --node-local here")
	lbctl("", "--node-local", "get", "pools").wants(t, 2, "", "--node-local is not for `lbctl get`, which concerns the whole cluster: it goes with backend drain")
	lbctl("", "--node-local", "--endpoints", "10.0.0.1:7443", "status").wants(t, 2, "", "--node-local takes the node's own socket, unix:PATH, not 10.0.0.1:7443")
}

// fakeCluster drains nodes, as each test says.
type fakeCluster struct {
	lbdv1.UnimplementedClusterServiceServer
	node   *fakeNode
	refuse error // unless forced
}

func (f *fakeCluster) DrainNode(_ context.Context, r *lbdv1.DrainNodeRequest) (*lbdv1.DrainNodeResponse, error) {
	f.node.note(r)
	if f.refuse != nil && !r.GetForce() {
		return nil, f.refuse
	}
	return &lbdv1.DrainNodeResponse{Node: &lbdv1.Node{Id: "n0000000000000002", Name: "edge-2"}}, nil
}

func (f *fakeCluster) UndrainNode(_ context.Context, r *lbdv1.UndrainNodeRequest) (*lbdv1.UndrainNodeResponse, error) {
	f.node.note(r)
	return &lbdv1.UndrainNodeResponse{Node: &lbdv1.Node{Name: "edge-2"}}, nil
}

// TestNodeDrainVerb: what --wait tells, and that a node which does not answer for a while is waited for.
func TestNodeDrainVerb(t *testing.T) {
	var answers []func() (*lbdv1.SystemServiceGetStatusResponse, error) // the last one stays
	node := &fakeNode{status: func() (*lbdv1.SystemServiceGetStatusResponse, error) {
		now := answers[0]
		if len(answers) > 1 {
			answers = answers[1:]
		}
		return now()
	}}
	cluster := &fakeCluster{node: node}
	node.cluster = cluster
	node.start(t)
	at := func(traffic string, connections int64) func() (*lbdv1.SystemServiceGetStatusResponse, error) {
		return func() (*lbdv1.SystemServiceGetStatusResponse, error) {
			return &lbdv1.SystemServiceGetStatusResponse{Traffic: traffic, Connections: connections}, nil
		}
	}
	away := func() (*lbdv1.SystemServiceGetStatusResponse, error) {
		return nil, status.Error(codes.Unavailable, "connection refused")
	}
	lbctl("", "node", "drain", "nodes/edge-2", "--reason", "new kernel").wants(t, 0, "node edge-2: draining\n", "")
	if r := received[*lbdv1.DrainNodeRequest](node)[0]; r.GetNode() != "edge-2" || r.GetReason() != "new kernel" || r.GetForce() || r.GetRequestId() == "" {
		t.Errorf("asked %v", r)
	}
	answers = append(answers, at("ready", 9), at("draining", 2), away, at("draining", 1), at("drained", 0))
	lbctl("", "node", "drain", "edge-2", "--wait").wants(t, 0, "node edge-2: drained\n",
		"node edge-2 has not heard of it yet\nnode edge-2 drains: 2 connections\nnode edge-2 does not answer: connection refused\nnode edge-2 drains: 1 connection\n")
	answers = append(answers[:0], at("draining", 1))
	lbctl("", "node", "drain", "edge-2", "--wait", "--timeout", "1s").wants(t, 8, "", "timed out after 1s: node edge-2 drains: 1 connection; the drain stays")
	cluster.refuse = status.Error(codes.FailedPrecondition, "no other node that is in contact takes traffic")
	lbctl("", "node", "drain", "edge-2").wants(t, 6, "", "no other node")
	lbctl("", "node", "drain", "edge-2", "--force", "-o", "name").wants(t, 0, "nodes/edge-2\n", "")
	lbctl("", "node", "undrain", "edge-2").wants(t, 0, "node edge-2: takes traffic\n", "")
	lbctl("", "node", "drain").wants(t, 2, "", "accepts 1 arg")
}
