package state

import (
	"bytes"
	"fmt"
	"slices"

	raftv1 "lbd/proto/lbd/raft/v1"
)

// purge removes keys of a certificate from the history: what it was stays to be looked at, but cannot be rolled back to. All of
// one that is deleted go; one that is stored keeps the key that it has. Changes under way in parts may hold the keys, too: they go,
// and their senders send them again.
func (s *State) purge(e *edit, cmd *raftv1.PurgeCommand) (*State, Result) {
	res := Result{Revision: s.revision}
	certificate := Key{Certificates, cmd.GetCertificate()}
	stored, known := s.Get(certificate.Kind, certificate.Name)
	switch {
	case known && !cmd.GetKeepPresent():
		res.Err = invalid("certificate", "`%s` is stored: delete it first, or keep the key that it has", certificate.Name)
		return s, res
	case !known && cmd.GetKeepPresent():
		res.Err = &MissingError{fmt.Sprintf("there is no certificate named `%s`: of one that is deleted all keys go, by deleting it with purge", certificate.Name), certificate.String()}
		return s, res
	}
	present := stored.GetMaterial().GetPublicKeySha256()
	for key, m := range s.prefix(beforePrefix) {
		before := m.(*raftv1.Before)
		if before.GetKey() != certificate.String() {
			continue
		}
		known = true
		m := before.GetResource().GetMaterial()
		kept := len(present) > 0 && bytes.Equal(m.GetPublicKeySha256(), present)
		if len(m.GetSealedKey()) > 0 && !kept {
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
	what := "purged"
	if cmd.GetKeepPresent() {
		what = "purged of the keys it had before"
	}
	e.audit(cmd.GetAuthor(), cmd.GetTime(), cmd.GetOrigin(), fmt.Sprintf("%s %s: %d keys removed from the history", certificate, what, res.Count), 0)
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
