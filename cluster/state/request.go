package state

import (
	"crypto/sha256"
	"crypto/subtle"

	raftv1 "lbd/proto/lbd/raft/v1"
)

// HasRequest tells whether a request is remembered: what it asked for was done.
func (s *State) HasRequest(id string) bool {
	_, ok := s.request(id)
	return id != "" && ok
}

// request finds a remembered request.
func (s *State) request(id string) (*raftv1.Request, bool) {
	revision, ok := s.index.Get([]byte(requestIndex(id)))
	if !ok {
		return nil, false
	}
	m, ok := s.records.Get([]byte(requestKey(revision, id)))
	if !ok {
		return nil, false
	}
	return m.(*raftv1.Request), true
}

// replay answers a request as it was answered first, or refuses the id for another change.
func replay(known *raftv1.Request, digest []byte) Result {
	if subtle.ConstantTimeCompare(known.GetDigest(), digest) == 0 {
		return Result{Revision: known.GetRevision(), Err: &ConflictError{Reason: RequestIDReused}}
	}
	return Result{Revision: known.GetRevision(), Changes: known.GetChanges(), Replayed: true}
}

// changeDigest is a digest of what the caller asked for. What differs between two sendings of one request is left out:
// author, time, the bytes of a sealed key, and content that was made here because the caller left it to us, or kept because
// it is managed elsewhere.
func changeDigest(change *raftv1.ChangeCommand) []byte {
	if digest := change.GetRequestDigest(); len(digest) > 0 {
		return digest
	}
	asked := &raftv1.ChangeCommand{
		Owner:      change.GetOwner(),
		TakeOver:   change.GetTakeOver(),
		Message:    change.GetMessage(),
		Deletes:    change.GetDeletes(),
		IfRevision: change.IfRevision,
		IfEtags:    change.GetIfEtags(),
	}
	for _, up := range change.GetUpserts() {
		up := &raftv1.StoredResource{Resource: Normalize(up.GetResource()), Material: up.GetMaterial()}
		up.Resource.Owner = ""
		if up.Material != nil {
			up.Material = &raftv1.CertificateMaterial{Chain: up.Material.GetChain(), PublicKeySha256: up.Material.GetPublicKeySha256()}
		}
		if cert := up.GetResource().GetCertificate(); cert.GetSelfSigned() != nil || cert.GetManagedExternally() {
			up.Material = nil
		}
		asked.Upserts = append(asked.Upserts, up)
	}
	sum := sha256.Sum256(encode(asked))
	return sum[:]
}

// forgetRequests drops the requests of the oldest revisions until no more than requestsKeptMax are left.
func (e *edit) forgetRequests() {
	view := e.view()
	surplus := view.counter(requestIndex("")) - requestsKeptMax
	for key := range view.prefix(requestPrefix) {
		if surplus <= 0 {
			return
		}
		surplus--
		e.remove(key)
	}
}
