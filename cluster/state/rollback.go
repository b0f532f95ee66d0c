package state

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// Rollback is the change that takes everything that the owner's revisions after `to` changed back to what it was before
// them. to is a revision of whatever owner that is kept, 0 for before the owner's first, or negative for the one before its
// newest. The change has neither author nor time, and holds only for the state that it was made of: its preconditions see to that.
//
// A resource that was taken over from another owner becomes what it was, but is not given back.
//
// Errors: ErrNotKept where there is no such revision, or too little is kept of those since; *ConflictError
// (ChangedSince) where somebody else has changed one of the resources after the owner did.
func (s *State) Rollback(owner string, to int64) (*raftv1.ChangeCommand, error) {
	since, err := s.revisionsSince(owner, to)
	if err != nil {
		return nil, err
	}
	targets := make(map[Key]*raftv1.StoredResource)
	foreign := make(map[Key]string)
	for _, r := range since { // newest first, so that what the oldest one found stays
		for _, c := range r.GetChanges() {
			key := Key{Kind(c.GetKind()), c.GetName()}
			before, err := s.before(r, key)
			if err != nil {
				return nil, err
			}
			found, seen := targets[key]
			if !seen {
				found, _ = s.Get(key.Kind, key.Name)
			}
			if !madeBy(found, r.GetNumber(), c) {
				foreign[key] = s.changerOf(found)
			}
			targets[key] = before
		}
	}
	if err := withKeys(targets); err != nil {
		return nil, err
	}
	s.comeAndGone(owner, since, foreign)
	switch {
	case len(foreign) > 0:
		return nil, &ConflictError{Reason: ChangedSince, Conflicts: conflictsOf(foreign)}
	case to == 0 && s.ownsBeyond(owner, targets):
		return nil, fmt.Errorf("roll back: the first revisions of owner `%s` are forgotten, the oldest kept is %d: %w",
			owner, since[len(since)-1].GetNumber(), ErrNotKept)
	}
	return s.inverse(owner, targets), nil
}

// RollbackOnly is the change that takes what one revision of the owner changed back to what it was before, and leaves what
// came after it. It has neither author nor time, and holds only for the state that it was made of, as that of Rollback; what
// was taken over is not given back either.
//
// Errors: ErrNotKept where there is no such revision, it is another owner's, or it has not kept what was; *ConflictError
// (ChangedLater) where a later revision, the owner's own too, has changed one of the resources.
func (s *State) RollbackOnly(owner string, number int64) (*raftv1.ChangeCommand, error) {
	revision, err := s.revisionOf(owner, number)
	if err != nil {
		return nil, err
	}
	targets := make(map[Key]*raftv1.StoredResource)
	for _, c := range revision.GetChanges() {
		key := Key{Kind(c.GetKind()), c.GetName()}
		if targets[key], err = s.before(revision, key); err != nil {
			return nil, err
		}
	}
	if err := withKeys(targets); err != nil {
		return nil, err
	}
	if later := s.changedLater(revision); len(later) > 0 {
		return nil, &ConflictError{Reason: ChangedLater, Conflicts: later}
	}
	return s.inverse(owner, targets), nil
}

// withKeys refuses to bring back a certificate whose key was purged.
func withKeys(targets map[Key]*raftv1.StoredResource) error {
	for key, target := range targets {
		if purged(target) {
			return fmt.Errorf("roll back: the key of %s was purged: %w", key, ErrNotKept)
		}
	}
	return nil
}

// revisionOf finds one of the owner's revisions.
func (s *State) revisionOf(owner string, number int64) (*lbdv1.Revision, error) {
	revision, kept := s.RevisionAt(number)
	switch {
	case kept && revision.GetOwner() == owner:
		return revision, nil
	case kept:
		return nil, absentError(fmt.Sprintf("roll back: revision %d is one of owner `%s`, not of `%s`", number, revision.GetOwner(), owner))
	}
	own := slices.Collect(s.Revisions(owner))
	if len(own) == 0 {
		return nil, fmt.Errorf("roll back: owner `%s` has no revisions: %w", owner, ErrNotKept)
	}
	return nil, fmt.Errorf("roll back: owner `%s` has no revision %d, its newest are %s: %w", owner, number, newestNumbers(own), ErrNotKept)
}

// changedLater are the resources of a revision that have been changed after it, ordered by key, each with the newest revision
// that did it. What a forgotten revision has changed is known by what it left.
func (s *State) changedLater(revision *lbdv1.Revision) []Conflict {
	later := make(map[Key]Conflict)
	for _, c := range revision.GetChanges() {
		key := Key{Kind(c.GetKind()), c.GetName()}
		if found, _ := s.Get(key.Kind, key.Name); !madeBy(found, revision.GetNumber(), c) {
			later[key] = Conflict{key, s.changerOf(found), found.GetResource().GetRevision()}
		}
	}
	for r := range s.Revisions("") { // newest first; what was changed and changed back is found here alone
		if r.GetNumber() <= revision.GetNumber() {
			break
		}
		for _, c := range r.GetChanges() {
			key := Key{Kind(c.GetKind()), c.GetName()}
			if _, kept := s.Before(revision.GetNumber(), key); kept && later[key].Revision == 0 {
				later[key] = Conflict{key, r.GetOwner(), r.GetNumber()}
			}
		}
	}
	keys := slices.Collect(maps.Keys(later))
	sortKeys(keys)
	conflicts := make([]Conflict, len(keys))
	for i, key := range keys {
		conflicts[i] = later[key]
	}
	return conflicts
}

