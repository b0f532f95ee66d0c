package rpc

import (
	"errors"
	"io"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lbdv1 "lbd/proto/lbd/v1"
)

// noted is who has noted what, as a node tells it that is asked for one node's.
func (n *nodeRig) noted(of string) (lines []string, err error) {
	stream, err := n.auth.ListAudit(n.ctx(), &lbdv1.ListAuditRequest{Node: of})
	if err != nil {
		return nil, err
	}
	for {
		e, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return lines, nil
		}
		if err != nil {
			return nil, err
		}
		lines = append(lines, e.GetNode()+" "+e.GetMethod()+" "+e.GetResult())
	}
}

// TestAuditOfOneNode: what that node has noted by itself, whichever node is asked, and nothing else.
func TestAuditOfOneNode(t *testing.T) {
	c := newNodes(t, 2)
	first, second := c.nodes[0], c.nodes[1]
	first.mustApply(owner("web"), web()...)
	if _, err := second.whoAmI(second.dialPort(nil)); status.Code(err) != codes.Unauthenticated {
		t.Fatal(err)
	}
	for _, asked := range c.nodes {
		for of, want := range map[string][]string{"edge-1": nil, "edge-2": {"edge-2 AuthService/WhoAmI unauthenticated"}, second.id: {"edge-2 AuthService/WhoAmI unauthenticated"}} {
			if got, err := asked.noted(of); err != nil || !slices.Equal(got, want) {
				t.Errorf("of %s by %s: %q, %v", of, asked.name, got, err)
			}
		}
		if _, err := asked.noted("edge-9"); failureOf(t, err).code != codes.NotFound {
			t.Errorf("of nobody: %v", err)
		}
	}
	_ = second.server.Close()
	if _, err := first.noted("edge-2"); failureOf(t, err).reason != reasonUnreached {
		t.Errorf("of one that is gone: %v", err)
	}
}

// TestGetOfOneNode: what that node has, which may be behind.
func TestGetOfOneNode(t *testing.T) {
	c := newNodes(t, 2)
	first := c.nodes[0]
	c.hold()
	first.mustApply(owner("web"), web()...)
	get := func(node string) (*lbdv1.GetResponse, error) {
		return first.config.Get(first.ctx(), &lbdv1.GetRequest{Kind: "pools", Name: "shop", Node: node})
	}
	if _, err := get("edge-2"); failureOf(t, err).code != codes.NotFound {
		t.Errorf("of the one that is behind: %v", err)
	}
	c.lead(2) // it has everything now
	answer, err := get("edge-2")
	if err != nil || len(answer.GetConditions()) == 0 {
		t.Fatalf("%v, %v", answer, err)
	}
	for _, cond := range answer.GetConditions() {
		if cond.GetNode() != "edge-2" {
			t.Errorf("a condition of %s", cond.GetNode())
		}
	}
}

// TestRefusedByTheLeader: a call that is passed on is noted by who has refused it, once.
func TestRefusedByTheLeader(t *testing.T) {
	c := newNodes(t, 2)
	_, secret := c.nodes[0].makeToken(lbdv1.Role_ROLE_EDITOR, "shop")
	byToken := c.nodes[1].as(c.nodes[1].dialPort(nil, withToken(secret)))
	if _, err := byToken.apply(owner("web"), web()...); failureOf(t, err).code != codes.PermissionDenied {
		t.Fatal(err)
	}
	for i, want := range []int{1, 0} {
		if got, err := c.nodes[i].noted(c.nodes[i].name); err != nil || len(got) != want {
			t.Errorf("%s has noted %q, %v", c.nodes[i].name, got, err)
		}
	}
}
