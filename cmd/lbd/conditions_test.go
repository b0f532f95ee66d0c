package main

import (
	"strings"
	"testing"

	lbdv1 "lbd/proto/lbd/v1"
)

func TestConditions(t *testing.T) {
	r := newRig(t)
	_, taken := held(t)
	want := func(kind, name, reason string) {
		t.Helper()
		c := r.Conditions(kind, name)[0]
		if c.GetType() != "Programmed" || c.GetReason() != reason || c.GetStatus() != (reason == "SERVED") {
			t.Errorf("%s/%s: %v, want %s", kind, name, c, reason)
		}
		if !c.GetStatus() && c.GetMessage() == "" {
			t.Errorf("%s/%s: no word why", kind, name)
		}
	}
	want("routes", "default", "SERVED")
	r.propose(respondRoute("default", 203, "http"), httpListener("extra", taken))
	want("routes", "default", "PENDING")
	want("listeners", "http", "SERVED")
	r.publish()
	want("routes", "default", "SERVED")
	want("listeners", "extra", "ADDRESS_IN_USE")

	panicsFor(t, "routes/bad")
	r.propose(respondRoute("bad", 204, "http"), respondRoute("more", 204, "http"))
	r.publish()
	want("routes", "bad", "REVISION_REFUSED")
	want("routes", "more", "REVISION_REFUSED")
	want("routes", "default", "SERVED") // as it was before
	want("listeners", "extra", "ADDRESS_IN_USE")

	// Nor is what follows the refused revision served, until it is.
	compileFault = nil
	r.propose(&lbdv1.Pool{Name: "p", Backends: []*lbdv1.Backend{{Address: "10.0.0.1:80"}, {Address: "never.invalid:80"}}})
	r.publish()
	want("routes", "bad", "SERVED")
	if c := r.Conditions("pools", "p")[1]; c.GetType() != "Healthy" || !c.GetStatus() || c.GetMessage() != "1 of 2 backends take requests" {
		t.Errorf("condition %v", c)
	}
	r.override(&lbdv1.Override{Pool: "p", Address: "10.0.0.1:80", What: &lbdv1.Override_State{State: lbdv1.BackendState_BACKEND_STATE_MAINTENANCE}})
	r.publish()
	if c := r.Conditions("pools", "p")[1]; c.GetStatus() || c.GetReason() != "NO_ELIGIBLE_BACKEND" || !strings.HasPrefix(c.GetMessage(), "0 of 2") {
		t.Errorf("condition %v", c)
	}
}