// before is what a revision found; nil: it made the resource. The error is ErrNotKept.
func (s *State) before(revision *lbdv1.Revision, key Key) (*raftv1.StoredResource, error) {
	before, kept := s.Before(revision.GetNumber(), key)
	if !kept {
		return nil, fmt.Errorf("roll back: revision %d has not kept %s as it was: %w", revision.GetNumber(), key, ErrNotKept)
	}
	return before, nil
}

// comeAndGone notes what somebody else has changed after the first of the owner's revisions that changed it, also where the
// owner found it as he had left it.
func (s *State) comeAndGone(owner string, since []*lbdv1.Revision, foreign map[Key]string) {
	first := make(map[Key]int64)
	for _, r := range since {
		for _, c := range r.GetChanges() {
			first[Key{Kind(c.GetKind()), c.GetName()}] = r.GetNumber()
		}
	}
	for r := range s.Revisions("") {
		if len(since) == 0 || r.GetNumber() < since[len(since)-1].GetNumber() {
			return
		}
		for _, c := range r.GetChanges() {
			key := Key{Kind(c.GetKind()), c.GetName()}
			if at, ours := first[key]; ours && r.GetOwner() != owner && r.GetNumber() > at {
				foreign[key] = r.GetOwner()
			}
		}
	}
}

// madeBy tells whether a resource as it was found is what the change of a revision had left.
func madeBy(found *raftv1.StoredResource, revision int64, c *lbdv1.Change) bool {
	if c.GetAction() == lbdv1.ChangeAction_CHANGE_ACTION_DELETE {
		return found == nil
	}
	return found != nil && found.GetResource().GetRevision() == revision
}

// changerOf is the owner of the revision that last changed a resource; for one that is gone or whose revision is forgotten
// its own owner, if any.
func (s *State) changerOf(stored *raftv1.StoredResource) string {
	if r, ok := s.RevisionAt(stored.GetResource().GetRevision()); ok {
		return r.GetOwner()
	}
	return stored.GetResource().GetOwner()
}

// revisionsSince are the owner's revisions after `to`, newest first.
func (s *State) revisionsSince(owner string, to int64) ([]*lbdv1.Revision, error) {
	var since []*lbdv1.Revision
	_, kept := s.RevisionAt(to)
	for r := range s.Revisions(owner) {
		if to < 0 && len(since) == 1 || kept && r.GetNumber() <= to {
			return since, nil
		}
		since = append(since, r)
	}
	switch {
	case len(since) == 0:
		return nil, fmt.Errorf("roll back: owner `%s` has no revisions: %w", owner, ErrNotKept)
	case to > 0 && !kept:
		return nil, fmt.Errorf("roll back: owner `%s` has no revision %d, its newest are %s: %w", owner, to, newestNumbers(since), ErrNotKept)
	}
	return since, nil
}

// ownsBeyond tells whether the owner would still own something with the targets in place: then its history does not reach
// back to its beginning.
func (s *State) ownsBeyond(owner string, targets map[Key]*raftv1.StoredResource) bool {
	for _, kind := range Kinds() {
		for stored := range s.All(kind) {
			key, _ := KeyOf(stored.GetResource())
			if _, named := targets[key]; !named && stored.GetResource().GetOwner() == owner {
				return true
			}
		}
	}
	for _, target := range targets {
		if target.GetResource().GetOwner() == owner {
			return true
		}
	}
	return false
}

func newestNumbers(revisions []*lbdv1.Revision) string {
	const shown = 5
	var texts []string
	for _, r := range revisions[:min(len(revisions), shown)] {
		texts = append(texts, fmt.Sprint(r.GetNumber()))
	}
	return strings.Join(texts, ", ")
}

// inverse makes the targets so. cluster_settings cannot go: they are emptied.
func (s *State) inverse(owner string, targets map[Key]*raftv1.StoredResource) *raftv1.ChangeCommand {
	change := &raftv1.ChangeCommand{Owner: owner}
	keys := slices.Collect(maps.Keys(targets))
	sortKeys(keys)
	for _, key := range keys {
		target := targets[key]
		now, exists := s.Get(key.Kind, key.Name)
		if target == nil && key.Kind.Single() {
			target = &raftv1.StoredResource{Resource: emptySettings()}
		}
		switch {
		case target != nil:
			change.Upserts = append(change.Upserts, target)
		case exists:
			change.Deletes = append(change.Deletes, key.String())
		default:
			continue // made and deleted since
		}
		change.IfEtags = append(change.IfEtags, &raftv1.Precondition{Key: key.String(), Etag: now.GetResource().GetEtag()})
	}
	return change
}
