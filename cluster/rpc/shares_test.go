package rpc

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lbdv1 "lbd/proto/lbd/v1"
)

func TestShares(t *testing.T) {
	s := newShares(10, 4, 2)
	viewer := func(name string) Caller { return Caller{TokenID: name, Role: lbdv1.Role_ROLE_VIEWER} }
	root := Caller{Author: "node/n1 uid=0", Kind: kindSocket, Role: lbdv1.Role_ROLE_OPERATOR}
	shopAdmin := Caller{TokenID: "s", Role: lbdv1.Role_ROLE_ADMIN, Owners: []string{"shop"}}
	want := func(c Caller, amount, bound int64) {
		t.Helper()
		if got, ok := s.take(c, amount); ok != (bound == 0) || got != bound {
			t.Errorf("%s%s takes %d: %d, %t", c.TokenID, c.Author, amount, got, ok)
		}
	}
	want(viewer("a"), 4, 0)
	want(viewer("a"), 1, 4)
	want(viewer("b"), 4, 0)
	want(viewer("c"), 1, 8) // the rest is for others
	want(shopAdmin, 1, 8)
	want(root, 1, 0)
	want(Caller{TokenID: "d", Role: lbdv1.Role_ROLE_ADMIN}, 1, 0)
	want(root, 1, 10)
	s.give(viewer("a"), 3)
	want(viewer("c"), 1, 0)
	for c, amount := range map[string]int64{"a": 1, "b": 4, "c": 1, "d": 1} {
		s.give(viewer(c), amount)
	}
	s.give(root, 1)
	if s.used != 0 || len(s.by) != 0 {
		t.Errorf("after all was given back: %d, %v", s.used, s.by)
	}
}

// TestCallerKeepsNobodyOut: who stalls in all calls that he may have is refused, and nobody else; and his token can be taken back.
func TestCallerKeepsNobodyOut(t *testing.T) {
	p := newPortRig(t)
	token, secret := p.makeToken(lbdv1.Role_ROLE_VIEWER, "shop")
	_, other := p.makeToken(lbdv1.Role_ROLE_VIEWER)
	mine := p.dialPort(nil, withToken(secret))
	client := lbdv1.NewConfigServiceClient(mine)
	for range callsEachMax {
		stream, err := client.Diff(p.ctx())
		if err != nil {
			t.Fatal(err)
		}
		header := &lbdv1.ApplyRequest{Part: &lbdv1.ApplyRequest_Header{Header: owner("shop")}}
		if err := stream.Send(&lbdv1.DiffRequest{Part: header}); err != nil {
			t.Fatal(err)
		}
	}
	deadline := time.Now().Add(30 * time.Second)
	for {
		_, err := p.whoAmI(p.dialPort(nil, withToken(secret)))
		if status.Code(err) == codes.Unavailable {
			if text := status.Convert(err).Message(); text != fmt.Sprintf("%d calls are in flight and no more are taken", callsEachMax) {
				t.Errorf("the reason is %q", text)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("one caller has any number of calls: %v", err)
		}
	}
	if _, err := p.whoAmI(p.dialPort(nil, withToken(other))); err != nil {
		t.Errorf("another caller: %v", err)
	}
	if _, err := p.auth.RevokeToken(p.ctx(), &lbdv1.RevokeTokenRequest{Id: token.GetId()}); err != nil {
		t.Errorf("the token stays: %v", err)
	}
}
