package state

import (
	"fmt"

	raftv1 "lbd/proto/lbd/raft/v1"
)

// A revision keeps of every resource that it changed what the resource was before, under b/<revision>/<kind>/<name>. These
// records go with their revision. A revision that an older build made has none: nothing before it can be told.

// remember keeps a resource as it was before the revision under way; nil: it did not exist.
func (e *edit) remember(revision int64, key Key, stored *raftv1.StoredResource) {
	e.put(beforeKey(revision, key), &raftv1.Before{Revision: revision, Key: key.String(), Resource: stored})
}

// forgetRevision drops a revision with what it remembers.
func (e *edit) forgetRevision(view *State, n int64) {
	e.remove(revisionKey(n))
	for key := range view.prefix(beforePrefix + number(n) + "/") {
		e.remove(key)
	}
}

// Before is a resource as it was before a revision changed it; nil: it did not exist. It is not kept where the revision did
// not change the resource, is forgotten, or was made by a build that kept nothing.
func (s *State) Before(revision int64, key Key) (stored *raftv1.StoredResource, kept bool) {
	m, ok := s.records.Get([]byte(beforeKey(revision, key)))
	if !ok {
		return nil, false
	}
	return m.(*raftv1.Before).GetResource(), true
}

// At is the state as it was after a revision (0: before the first): its resources, and the history up to there as far as
// it is kept. Overrides, remembered requests of later revisions and changes under way are not in it; credentials and the audit are
// those of today. The cost is that of the changes since. The error is ErrNotKept where a revision since then is forgotten or remembers nothing, or where the
// revision is none of ours.
func (s *State) At(revision int64) (*State, error) {
	if revision < 0 || revision > s.revision {
		return nil, absentError(fmt.Sprintf("there is no revision %d: the newest is %d", revision, s.revision))
	}
	e := s.edit()
	for n := s.revision; n > revision; n-- {
		if err := e.undo(s, n); err != nil {
			return nil, fmt.Errorf("see the state at revision %d: %w", revision, err)
		}
	}
	e.revision = revision
	for _, prefix := range []string{overridePrefix, uploadPrefix} {
		for key := range s.prefix(prefix) {
			e.remove(key)
		}
	}
	for key, m := range s.prefix(requestPrefix) {
		if m.(*raftv1.Request).GetRevision() > revision {
			e.remove(key)
		}
	}
	return e.state(), nil
}

// undo takes the resources back to before the revision n of s, the newest of the edit, and forgets it.
func (e *edit) undo(s *State, n int64) error {
	r, ok := s.RevisionAt(n)
	if !ok {
		return fmt.Errorf("revision %d is forgotten: %w", n, ErrNotKept)
	}
	for _, c := range r.GetChanges() {
		key := Key{Kind(c.GetKind()), c.GetName()}
		before, kept := s.Before(n, key)
		if !kept {
			return fmt.Errorf("revision %d has not kept %s as it was: %w", n, key, ErrNotKept)
		}
		if before == nil {
			e.remove(resourceKey(key))
		} else {
			e.put(resourceKey(key), before)
		}
	}
	e.forgetRevision(s, n)
	return nil
}

// Newest is the number of an owner's newest revision; 0 if it has none.
func (s *State) Newest(owner string) int64 {
	for r := range s.Revisions(owner) {
		return r.GetNumber()
	}
	return 0
}

// Requested is the state in which a remembered request found the cluster, as far as that is kept: filling in a request's
// blanks from there again gives the same change. It is the receiver for a request that is not known.
func (s *State) Requested(id string) *State {
	known, ok := s.request(id)
	if !ok {
		return s
	}
	found := known.GetRevision()
	if len(known.GetChanges()) > 0 {
		found--
	}
	if past, err := s.At(found); err == nil {
		return past
	}
	return s
}
