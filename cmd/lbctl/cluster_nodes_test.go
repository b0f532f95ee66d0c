package main

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lbdv1 "lbd/proto/lbd/v1"
)

// removingCluster counts removals, and answers as a node that has removed itself.
type removingCluster struct {
	lbdv1.UnimplementedClusterServiceServer
	removals int
	gone     error
}

func (f *removingCluster) RemoveNode(context.Context, *lbdv1.RemoveNodeRequest) (*lbdv1.RemoveNodeResponse, error) {
	f.removals++
	return nil, f.gone
}

func (f *removingCluster) ReplaceNode(context.Context, *lbdv1.ReplaceNodeRequest) (*lbdv1.ReplaceNodeResponse, error) {
	f.removals++
	return nil, f.gone
}

// TestRemoveTheNodeThatAnswers: by its name or its id it is done when it says so; of another node that is a failure.
func TestRemoveTheNodeThatAnswers(t *testing.T) {
	cluster := &removingCluster{gone: why(t, codes.PermissionDenied, "NODE_REMOVED", "this node was removed")}
	node := &fakeNode{cluster: cluster}
	node.whoAmI = func(login) (*lbdv1.WhoAmIResponse, error) {
		return &lbdv1.WhoAmIResponse{Node: "edge-1", NodeId: "n-0000000000000001"}, nil
	}
	node.start(t)
	const held = "it held the sealing keys until now: backups from before can be opened with them"
	for _, named := range []string{"edge-1", "nodes/edge-1", "n-0000000000000001"} {
		lbctl("", "cluster", "remove", named, "--yes").wants(t, 0, "removed", held)
		lbctl("", "cluster", "replace", named, "edge-4", "--yes").wants(t, 0, "edge-4 is in its place", held)
	}
	lbctl("", "cluster", "remove", "edge-2", "--yes").wants(t, 4, "", "this node was removed")
	cluster.removals = 0
	node.whoAmI = func(login) (*lbdv1.WhoAmIResponse, error) {
		return nil, status.Error(codes.Internal, "no answer to that")
	}
	for _, args := range [][]string{{"cluster", "remove", "edge-1", "--yes"}, {"cluster", "replace", "edge-1", "edge-4", "--yes"}} {
		lbctl("", args...).wants(t, 9, "", "nothing was removed: it is not known which node answers\nerror: no answer to that")
	}
	if cluster.removals > 0 {
		t.Errorf("%d removals, though nobody knows which node answers", cluster.removals)
	}
}
