package rpc

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	lbdv1 "lbd/proto/lbd/v1"
)

type watchStream = grpc.ServerStreamingClient[lbdv1.WatchResponse]

func (r *rig) watch(req *lbdv1.WatchRequest) watchStream {
	r.t.Helper()
	stream, err := r.config.Watch(r.ctx(), req)
	if err != nil {
		r.t.Fatal(err)
	}
	return stream
}

// told reads what a watch says next.
func (r *rig) told(stream watchStream) string {
	r.t.Helper()
	got, err := stream.Recv()
	if err != nil {
		r.t.Fatal(err)
	}
	action := strings.ToLower(strings.TrimPrefix(got.GetAction().String(), "CHANGE_ACTION_"))
	return fmt.Sprintf("%s %s of %s at %d", action, got.GetName(), got.GetResource().GetOwner(), got.GetRevision())
}

func (r *rig) mustTell(stream watchStream, want ...string) {
	r.t.Helper()
	for _, w := range want {
		if got := r.told(stream); got != w {
			r.t.Fatalf("told %q, want %q", got, w)
		}
	}
}

func TestWatch(t *testing.T) {
	r := newRig(t)
	r.mustApply(owner("web"), append(web(), pool("b", "192.0.2.2:80"))...)
	all, one, webs := r.watch(&lbdv1.WatchRequest{Kind: "pool"}), r.watch(&lbdv1.WatchRequest{Kind: "pools", Name: "shop"}),
		r.watch(&lbdv1.WatchRequest{Kind: "pools", Owner: "web"})
	r.mustTell(all, "create b of web at 1", "create shop of web at 1")
	r.mustTell(one, "create shop of web at 1")
	r.mustTell(webs, "create b of web at 1", "create shop of web at 1")

	r.mustApply(owner("api"), pool("api", "192.0.2.3:80"))
	r.mustTell(all, "create api of api at 2")
	over := owner("api")
	over.TakeOver = true
	r.mustApply(over, pool("b", "192.0.2.4:80"))
	r.mustTell(all, "update b of api at 3")
	r.mustTell(webs, "delete b of web at 3") // it is not the owner's any more
	r.mustApply(owner("web"), listener("http", ":8081"), pool("shop", "192.0.2.5:80"))
	r.mustTell(all, "update shop of web at 4")
	r.mustTell(one, "update shop of web at 4")
	r.mustTell(webs, "update shop of web at 4")
	if _, err := r.send(append(r.request(owner("api")), deletes("pools/api"))); err != nil {
		t.Fatal(err)
	}
	r.mustTell(all, "delete api of api at 5")

	if _, err := r.watch(&lbdv1.WatchRequest{Kind: "pots"}).Recv(); failureOf(t, err).code != codes.InvalidArgument {
		t.Errorf("watch no kind: %v", err)
	}
	if err := r.server.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := one.Recv(); failureOf(t, err).reason != "STOPPING" {
		t.Errorf("a watch when the node stops: %v", err)
	}
}

func TestGetTellsOfUse(t *testing.T) {
	r := newRig(t)
	r.mustApply(owner("web"), web()...)
	got, err := r.config.Get(r.ctx(), &lbdv1.GetRequest{Kind: "pools", Name: "shop"})
	if err != nil {
		t.Fatal(err)
	}
	if used := strings.Join(got.GetUsedBy(), " "); used != "routes/shop" {
		t.Errorf("used by %q", used)
	}
	var conditions []string
	for _, c := range got.GetConditions() {
		conditions = append(conditions, fmt.Sprintf("%s %s %t", c.GetNode(), c.GetType(), c.GetStatus()))
	}
	if text := strings.Join(conditions, ", "); text != "n1 Accepted true, n1 ResolvedRefs true, n1 Programmed true" {
		t.Errorf("conditions %s", text)
	}
}
