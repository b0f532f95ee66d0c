package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lbdv1 "lbd/proto/lbd/v1"
)

// seenCluster answers what a test says of a cluster.
type seenCluster struct {
	lbdv1.UnimplementedClusterServiceServer
	status   *lbdv1.ClusterServiceGetStatusResponse
	verified *lbdv1.VerifyClusterResponse
}

func (f *seenCluster) GetStatus(context.Context, *lbdv1.ClusterServiceGetStatusRequest) (*lbdv1.ClusterServiceGetStatusResponse, error) {
	return f.status, nil
}

func (f *seenCluster) VerifyCluster(context.Context, *lbdv1.VerifyClusterRequest) (*lbdv1.VerifyClusterResponse, error) {
	return f.verified, nil
}

// seenNode is a voter that has answered, but for what is changed in it.
func seenNode(name, role, traffic string, change ...func(*lbdv1.NodeStatus)) *lbdv1.NodeStatus {
	n := &lbdv1.NodeStatus{
		Node: &lbdv1.Node{Id: "n-" + name, Name: name, Address: name + ":7443", Version: "1.2.3"}, Reachable: true, Voter: true, RaftRole: role, Traffic: traffic,
		StoredRevision: 7, ServedRevision: 7, AppliedIndex: 99, Connections: 3, StartTime: noon,
	}
	for _, c := range change {
		c(n)
	}
	return n
}

// gone makes a node one that does not answer.
func gone(n *lbdv1.NodeStatus) {
	n.Reachable, n.UnreachableReason, n.RaftRole, n.Traffic, n.StartTime = false, "connection refused", "", "", nil
}

func TestClusterStatusVerb(t *testing.T) {
	cluster := &seenCluster{status: &lbdv1.ClusterServiceGetStatusResponse{
		ClusterId: "c-1", Epoch: 1, Gate: 1, Leader: "edge-1", Voters: 2, Warnings: []string{"two voters"},
		Nodes: []*lbdv1.NodeStatus{seenNode("edge-1", "leader", "ready"), seenNode("edge-2", "follower", "ready")},
	}}
	(&fakeNode{cluster: cluster}).start(t)
	lbctl("", "cluster", "status").wants(t, 0, `cluster c-1, epoch 1, gate 1; leader: edge-1; 2 voters, of which 0 more may be lost

NODE    ROLE      VOTES  TRAFFIC  STORED  SERVED  CONNECTIONS  VERSION  ADDRESS      STARTED
edge-1  leader    yes    ready    7       7       3            1.2.3    edge-1:7443  2026-01-02T12:00:00Z
edge-2  follower  yes    ready    7       7       3            1.2.3    edge-2:7443  2026-01-02T12:00:00Z

warning: two voters
`, "")
	gone(cluster.status.Nodes[1])
	cluster.status.Problems, cluster.status.Warnings = []string{"no quorum"}, nil
	lbctl("", "cluster", "status").wants(t, 1, "edge-2  unreachable  yes    -        -       -       -            1.2.3    edge-2:7443  -\n\nproblem: no quorum\n", "")
	lbctl("", "cluster", "status", "-o", "name").wants(t, 1, "nodes/edge-1\nnodes/edge-2\n", "")
	lbctl("", "cluster", "status", "-o", "jsonpath={.nodes[1].unreachable_reason}").wants(t, 1, "connection refused\n", "")

	cluster.verified = &lbdv1.VerifyClusterResponse{Index: 99, Revision: 7, Equal: true, Nodes: []*lbdv1.NodeDigest{{Node: "edge-1", Digest: "ab"}, {Node: "edge-2", Digest: "ab"}}}
	lbctl("", "cluster", "verify").wants(t, 0, "entry 99, revision 7: all nodes hold the same\n", "")
	cluster.verified.Equal, cluster.verified.Nodes[1] = false, &lbdv1.NodeDigest{Node: "edge-2", Reason: "no answer within 5s"}
	lbctl("", "cluster", "verify").wants(t, 1, "edge-2  -       no answer within 5s\n\nentry 99, revision 7: not all nodes are known to hold the same\n", "")
}

