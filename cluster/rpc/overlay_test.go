package rpc

import (
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	lbdv1 "lbd/proto/lbd/v1"
)

// fakeOverlay keeps what is said of this node alone, in the order in which it was said.
type fakeOverlay struct {
	mu   sync.Mutex
	said []*lbdv1.Override
}

func (f *fakeOverlay) Overrides(pool string) []*lbdv1.Override {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(f.said), func(o *lbdv1.Override) bool { return pool != "" && o.GetPool() != pool })
}

func (f *fakeOverlay) Say(o *lbdv1.Override) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.said = append(f.said, o)
}

func (f *fakeOverlay) Unsay(pool, address string, stateOnly bool) (ended []*lbdv1.Override) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.said = slices.DeleteFunc(f.said, func(o *lbdv1.Override) bool {
		_, isState := o.GetWhat().(*lbdv1.Override_State)
		meant := o.GetPool() == pool && (address == "" || o.GetAddress() == address) && (isState || !stateOnly)
		if meant {
			ended = append(ended, o)
		}
		return meant
	})
	return ended
}

// TestOverlay: what is said of one node alone is in force and noted there, seen with what is said of all, and goes into no log.
func TestOverlay(t *testing.T) {
	p := newPortRig(t, func(c *Config) { c.Overlay = &fakeOverlay{} })
	p.mustApply(owner("web"), pool("shop", "a.example.com:80"))
	version := p.store.State().OverrideVersion()
	drain := &lbdv1.SetStateRequest{
		Pool: "shop", Address: "A.example.com:80", State: lbdv1.BackendState_BACKEND_STATE_DRAIN, Reason: "disk",
		ExpireTime: timestamppb.New(now.Add(24 * time.Hour)), NodeOnly: true,
	}
	answer, err := p.backends.SetState(p.ctx(), drain)
	if err != nil {
		t.Fatal(err)
	}
	if o := answer.GetOverrides(); len(o) != 1 || o[0].GetNode() != "n1" || o[0].GetAddress() != "a.example.com:80" || !strings.HasPrefix(o[0].GetAuthor(), "node/n1 uid=") ||
		!o[0].GetCreateTime().AsTime().Equal(now) {
		t.Errorf("in force: %v", o)
	}
	if p.store.State().OverrideVersion() != version {
		t.Error("it went into the log")
	}
	if e := p.journal.last(); e.GetResult() != "accepted" || e.GetMessage() != "on this node alone: pools/shop a.example.com:80: drain until 2026-12-01T12:00:00Z (disk)" ||
		e.GetMethod() != "BackendService/SetState" || !strings.HasPrefix(e.GetAuthor(), "node/n1 uid=") {
		t.Errorf("audited as %v", e)
	}
	for refusedOnly, want := range map[bool]bool{false: true, true: false} {
		audit, err := p.auth.ListAudit(p.ctx(), &lbdv1.ListAuditRequest{RefusedOnly: refusedOnly})
		if err != nil {
			t.Fatal(err)
		}
		listed := false
		for e, err := audit.Recv(); !errors.Is(err, io.EOF); e, err = audit.Recv() {
			if err != nil {
				t.Fatal(err)
			}
			listed = listed || strings.HasPrefix(e.GetMessage(), "on this node alone") && e.GetNode() == "n1"
		}
		if listed != want {
			t.Errorf("with refused_only %v it is listed: %v", refusedOnly, listed)
		}
	}
	if _, err := p.backends.SetWeight(p.ctx(), &lbdv1.SetWeightRequest{
		Pool: "shop", Address: "a.example.com:80", Weight: 3, ExpireTime: timestamppb.New(now.Add(time.Hour)), NodeOnly: true,
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.backends.SetWeight(p.ctx(), &lbdv1.SetWeightRequest{Pool: "shop", Address: "a.example.com:80", Weight: 9}); err != nil {
		t.Fatal(err)
	}
	listed, err := p.backends.ListOverrides(p.ctx(), &lbdv1.ListOverridesRequest{Pool: "shop"})
	if o := listed.GetOverrides(); err != nil || len(o) != 3 || o[0].GetNode() != "" || o[1].GetNode() != "n1" {
		t.Errorf("in force: %v, %v", listed.GetOverrides(), err)
	}
	got, err := p.config.Get(p.ctx(), &lbdv1.GetRequest{Kind: "pools", Name: "shop"})
	if err != nil || len(got.GetOverrides()) != 3 {
		t.Errorf("overrides of the pool: %v, %v", got.GetOverrides(), err)
	}

	// Ready without an end ends the drain that was said here; the weights stay. What is cleared here leaves what is said of all.
	ready, err := p.backends.SetState(p.ctx(), &lbdv1.SetStateRequest{Pool: "shop", Address: "a.example.com:80", State: lbdv1.BackendState_BACKEND_STATE_READY, NodeOnly: true})
	if err != nil || len(ready.GetOverrides()) != 2 {
		t.Errorf("in force: %v, %v", ready.GetOverrides(), err)
	}
	cleared, err := p.backends.ClearOverrides(p.ctx(), &lbdv1.ClearOverridesRequest{Pool: "shop", NodeOnly: true})
	if err != nil || len(cleared.GetOverrides()) != 1 || cleared.GetOverrides()[0].GetWeight() != 3 {
		t.Errorf("cleared: %v, %v", cleared.GetOverrides(), err)
	}
	if o := overridesNow(p.store.State(), "shop", now); len(o) != 1 || o[0].GetWeight() != 9 {
		t.Errorf("replicated: %v", o)
	}
}

// TestOverlayRefused: only by the node's own socket, only one's own pools, and never for long.
func TestOverlayRefused(t *testing.T) {
	overlay := &fakeOverlay{}
	p := newPortRig(t, func(c *Config) { c.Overlay = overlay })
	p.mustApply(owner("web"), pool("shop", "192.0.2.1:80"))
	_, admin := p.makeToken(lbdv1.Role_ROLE_ADMIN)
	_, bound := p.makeToken(lbdv1.Role_ROLE_ADMIN, "other")
	say := func(r *rig, by lbdv1.BackendServiceClient, pool string, end *timestamppb.Timestamp) error {
		_, err := by.SetState(r.ctx(), &lbdv1.SetStateRequest{
			Pool: pool, Address: "192.0.2.1:80", State: lbdv1.BackendState_BACKEND_STATE_DRAIN, ExpireTime: end, NodeOnly: true,
		})
		return err
	}
	hour := timestamppb.New(now.Add(time.Hour))
	afar := lbdv1.NewBackendServiceClient(p.dialPort(nil, withToken(admin)))
	_, clearAfar := afar.ClearOverrides(p.ctx(), &lbdv1.ClearOverridesRequest{Pool: "shop", NodeOnly: true})
	_, clearNone := p.backends.ClearOverrides(p.ctx(), &lbdv1.ClearOverridesRequest{NodeOnly: true})
	_, clearUnknown := p.backends.ClearOverrides(p.ctx(), &lbdv1.ClearOverridesRequest{Pool: "shp", NodeOnly: true})
	for what, test := range map[string]struct {
		err  error
		code codes.Code
		says string
	}{
		"by the port":       {say(p.rig, afar, "shop", hour), codes.PermissionDenied, "control socket"},
		"clear by the port": {clearAfar, codes.PermissionDenied, "control socket"},
		"another's":         {say(p.rig, lbdv1.NewBackendServiceClient(p.dialSocket(withToken(bound))), "shop", hour), codes.PermissionDenied, "bound to owner `other`"},
		"no end":            {say(p.rig, p.backends, "shop", nil), codes.InvalidArgument, "at most 24h"},
		"a far end":         {say(p.rig, p.backends, "shop", timestamppb.New(now.Add(25*time.Hour))), codes.InvalidArgument, "at most 24h"},
		"a past end":        {say(p.rig, p.backends, "shop", timestamppb.New(now.Add(-time.Hour))), codes.InvalidArgument, "expire_time"},
		"no such pool":      {say(p.rig, p.backends, "shp", hour), codes.NotFound, "did you mean `shop`"},
		"clear nothing":     {clearNone, codes.InvalidArgument, "pool"},
		"clear no pool":     {clearUnknown, codes.NotFound, "shp"},
	} {
		if f := failureOf(t, test.err); f.code != test.code || !strings.Contains(f.message, test.says) {
			t.Errorf("%s: %v, want %v", what, f, test.code)
		}
	}
	if len(overlay.said) > 0 {
		t.Errorf("in force: %v", overlay.said)
	}
	plain := newRig(t)
	plain.mustApply(owner("web"), pool("shop", "192.0.2.1:80"))
	if f := failureOf(t, say(plain, plain.backends, "shop", hour)); f.code != codes.Unimplemented {
		t.Errorf("a node that keeps none: %v", f)
	}
}
