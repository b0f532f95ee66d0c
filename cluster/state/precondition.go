package state

import (
	raftv1 "lbd/proto/lbd/raft/v1"
)

// checkPreconditions refuses a change that was made for another state than this one.
func (s *State) checkPreconditions(change *raftv1.ChangeCommand) error {
	if change.IfRevision != nil {
		if newest := s.Newest(change.GetOwner()); newest != change.GetIfRevision() {
			return &ConflictError{Reason: RevisionMoved, Owner: change.GetOwner(), Want: change.GetIfRevision(), Have: newest}
		}
	}
	moved := make(map[Key]string)
	for _, p := range change.GetIfEtags() {
		key, err := ParseKey(p.GetKey())
		if err != nil {
			return invalid("if_etags", "%s", err)
		}
		stored, _ := s.Get(key.Kind, key.Name)
		if stored.GetResource().GetEtag() != p.GetEtag() {
			moved[key] = stored.GetResource().GetOwner()
		}
	}
	if len(moved) == 0 {
		return nil
	}
	conflicts := conflictsOf(moved)
	for i, c := range conflicts {
		stored, _ := s.Get(c.Key.Kind, c.Key.Name)
		conflicts[i].Revision = stored.GetResource().GetRevision()
	}
	return &ConflictError{Reason: ResourceMoved, Conflicts: conflicts}
}