func TestUpgradeCheck(t *testing.T) {
	cluster := &seenCluster{}
	(&fakeNode{cluster: cluster}).start(t)
	behind := func(n *lbdv1.NodeStatus) { n.ServedRevision = 6 }
	for name, c := range map[string]struct {
		nodes          []*lbdv1.NodeStatus
		code           int
		stdout, stderr string
	}{
		"may":    {[]*lbdv1.NodeStatus{seenNode("a", "follower", "ready"), seenNode("b", "leader", "ready"), seenNode("c", "follower", "ready")}, 0, "node a may be restarted\n", ""},
		"leads":  {[]*lbdv1.NodeStatus{seenNode("a", "leader", "ready"), seenNode("b", "follower", "ready"), seenNode("c", "follower", "ready")}, 0, "node a may be restarted\n", "it leads"},
		"alone":  {[]*lbdv1.NodeStatus{seenNode("a", "leader", "ready")}, 1, "node a must stay: no other node takes traffic\n", ""},
		"quorum": {[]*lbdv1.NodeStatus{seenNode("a", "leader", "ready"), seenNode("b", "follower", "ready")}, 1, "node a must stay: without it 1 of 2 voters are left, and changes take 2\n", ""},
		"silent": {
			[]*lbdv1.NodeStatus{seenNode("a", "leader", "ready"), seenNode("b", "follower", "ready"), seenNode("c", "", "", gone)}, 1,
			"node a must stay: node c does not answer: connection refused\nnode a must stay: without it 1 of 3 voters are left, and changes take 2\n", "",
		},
		"behind":  {[]*lbdv1.NodeStatus{seenNode("a", "leader", "ready"), seenNode("b", "follower", "ready", behind), seenNode("c", "follower", "ready")}, 1, "node a must stay: node b serves revision 6, not yet 7\n", ""},
		"drained": {[]*lbdv1.NodeStatus{seenNode("a", "leader", "drained"), seenNode("b", "follower", "drained"), seenNode("c", "follower", "drained")}, 0, "node a may be restarted\n", "it leads"},
	} {
		t.Run(name, func(t *testing.T) {
			cluster.status = &lbdv1.ClusterServiceGetStatusResponse{Nodes: c.nodes, Voters: int32(len(c.nodes))}
			lbctl("", "node", "upgrade-check", "a").wants(t, c.code, c.stdout, c.stderr)
		})
	}
	lbctl("", "node", "upgrade-check", "x").wants(t, 5, "", "there is no node `x`")
}

