package rpc

import (
	"net"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	lbdv1 "lbd/proto/lbd/v1"
)

// What is wrong with a cluster, and what only deserves attention.
func TestJudge(t *testing.T) {
	node := func(name, version string, gate int32, changes ...func(*lbdv1.NodeStatus)) *lbdv1.NodeStatus {
		n := &lbdv1.NodeStatus{
			Node:      &lbdv1.Node{Id: "n-" + name, Name: name, Version: version, Gate: gate, Role: lbdv1.NodeRole_NODE_ROLE_VOTER},
			Reachable: true, Voter: true,
		}
		for _, change := range changes {
			change(n)
		}
		return n
	}
	silent := func(n *lbdv1.NodeStatus) { n.Reachable, n.UnreachableReason = false, "connection refused" }
	drained := func(n *lbdv1.NodeStatus) {
		n.Node.Drain = &lbdv1.NodeDrain{Author: "ann", Reason: "kernel", Time: timestamppb.New(time.Unix(0, 0))}
	}
	for name, test := range map[string]struct {
		nodes              []*lbdv1.NodeStatus
		leader             string
		problems, warnings []string
	}{
		"well": {nodes: []*lbdv1.NodeStatus{node("a", "1.0.0", 1), node("b", "1.0.0", 1), node("c", "1.0.0", 1)}, leader: "a"},
		"two": {
			nodes: []*lbdv1.NodeStatus{node("a", "1.0.0", 1), node("b", "1.0.0", 1)}, leader: "a",
			warnings: []string{"two voters: if either is lost there are no more changes; a third node makes that one bearable"},
		},
		"four": {
			nodes: []*lbdv1.NodeStatus{node("a", "1.0.0", 1), node("b", "1.0.0", 1), node("c", "1.0.0", 1), node("d", "1.0.0", 1)}, leader: "a",
			warnings: []string{"4 voters bear the loss of 1, as 3 would: demote one, or add one"},
		},
		"no leader": {
			nodes:    []*lbdv1.NodeStatus{node("a", "1.0.0", 1), node("b", "1.0.0", 1), node("c", "1.0.0", 1)},
			problems: []string{"no leader: traffic is served, changes are refused"},
		},
		"no quorum": {
			nodes: []*lbdv1.NodeStatus{node("a", "1.0.0", 1), node("b", "1.0.0", 1, silent), node("c", "1.0.0", 1, silent)},
			problems: []string{
				"no quorum: 1 of 3 voters answer, and it takes 2: traffic is served, changes are refused",
				"node b does not answer: connection refused", "node c does not answer: connection refused",
			},
		},
		"all drained": {
			nodes: []*lbdv1.NodeStatus{node("a", "1.0.0", 1, drained), node("b", "1.0.0", 1, silent), node("c", "1.0.0", 1, drained)}, leader: "a",
			problems: []string{"node b does not answer: connection refused", "no node that answers takes traffic: `lbctl node undrain NODE`"},
			warnings: []string{"node a is drained by ann since 1970-01-01T00:00:00Z: kernel", "node c is drained by ann since 1970-01-01T00:00:00Z: kernel"},
		},
		"stale": {
			nodes: []*lbdv1.NodeStatus{
				node("a", "1.0.0", 1, func(n *lbdv1.NodeStatus) { n.StaleMs = 2000 }),
				node("b", "1.0.0", 1, func(n *lbdv1.NodeStatus) { n.StaleMs = 61_400 }),
				node("c", "1.0.0", 1, func(n *lbdv1.NodeStatus) { n.StaleMs = -1 }),
			},
			leader:   "a",
			problems: []string{"node b has not heard of a leader for 1m1s", "node c has not heard of a leader since its start: it serves what it has stored"},
		},
		"lagging": {
			nodes: []*lbdv1.NodeStatus{
				node("a", "1.0.0", 1, func(n *lbdv1.NodeStatus) { n.StoredRevision, n.ServedRevision = 5, 5 }),
				node("b", "1.0.0", 1, func(n *lbdv1.NodeStatus) { n.StoredRevision, n.ServedRevision = 4, 4 }),
				node("c", "1.0.0", 1, func(n *lbdv1.NodeStatus) {
					n.StoredRevision, n.ServedRevision, n.Problems = 5, 5, []string{"a loop is stalled: see the log"}
				}),
			},
			leader:   "a",
			problems: []string{"node b has revision 4, others have 5", "node c: a loop is stalled: see the log"},
		},
		"mixed": {
			nodes:  []*lbdv1.NodeStatus{node("a", "1.1.0", 2), node("b", "1.0.0", 1), node("c", "1.1.0", 2)},
			leader: "a",
			warnings: []string{
				"nodes run different builds: 1.0.0 on b; 1.1.0 on a, c",
				"entries of gate 2 are not written yet: b would not read them; until then all nodes can go back to the older build",
			},
		},
	} {
		c := &lbdv1.ClusterServiceGetStatusResponse{Leader: test.leader, Gate: 1, Nodes: test.nodes}
		newest := int64(0)
		for _, n := range test.nodes {
			newest = max(newest, n.GetStoredRevision())
		}
		judge(c, newest)
		if !slices.Equal(c.GetProblems(), test.problems) || !slices.Equal(c.GetWarnings(), test.warnings) {
			t.Errorf("%s: problems %q, warnings %q", name, c.GetProblems(), c.GetWarnings())
		}
	}
}

// A node that is silent is waited for once, also while another one is asked again as it is behind.
func TestStatusWaitsOnceForTheSilent(t *testing.T) {
	c := newNodes(t, 3)
	n := c.nodes[0]
	c.moves(3, deafAddress(t))
	n.mustApply(owner("web"), web()...) // nobody serves it
	n.server.guard.fleet.patience = 2 * time.Second
	begun := time.Now()
	answer, err := lbdv1.NewClusterServiceClient(n.conn).GetStatus(n.ctx(), &lbdv1.ClusterServiceGetStatusRequest{})
	took := time.Since(begun)
	if err != nil {
		t.Fatal(err)
	}
	if n2, n3 := answer.GetNodes()[1], answer.GetNodes()[2]; !n2.GetReachable() || n2.GetServedRevision() != 0 || n3.GetReachable() {
		t.Errorf("edge-2 %v, edge-3 %v", n2, n3)
	}
	if took < 2*time.Second || took >= 4*time.Second {
		t.Errorf("it took %v, want the patience of 2s once, and a second for who is behind", took)
	}
}

// deafAddress is one where connections are taken, and nothing is ever said.
func deafAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String()
}
