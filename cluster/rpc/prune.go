package rpc

import (
	"lbd/cluster/state"
)

// prune deletes what an earlier apply of the owner made and this change does not name. What others refer to is left to be
// refused with all else that is wrong. The error refuses to delete more than half of what the owner has, unless allowed.
func (d *draft) prune(massDelete bool) error {
	named := map[state.Key]bool{}
	for _, up := range d.change.GetUpserts() {
		key, _ := state.KeyOf(up.GetResource())
		named[key] = true
	}
	for _, text := range d.change.GetDeletes() {
		if key, err := state.ParseKey(text); err == nil {
			named[key] = true
		}
	}
	owned, pruned := 0, 0
	for _, kind := range state.Kinds() {
		for stored := range d.base.All(kind) {
			if kind.Single() || stored.GetResource().GetOwner() != d.change.GetOwner() {
				continue
			}
			owned++
			if key, _ := state.KeyOf(stored.GetResource()); stored.GetApplied() && !named[key] {
				pruned++
				d.change.Deletes = append(d.change.Deletes, key.String())
			}
		}
	}
	if 2*pruned > owned && !massDelete {
		return notAllowed(reasonMassDelete, "prune would delete %d of the %d resources of owner `%s`, more than half: see the difference, and allow it if it is meant",
			pruned, owned, d.change.GetOwner())
	}
	return nil
}