func TestSeveralNodesAnswer(t *testing.T) {
	unreached := []*lbdv1.UnreachedNode{{Node: "edge-3", Reason: "connection refused"}}
	const warning = "warning: node edge-3 does not answer: connection refused\n"
	node := &fakeNode{
		backends: func(*lbdv1.BackendServiceGetStatusRequest) (*lbdv1.BackendServiceGetStatusResponse, error) {
			return &lbdv1.BackendServiceGetStatusResponse{Unreached: unreached, Backends: []*lbdv1.BackendStatus{
				{Node: "edge-1", Pool: "shop", Address: "10.0.0.1:80", Eligible: true}, {Node: "edge-2", Pool: "shop", Address: "10.0.0.1:80", IneligibleReason: "down"},
			}}, nil
		},
		certs: func(*lbdv1.CertificateServiceGetStatusRequest) (*lbdv1.CertificateServiceGetStatusResponse, error) {
			return &lbdv1.CertificateServiceGetStatusResponse{Certificates: []*lbdv1.CertificateStatus{{Name: "shop", Serial: "0a", ServedSerial: "0a",
				Nodes: []*lbdv1.CertificateOnNode{{Node: "edge-1", ServedSerial: "0a"}, {Node: "edge-2", ServedSerial: "09"}}}}}, nil
		},
		fakeLive: fakeLive{
			doctor: func() (*lbdv1.RunDoctorResponse, error) {
				return &lbdv1.RunDoctorResponse{Findings: []*lbdv1.Finding{{Node: "edge-1", Check: "clock", Level: lbdv1.FindingLevel_FINDING_LEVEL_OK, Message: "exact"}}, Unreached: unreached}, nil
			},
			connections: func(*lbdv1.ListConnectionsRequest) (*lbdv1.ListConnectionsResponse, error) {
				return &lbdv1.ListConnectionsResponse{Connections: []*lbdv1.Connection{{Id: 3, Node: "edge-1"}, {Id: 3, Node: "edge-2"}}, Nodes: 2, Unreached: unreached}, nil
			},
			kill: func(r *lbdv1.KillConnectionsRequest) (*lbdv1.KillConnectionsResponse, error) {
				if len(r.GetIds()) > 0 && r.GetNode() == "" {
					return nil, refusal(t, &errdetails.BadRequest_FieldViolation{Field: "node", Description: "ids are each node's own: say whose they are"})
				}
				return &lbdv1.KillConnectionsResponse{Killed: int64(len(r.GetIds()))}, nil
			},
			metrics: func() (*lbdv1.GetMetricsResponse, error) {
				return nil, status.Error(codes.NotFound, "there is no node `edge-9`")
			},
		},
	}
	node.start(t)

	lbctl("", "backend", "status").wants(t, 0, "NODE    POOL  BACKEND      STATE", warning)
	lbctl("", "backend", "status").wants(t, 0, "edge-2  shop  10.0.0.1:80  READY", warning)
	lbctl("", "backend", "status", "--node", "edge-2").wants(t, 0, "edge-2", warning)
	if asked := received[*lbdv1.BackendServiceGetStatusRequest](node); asked[0].GetNode() != "*" || asked[2].GetNode() != "edge-2" {
		t.Errorf("asked %v", asked)
	}
	lbctl("", "cert", "status").wants(t, 0, "not on edge-2", "")
	lbctl("", "doctor").wants(t, 1, "OK     clock", warning)
	lbctl("", "connections", "list", "-o", "name").wants(t, 0, "edge-1/3\nedge-2/3\n", warning)
	lbctl("", "connections", "kill", "3", "--yes").wants(t, 2, "", "write NODE/ID")
	lbctl("", "connections", "kill", "edge-1/3", "edge-2/3", "edge-2/4", "--yes").wants(t, 0, "closed 3 connections\n", "")
	kills := received[*lbdv1.KillConnectionsRequest](node)
	if len(kills) != 3 || kills[1].GetNode() != "edge-1" || len(kills[1].GetIds()) != 1 || kills[2].GetNode() != "edge-2" || len(kills[2].GetIds()) != 2 {
		t.Errorf("asked %v", kills)
	}
	lbctl("", "connections", "kill", "--client", "192.0.2.7", "--yes").wants(t, 0, "closed 0 connections\n", "")
	if kills := received[*lbdv1.KillConnectionsRequest](node); kills[3].GetNode() != "*" {
		t.Errorf("asked %v", kills[3])
	}
	lbctl("", "metrics", "--node", "edge-9").wants(t, 5, "", "no node `edge-9`")
	lbctl("", "metrics", "--node", "all").wants(t, 2, "", "--node takes one node's name")
}

