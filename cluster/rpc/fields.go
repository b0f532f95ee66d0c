package rpc

import (
	"crypto/sha256"

	"google.golang.org/protobuf/proto"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// withFields are the changes that lead from one state to another, each with what it does to the resource's fields, as far
// as they fit in an answer.
func withFields(before, after *state.State, changes []*lbdv1.Change) []*lbdv1.Change {
	out := make([]*lbdv1.Change, len(changes))
	left := fieldsBytesMax
	for i, c := range changes {
		key := state.Key{Kind: state.Kind(c.GetKind()), Name: c.GetName()}
		out[i] = &lbdv1.Change{Action: c.GetAction(), Kind: c.GetKind(), Name: c.GetName(), TakenFrom: c.GetTakenFrom()}
		if left <= 0 {
			continue
		}
		out[i].Fields = append(state.Diff(formOf(before, key), formOf(after, key)), renewed(before, after, key)...)
		if left -= proto.Size(out[i]); left < 0 {
			out[i].Fields = nil
		}
	}
	return out
}

// formOf is a resource as it leaves the node, so that no secret can be in a difference; nil where there is none.
func formOf(s *state.State, key state.Key) *lbdv1.Resource {
	stored, ok := s.Get(key.Kind, key.Name)
	if !ok {
		return nil
	}
	return answer(stored)
}

// renewed tells of a self-signed certificate that was made anew, which no field says: by the fingerprints of its leaves.
func renewed(before, after *state.State, key state.Key) []*lbdv1.FieldChange {
	was, _ := before.Get(key.Kind, key.Name)
	is, _ := after.Get(key.Kind, key.Name)
	old, fresh := leafFingerprint(was), leafFingerprint(is)
	if old == fresh || old == "" || fresh == "" || is.GetResource().GetCertificate().GetSelfSigned() == nil {
		return nil
	}
	return []*lbdv1.FieldChange{{Path: "self_signed", Before: old, After: fresh}}
}

// leafFingerprint is empty where a leaf is still to be made.
func leafFingerprint(stored *raftv1.StoredResource) string {
	chain := stored.GetMaterial().GetChain()
	if len(chain) == 0 || len(chain[0]) == 0 {
		return ""
	}
	digest := sha256.Sum256(chain[0])
	return fingerprint(digest[:])
}
