package state

import (
	"fmt"
	"slices"

	raftv1 "lbd/proto/lbd/raft/v1"
)

// purge removes the keys of a deleted certificate from the history: what it was stays to be looked at, but cannot be rolled
// back to. Changes under way in parts may hold the key, too: they go, and their senders send them again.
func (s *State) purge(e *edit, cmd *raftv1.PurgeCommand) (*State, Result) {
	res := Result{Revision: s.revision}
	certificate := Key{Certificates, cmd.GetCertificate()}
	if _, stored := s.Get(certificate.Kind, certificate.Name); stored {
		res.Err = invalid("certificate", "`%s` is stored: delete it first", certificate.Name)
		return s, res
	}
	known := false
	for key, m := range s.prefix(beforePrefix) {
		before := m.(*raftv1.Before)
		if before.GetKey() != certificate.String() {
			continue
		}
		known = true
		if len(before.GetResource().GetMaterial().GetSealedKey()) > 0 {
			e.put(key, withSealed(before, nil))
			res.Count++
		}
	}
	if !known {
		res.Err = &MissingError{fmt.Sprintf("there is no certificate named `%s`, and none in the history that is kept", certificate.Name), certificate.String()}
		return s, res
	}
	for _, upload := range s.uploads() {
		e.dropUpload(upload)
	}
	e.audit(cmd.GetAuthor(), cmd.GetTime(), cmd.GetOrigin(), fmt.Sprintf("%s purged: %d keys removed from the history", certificate, res.Count), 0)
	return e.state(), res
}

// purged tells whether a certificate's key was removed from the history.
func purged(stored *raftv1.StoredResource) bool {
	return stored.GetMaterial() != nil && len(stored.GetMaterial().GetSealedKey()) == 0
}

// PastOwners are those that had a resource, as far as the history knows, each once.
func (s *State) PastOwners(key Key) []string {
	var owners []string
	for _, m := range s.prefix(beforePrefix) {
		before := m.(*raftv1.Before)
		owner := before.GetResource().GetResource().GetOwner()
		if before.GetKey() == key.String() && owner != "" && !slices.Contains(owners, owner) {
			owners = append(owners, owner)
		}
	}
	return owners
}