// Where lbctl cannot reach a node's listener, the node's own proof is what there is.
func TestCertCheckAllNodes(t *testing.T) {
	_, pair := selfSigned(t, 0xa1)
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	t.Cleanup(func() { l.Close(); <-ended })
	go func() {
		defer close(ended)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conn.SetDeadline(time.Now().Add(10 * time.Second))
			_ = conn.(*tls.Conn).Handshake()
			conn.Close()
		}
	}()

	bound := map[string]string{"here": l.Addr().String(), "away": "127.0.0.1:443"}
	control := map[string]string{"here": "127.0.0.1:7443", "away": "192.0.2.9:7443"}
	served := map[string]string{"here": "a1", "away": "a1"}
	cluster := &seenCluster{status: &lbdv1.ClusterServiceGetStatusResponse{}}
	for _, name := range []string{"here", "away"} {
		cluster.status.Nodes = append(cluster.status.Nodes, seenNode(name, "follower", "ready", func(n *lbdv1.NodeStatus) { n.Node.Address = control[name] }))
	}
	asked := ""
	node := &fakeNode{
		cluster: cluster,
		certs: func(r *lbdv1.CertificateServiceGetStatusRequest) (*lbdv1.CertificateServiceGetStatusResponse, error) {
			return &lbdv1.CertificateServiceGetStatusResponse{Certificates: []*lbdv1.CertificateStatus{{Name: "shop", Serial: "a1", ServedSerial: served[r.GetNode()], Hosts: []string{"a.test"}}}}, nil
		},
		status: func() (*lbdv1.SystemServiceGetStatusResponse, error) {
			return &lbdv1.SystemServiceGetStatusResponse{Listeners: []*lbdv1.ListenerStatus{{Name: "https", Addresses: []string{bound[asked]}}}}, nil
		},
		fakeLive: fakeLive{testRoute: func(r *lbdv1.TestRouteRequest) (*lbdv1.TestRouteResponse, error) {
			asked = r.GetNode()
			return &lbdv1.TestRouteResponse{Node: asked, Listener: &lbdv1.ListenerDecision{Name: "https"}, Certificate: &lbdv1.CertificateDecision{Name: "shop"}}, nil
		}},
	}
	node.start(t)
	o := lbctl("", "cert", "check", "a.test", "--all-nodes")
	o.wants(t, 0, "node here: a.test on listener https ("+l.Addr().String()+"): shows certificates/shop, serial a1, as stored\n", "")
	if want := "as stored, as the node has proven to itself (its listener is on 127.0.0.1:443, of that machine alone)\n"; !strings.Contains(o.stdout, want) {
		t.Errorf("%q is not in %s", want, o.stdout)
	}
	served["away"] = "0b"
	lbctl("", "cert", "check", "a.test", "--all-nodes").wants(t, 1, "node away: a.test on listener https: shows serial 0b, but certificates/shop is stored with serial a1", "")
	served["away"] = "a1"
	l.Close()
	lbctl("", "cert", "check", "a.test", "--all-nodes").wants(t, 0, "as the node has proven to itself (no connection: connect: connection refused)", "")
	gone(cluster.status.Nodes[1])
	lbctl("", "cert", "check", "a.test", "--all-nodes").wants(t, 1, "node here: ", "warning: node away does not answer: connection refused")
}

func TestRouteTestEverywhere(t *testing.T) {
	cluster := &seenCluster{status: &lbdv1.ClusterServiceGetStatusResponse{Nodes: []*lbdv1.NodeStatus{seenNode("a", "leader", "ready"), seenNode("b", "follower", "ready")}}}
	takes := map[string]string{"a": "10.0.0.1:80", "b": "10.0.0.2:80"}
	node := &fakeNode{cluster: cluster, fakeLive: fakeLive{testRoute: func(r *lbdv1.TestRouteRequest) (*lbdv1.TestRouteResponse, error) {
		return &lbdv1.TestRouteResponse{Node: r.GetNode(), Action: "forward", Pool: "shop", Backend: takes[cmp.Or(r.GetNode(), "a")]}, nil
	}}}
	node.start(t)
	lbctl("", "route", "test", "http://a.test/", "--node", "all", "-o", "jsonpath={[*].backend}").wants(t, 0, "10.0.0.1:80\n10.0.0.2:80\n", "")
	takes["b"] = ""
	lbctl("", "route", "test", "http://a.test/", "--node", "all", "-o", "jsonpath={[*].node}").wants(t, 1, "a\nb\n", "")
	lbctl("", "route", "test", "http://a.test/", "--node", "a").wants(t, 0, "10.0.0.1:80", "")
	gone(cluster.status.Nodes[1])
	lbctl("", "route", "test", "http://a.test/", "--node", "all", "-o", "name").wants(t, 1, "pools/shop\n", "warning: node b does not answer")
	lbctl("", "route", "test", "http://a.test/", "--node", "all", "--diff", "1", "2").wants(t, 2, "", "--node takes one node's name")
}
