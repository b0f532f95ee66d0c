package state

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// The state lives in every node's memory and on its disk, so it has a budget, cluster_settings.state_bytes. What counts is
// the encoded size of the records with their keys: every node finds the same. Changes under way in parts do not count; they
// have a bound of their own.

// StateBytesDefault is the budget where the settings say nothing.
const StateBytesDefault = 1 << 30

// Usage is what the records take, in bytes.
type Usage struct {
	// Resources is what is stored now.
	Resources int64
	// History is the revisions, and the resources as they were before each.
	History int64
	// Other is credentials, overrides, remembered requests and the audit, each of which is bounded by number.
	Other int64
}

// Total is all of it.
func (u Usage) Total() int64 { return u.Resources + u.History + u.Other }

// Usage is what the records take. It costs nothing: it is kept with each change.
func (s *State) Usage() Usage {
	u := Usage{
		Resources: s.counter(sizeIndex(resourcePrefix)),
		History:   s.counter(sizeIndex(revisionPrefix)) + s.counter(sizeIndex(beforePrefix)),
	}
	for _, prefix := range []string{authorityPrefix, auditPrefix, clusterPrefix, joinTokenPrefix, nodePrefix, overridePrefix, pendingPrefix, removedPrefix, requestPrefix, ticketKeyPrefix, tokenPrefix} {
		u.Other += s.counter(sizeIndex(prefix))
	}
	return u
}

// StateBytes is the budget in force.
func (s *State) StateBytes() int64 {
	stored, _ := s.Get(ClusterSettings, "")
	return stateBytesOf(stored.GetResource().GetClusterSettings())
}

func stateBytesOf(m *lbdv1.ClusterSettings) int64 {
	if n := m.GetStateBytes(); n != 0 {
		return n
	}
	return StateBytesDefault
}

func recordBytes(key string, record proto.Message) int64 { return int64(len(key) + proto.Size(record)) }

// withinBudget refuses a state that takes more than its budget and than the one before, by what was changed. Whoever changes nothing,
// only deletes, or sets the budget, is always let through: these lead out. (A deletion takes room, too: its history.)
func (s *State) withinBudget(next *State, changes []*lbdv1.Change) error {
	used, budget := next.Usage(), next.StateBytes()
	if used.Total() <= budget || used.Total() <= s.Usage().Total() {
		return nil
	}
	stores := false
	for _, c := range changes {
		stores = stores || c.GetAction() != lbdv1.ChangeAction_CHANGE_ACTION_DELETE && Kind(c.GetKind()) != ClusterSettings
	}
	if !stores {
		return nil
	}
	return invalid("resources", "would take the state to %s of the %s that `state_bytes` of cluster_settings grants (resources %s, history %s, other %s): "+
		"delete what is not needed, change less often so that history stays short, or raise `state_bytes`",
		inMiB(used.Total()), inMiB(budget), inMiB(used.Resources), inMiB(used.History), inMiB(used.Other))
}

// pastOf is what one owner's history takes: its revisions, oldest first, and the bytes of each with what it remembers.
type pastOf struct {
	owner   string
	numbers []int64
	bytes   int64
}

// forgetForRoom makes room in a state that takes more than its budget, some more than is needed: of whoever has the longest history the
// oldest revisions go, but for the last few of each owner. So one owner's changes do not keep the others from theirs. ok is false
// where that is not enough.
func (s *State) forgetForRoom() (next *State, warning string, ok bool) {
	budget := s.StateBytes()
	over := s.Usage().Total() - budget
	need := over + budget/roomShare
	sizes, pasts := map[int64]int64{}, map[string]*pastOf{}
	for key, m := range s.prefix(beforePrefix) {
		sizes[m.(*raftv1.Before).GetRevision()] += recordBytes(key, m)
	}
	for key, m := range s.prefix(revisionPrefix) {
		r := m.(*lbdv1.Revision)
		sizes[r.GetNumber()] += recordBytes(key, m)
		p := pasts[r.GetOwner()]
		if p == nil {
			p = &pastOf{owner: r.GetOwner()}
			pasts[p.owner] = p
		}
		p.numbers = append(p.numbers, r.GetNumber())
		p.bytes += sizes[r.GetNumber()]
	}
	e, freed, forgotten := s.edit(), int64(0), map[string]int{}
	for freed < need {
		var most *pastOf
		for _, p := range pasts {
			if len(p.numbers) > revisionsForRoomMin && (most == nil || p.bytes > most.bytes || p.bytes == most.bytes && p.owner < most.owner) {
				most = p
			}
		}
		if most == nil {
			break
		}
		n := most.numbers[0]
		e.forgetRevision(s, n)
		most.numbers, most.bytes, freed = most.numbers[1:], most.bytes-sizes[n], freed+sizes[n]
		forgotten[most.owner]++
	}
	if freed < over {
		return s, "", false
	}
	var parts []string
	for _, owner := range slices.Sorted(maps.Keys(forgotten)) {
		parts = append(parts, fmt.Sprintf("%d of owner `%s`", forgotten[owner], owner))
	}
	return e.state(), "the state is at its `state_bytes`: the oldest revisions are forgotten before their time, " + strings.Join(parts, ", "), true
}

// checkBudget refuses a budget that is spent already, unless it is as it was.
func (c *checker) checkBudget(s *lbdv1.ClusterSettings) {
	if c.offline || stateBytesOf(s) == c.base.StateBytes() {
		return
	}
	if used := c.base.Usage().Total(); used > stateBytesOf(s) {
		c.errorf("state_bytes", "is less than the %d bytes that are in use", used)
	}
}

func inMiB(bytes int64) string { return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20)) }
