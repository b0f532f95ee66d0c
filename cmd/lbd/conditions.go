package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"lbd/cluster/state"
	lbdv1 "lbd/proto/lbd/v1"
)

// Conditions implements rpc.Observer: whether this node serves a resource as it is stored, and of a pool, whether anybody answers.
func (a *appliance) Conditions(kind, name string) []*lbdv1.Condition {
	out := []*lbdv1.Condition{a.programmed(kind, name)}
	if state.Kind(kind) == state.Pools {
		out = append(out, a.healthy(name))
	}
	return out
}

func (a *appliance) programmed(kind, name string) *lbdv1.Condition {
	c := &lbdv1.Condition{Type: "Programmed", Status: true, Reason: "SERVED"}
	progress := a.Progress()
	stored, _ := a.node.State().Get(state.Kind(kind), name)
	behind := stored.GetResource().GetRevision() > progress.Revision
	if behind {
		c.Status, c.Reason, c.Message = false, "PENDING", fmt.Sprintf("revision %d is served, this one is about to be", progress.Revision)
	}
	for _, r := range progress.Refused {
		if r.Kind != "" && (r.Kind != kind || r.Name != name) || r.Kind == "" && !behind {
			continue // of a revision that is refused what was so before is served
		}
		c.Status, c.Message = false, r.Reason
		switch {
		case r.Kind == "":
			c.Reason = "REVISION_REFUSED"
		case state.Kind(kind) == state.Listeners:
			c.Reason = listenerReason(r.Reason)
		default:
			c.Reason = "NOT_SERVED"
		}
	}
	return c
}

func (a *appliance) healthy(pool string) *lbdv1.Condition {
	eligible, all := 0, 0
	for _, b := range a.Backends(pool) {
		all++
		if b.GetEligible() {
			eligible++
		}
	}
	c := &lbdv1.Condition{Type: "Healthy", Status: eligible > 0, Reason: "ELIGIBLE_BACKENDS", Message: fmt.Sprintf("%d of %d backends take requests", eligible, all)}
	if eligible == 0 {
		c.Reason = "NO_ELIGIBLE_BACKEND"
	}
	if problem := a.discoveryProblem(a.view.Load().pools[pool]); problem != "" {
		c.Message += "; " + problem
	}
	return c
}

// discoveryProblem says why a pool's discovery has no good answer; empty if it has, or there is none.
func (a *appliance) discoveryProblem(p pool) string {
	d := p.spec.GetDiscovery()
	if d == nil {
		return ""
	}
	problem := a.resolver.problem(a.view.Load().discoveryOf(p).String())
	if problem == "" {
		return ""
	}
	problem = "discovery of " + cmp.Or(d.GetSrv(), d.GetHost()) + ": " + problem
	if len(p.backends) > 0 {
		problem += "; the last good answer stays"
	}
	return problem
}

// CertificateUse implements rpc.Observer.
func (a *appliance) CertificateUse(name string) (listeners, shadowedBy []string) {
	use := a.terminator.Use(name)
	for _, host := range slices.Sorted(maps.Keys(use.ShadowedBy)) {
		shadowedBy = append(shadowedBy, host+": "+use.ShadowedBy[host])
	}
	return use.Listeners, shadowedBy
}
