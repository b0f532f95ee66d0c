package main

import (
	"slices"
	"strings"
	"testing"

	lbdv1 "lbd/proto/lbd/v1"
)

// TestPoolWithoutBackends: status names a pool that answers nobody and what keeps its backends out; events, who said so and why.
func TestPoolWithoutBackends(t *testing.T) {
	r := newRig(t)
	problems := func() []string {
		return slices.DeleteFunc(r.Status().GetProblems(), func(p string) bool { return !strings.HasPrefix(p, "pool p: ") })
	}
	r.propose(&lbdv1.Pool{Name: "p", Backends: []*lbdv1.Backend{{Address: "10.0.0.1:80"}, {Address: "10.0.0.2:80"}}})
	r.publish()
	drain := &lbdv1.Override{
		Pool: "p", Address: "10.0.0.1:80", Reason: "new disk", What: &lbdv1.Override_State{State: lbdv1.BackendState_BACKEND_STATE_DRAIN},
	}
	r.override(drain)
	r.publish()
	if got := problems(); len(got) != 0 {
		t.Errorf("one of two takes requests: %q", got)
	}
	r.override(&lbdv1.Override{Pool: "p", Address: "10.0.0.2:80", What: &lbdv1.Override_Weight{Weight: 0}})
	r.override(&lbdv1.Override{Pool: "p", Address: "10.0.0.1:80", What: &lbdv1.Override_Weight{Weight: 2}, Reason: "half"})
	r.publish()
	if got := problems(); !slices.Equal(got, []string{"pool p: no backend takes requests: 1 drained by operators, 1 of weight 0"}) {
		t.Errorf("none takes requests: %q", got)
	}
	var told []string
	past, _ := r.Events(r.started)
	for _, e := range past {
		if e.GetType() == "override_set" {
			told = append(told, e.GetResource()+": "+e.GetMessage())
		}
	}
	slices.Sort(told)
	want := []string{
		"pools/p/10.0.0.1:80: drains, by test (new disk)",
		"pools/p/10.0.0.1:80: drains, by test (new disk); weight 2, by test (half)",
		"pools/p/10.0.0.2:80: weight 0, by test",
	}
	if !slices.Equal(told, want) {
		t.Errorf("events %q, want %q", told, want)
	}
}

func TestUnserved(t *testing.T) {
	of := func(pool, why string) *lbdv1.BackendStatus {
		return &lbdv1.BackendStatus{Pool: pool, Weight: 1, IneligibleReason: why}
	}
	inMaintenance := of("dead", "down: refused")
	inMaintenance.State = lbdv1.BackendState_BACKEND_STATE_MAINTENANCE
	well := of("well", "")
	well.Eligible = true
	got := unserved([]*lbdv1.BackendStatus{
		of("dead", "down: refused"), of("dead", "down"), of("dead", "ejected until noon"), of("dead", "no address: NXDOMAIN"), inMaintenance,
		of("well", "down"), well,
	})
	if want := []string{"pool dead: no backend takes requests: 2 down, 1 ejected, 1 in maintenance, 1 without an address"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestExpiryLevels: a month ahead the doctor warns, and from when status says so it is an error.
func TestExpiryLevels(t *testing.T) {
	r := newRig(t)
	c := r.certificates.Current().Get("default")
	for left, level := range map[int]lbdv1.FindingLevel{31: levelOK, 29: levelWarning, 15: levelWarning, 13: levelError, -1: levelError} {
		all := r.ending(c.NotAfter().AddDate(0, 0, -left))
		if len(all) != 1 {
			t.Fatalf("%d days ahead: %v", left, all)
		}
		text := "certificates/default expire"
		if level == levelOK {
			text = "no certificate ends within 30 days"
		}
		says(t, all[0], level, text)
	}
}
