package rpc

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	lbdv1 "lbd/proto/lbd/v1"
)

func TestOverrides(t *testing.T) {
	r := newRig(t)
	r.mustApply(owner("web"), pool("shop", "192.0.2.1:80", "192.0.2.2:80"))
	drain := &lbdv1.SetStateRequest{
		Pool: "shop", Address: "192.0.2.1:80", State: lbdv1.BackendState_BACKEND_STATE_DRAIN, Reason: "disk",
		ExpireTime: timestamppb.New(now.Add(time.Hour)), CloseConnections: true, RequestId: "d",
	}
	for range 2 { // the second is a retry
		answer, err := r.backends.SetState(r.ctx(), drain)
		if err != nil {
			t.Fatal(err)
		}
		if o := answer.GetOverrides(); len(o) != 1 || o[0].GetState() != drain.State || o[0].GetReason() != "disk" || !o[0].GetCloseConnections() ||
			!strings.HasPrefix(o[0].GetAuthor(), "node/n1 uid=") || !o[0].GetCreateTime().AsTime().Equal(now) {
			t.Errorf("in force: %v", o)
		}
	}
	weighed, err := r.backends.SetWeight(r.ctx(), &lbdv1.SetWeightRequest{Pool: "shop", Address: "192.0.2.1:80", Weight: 0})
	if err != nil {
		t.Fatal(err)
	}
	if len(weighed.GetOverrides()) != 2 {
		t.Errorf("in force: %v", weighed.GetOverrides())
	}
	if got := r.store.State().Revision(); got != 1 {
		t.Errorf("overrides made a revision: %d", got)
	}
	got, err := r.config.Get(r.ctx(), &lbdv1.GetRequest{Kind: "pools", Name: "shop"})
	if err != nil || len(got.GetOverrides()) != 2 {
		t.Errorf("overrides of the pool: %v, %v", got.GetOverrides(), err)
	}
	// One that has expired is in force no more, whether or not it has been dropped.
	r.advance(2 * time.Hour)
	listed, err := r.backends.ListOverrides(r.ctx(), &lbdv1.ListOverridesRequest{})
	if err != nil || len(listed.GetOverrides()) != 1 {
		t.Errorf("in force later: %v, %v", listed.GetOverrides(), err)
	}
	cleared, err := r.backends.ClearOverrides(r.ctx(), &lbdv1.ClearOverridesRequest{Pool: "shop"})
	if err != nil || len(cleared.GetOverrides()) != 1 || cleared.GetOverrides()[0].GetAddress() != "192.0.2.1:80" {
		t.Errorf("cleared: %v, %v", cleared.GetOverrides(), err)
	}
	ready, err := r.backends.SetState(r.ctx(), &lbdv1.SetStateRequest{Pool: "shop", Address: "192.0.2.1:80", State: lbdv1.BackendState_BACKEND_STATE_READY})
	if err != nil || len(ready.GetOverrides()) != 0 {
		t.Errorf("ready: %v, %v", ready.GetOverrides(), err)
	}
}

// TestReadyEndsEjection: it is asked for where there is no override, too, but not for a backend that nobody has, nor by anything but READY.
func TestReadyEndsEjection(t *testing.T) {
	r := newRig(t)
	r.mustApply(owner("web"), pool("shop", "b.example.com:80"))
	set := func(address string, state lbdv1.BackendState) error {
		_, err := r.backends.SetState(r.ctx(), &lbdv1.SetStateRequest{Pool: "shop", Address: address, State: state})
		return err
	}
	if err := set("b.example.com:80", lbdv1.BackendState_BACKEND_STATE_DRAIN); err != nil {
		t.Fatal(err)
	}
	if err := set("c.example.com:80", lbdv1.BackendState_BACKEND_STATE_READY); err == nil {
		t.Error("another backend was taken")
	}
	for range 2 {
		if err := set("B.example.com:80", lbdv1.BackendState_BACKEND_STATE_READY); err != nil {
			t.Fatal(err)
		}
	}
	if got := fmt.Sprint(r.observer.restored); got != "[shop/b.example.com:80 shop/b.example.com:80]" {
		t.Errorf("ended: %s", got)
	}
}

func TestOverridesRefused(t *testing.T) {
	r := newRig(t)
	r.mustApply(owner("web"), pool("shop", "192.0.2.1:80"))
	set := func(pool, address string, state lbdv1.BackendState, expires *timestamppb.Timestamp) error {
		_, err := r.backends.SetState(r.ctx(), &lbdv1.SetStateRequest{Pool: pool, Address: address, State: state, ExpireTime: expires})
		return err
	}
	drain := lbdv1.BackendState_BACKEND_STATE_DRAIN
	for what, test := range map[string]struct {
		err  error
		code codes.Code
		says string
	}{
		"no such pool":    {set("shp", "192.0.2.1:80", drain, nil), codes.NotFound, "did you mean `shop`"},
		"no such backend": {set("shop", "192.0.2.1:8", drain, nil), codes.NotFound, "did you mean `192.0.2.1:80`"},
		"no state":        {set("shop", "192.0.2.1:80", 0, nil), codes.InvalidArgument, "want `READY`"},
		"in the past":     {set("shop", "192.0.2.1:80", drain, timestamppb.New(now.Add(-time.Second))), codes.InvalidArgument, "expire_time"},
		"no pool":         {set("", "192.0.2.1:80", drain, nil), codes.InvalidArgument, "pool"},
	} {
		if f := failureOf(t, test.err); f.code != test.code || !strings.Contains(f.message, test.says) {
			t.Errorf("%s: %v, want %v", what, f, test.code)
		}
	}
	_, err := r.backends.SetWeight(r.ctx(), &lbdv1.SetWeightRequest{Pool: "shop", Address: "192.0.2.1:80", Weight: 300})
	if f := failureOf(t, err); f.code != codes.InvalidArgument || f.fields["weight"] == "" {
		t.Errorf("a weight out of range: %v", f)
	}
	if _, err := r.backends.ListOverrides(r.ctx(), &lbdv1.ListOverridesRequest{Pool: "shp"}); failureOf(t, err).code != codes.NotFound {
		t.Errorf("overrides of no pool: %v", err)
	}
	if _, err := r.backends.ClearOverrides(r.ctx(), &lbdv1.ClearOverridesRequest{}); failureOf(t, err).code != codes.InvalidArgument {
		t.Errorf("clear nothing: %v", err)
	}
}

func TestWatchStatus(t *testing.T) {
	r := newRig(t)
	r.mustApply(owner("web"), pool("shop", "192.0.2.1:80"))
	show := func(inFlight int64) {
		r.observer.mu.Lock()
		defer r.observer.mu.Unlock()
		r.observer.backends = []*lbdv1.BackendStatus{{Pool: "shop", Address: "192.0.2.1:80", InFlight: inFlight}}
	}
	show(1)
	stream, err := r.backends.WatchStatus(r.ctx(), &lbdv1.WatchStatusRequest{Pool: "shop"})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []int64{1, 2, 3} { // one by one: what is the same is not sent again
		got, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if n := got.GetBackends()[0].GetInFlight(); n != want {
			t.Fatalf("%d in flight, want %d", n, want)
		}
		show(want + 1)
	}
	stream, err = r.backends.WatchStatus(r.ctx(), &lbdv1.WatchStatusRequest{Pool: "none"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); failureOf(t, err).code != codes.NotFound {
		t.Errorf("watch no pool: %v", err)
	}
}
