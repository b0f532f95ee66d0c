package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"lbd/cluster/state"
	"lbd/lb"
	lbdv1 "lbd/proto/lbd/v1"
)

// override is what operators have said of one backend: its state, its weight, or both.
type override struct {
	state  lb.BackendState
	since  time.Time // of the state
	cutOff bool
	weight *int32
	here   bool // some of it was said on this node alone
	// stateBy and weightBy say who said so and why: for events alone, nothing that is served depends on them.
	stateBy, weightBy string
}

// overrides are those in force, by pool and address.
type overrides map[string]map[string]override

// overridesAt are the stored ones that have not expired, those of this node alone over them, and when the next of them will; zero: none will.
func overridesAt(s *state.State, own []*lbdv1.Override, now time.Time) (in overrides, next time.Time) {
	in = overrides{}
	all := slices.AppendSeq([]*lbdv1.Override(nil), s.Overrides(""))
	for _, o := range append(all, own...) {
		if end := o.GetExpireTime(); end != nil {
			if !end.AsTime().After(now) {
				continue
			}
			if next.IsZero() || end.AsTime().Before(next) {
				next = end.AsTime()
			}
		}
		in.add(o)
	}
	return in, next
}

func (in overrides) add(o *lbdv1.Override) {
	if in[o.GetPool()] == nil {
		in[o.GetPool()] = map[string]override{}
	}
	set := in[o.GetPool()][o.GetAddress()]
	switch what := o.GetWhat().(type) {
	case *lbdv1.Override_Weight:
		set.weight, set.weightBy = &what.Weight, saidBy(o)
	case *lbdv1.Override_State:
		set.state, set.since, set.cutOff = backendStates[what.State], o.GetCreateTime().AsTime(), o.GetCloseConnections()
		set.stateBy = saidBy(o)
	}
	set.here = set.here || o.GetNode() != ""
	in[o.GetPool()][o.GetAddress()] = set
}

// saidBy is an override's author and, if there is one, its reason.
func saidBy(o *lbdv1.Override) string {
	by := ", by " + o.GetAuthor()
	if o.GetNode() != "" {
		by = ", on this node alone" + by
	}
	if o.GetReason() != "" {
		by += " (" + o.GetReason() + ")"
	}
	return by
}

var backendStates = map[lbdv1.BackendState]lb.BackendState{
	lbdv1.BackendState_BACKEND_STATE_DRAIN:       lb.Drain,
	lbdv1.BackendState_BACKEND_STATE_MAINTENANCE: lb.InMaintenance,
}

// moved are the pools whose overrides differ.
func (in overrides) moved(before overrides) map[string]bool {
	out := map[string]bool{}
	for pool := range in {
		if !maps.EqualFunc(in[pool], before[pool], override.equal) {
			out[pool] = true
		}
	}
	for pool := range before {
		if _, ok := in[pool]; !ok {
			out[pool] = true
		}
	}
	return out
}

func (o override) equal(other override) bool {
	if (o.weight == nil) != (other.weight == nil) || o.weight != nil && *o.weight != *other.weight {
		return false
	}
	return o.state == other.state && o.since.Equal(other.since) && o.cutOff == other.cutOff
}

// tellOverrides makes events of what operators have said, and of what has expired. At a start nothing is new.
func (a *appliance) tellOverrides(now overrides, moved map[string]bool) {
	if a.current.revision == 0 {
		return
	}
	for pool := range moved {
		before := a.current.overrides[pool]
		for address, o := range now[pool] {
			if !o.equal(before[address]) {
				a.events.add("override_set", "pools/"+pool+"/"+address, o.String())
			}
		}
		stored := map[string]bool{} // an override that has expired stays stored until the next command
		for o := range a.node.State().Overrides(pool) {
			stored[o.GetAddress()] = true
		}
		for _, o := range a.overlay.all() {
			if o.GetPool() == pool {
				stored[o.GetAddress()] = true
			}
		}
		for address := range before {
			if _, ok := now[pool][address]; ok {
				continue
			}
			kind := "override_cleared"
			if stored[address] {
				kind = "override_expired"
			}
			a.events.add(kind, "pools/"+pool+"/"+address, "as documents and health say")
		}
	}
}

// String is what an event says of it: "drains, by uid 1000 (new disk); weight 3, by root".
func (o override) String() string {
	var parts []string
	switch o.state {
	case lb.Drain:
		parts = append(parts, "drains"+o.stateBy)
	case lb.InMaintenance:
		parts = append(parts, "in maintenance"+o.stateBy)
	default:
		if o.stateBy != "" { // over what is said to all nodes
			parts = append(parts, "ready"+o.stateBy)
		}
	}
	if o.weight != nil {
		parts = append(parts, fmt.Sprintf("weight %d%s", *o.weight, o.weightBy))
	}
	return strings.Join(parts, "; ")
}
