package state

import (
	"bytes"
	"crypto/sha256"

	"google.golang.org/protobuf/proto"

	raftv1 "lbd/proto/lbd/raft/v1"
)

const authorityKey = authorityPrefix + "authority"

// Authority is the cluster's own certificate authority, which signs what its nodes show on their control ports. There is none
// before a node has proposed one.
func (s *State) Authority() (*raftv1.Authority, bool) {
	m, ok := s.records.Get([]byte(authorityKey))
	if !ok {
		return nil, false
	}
	return m.(*raftv1.Authority), true
}

// authority puts the first authority in place, or another one in the place of the one that the command names; or it retires the one
// before. What finds it so already changes nothing: two nodes may propose at the same moment, and clients pin the one that they have
// seen.
func (s *State) authority(e *edit, cmd *raftv1.AuthorityCommand) (*State, Result) {
	digest := authorityDigest(cmd)
	if id := cmd.GetRequestId(); id != "" {
		if known, ok := s.request(id); ok {
			return s, replay(known, digest)
		}
	}
	res := Result{Revision: s.revision}
	present, exists := s.Authority()
	a, text := cmd.GetAuthority(), "made the cluster's certificate authority"
	switch {
	case cmd.GetRetire():
		if len(present.GetFormer()) == 0 {
			res.Replayed = true
			return s, res
		}
		a, text = proto.CloneOf(present), "retired the certificate authorities before the present one: their pins are good no more"
		a.Former = nil
	case len(cmd.GetReplacesSha256()) == 0 && exists:
		res.Replayed = true
		return s, res
	case len(cmd.GetReplacesSha256()) > 0:
		sum := sha256.Sum256(present.GetCertificate())
		if !exists || !bytes.Equal(sum[:], cmd.GetReplacesSha256()) {
			res.Err = &ConflictError{Reason: ResourceMoved, Conflicts: []Conflict{{Key: Key{KindAuthority, ""}}}}
			return s, res
		}
		text = "another certificate authority is in place"
	}
	if err := checkAuthority(a); err != nil {
		res.Err = err
		return s, res
	}
	e.put(authorityKey, a)
	author, origin := cmd.GetAuthor(), cmd.GetOrigin()
	if author == "" {
		author, origin = "lbd", &raftv1.Origin{Source: "lbd", Method: "start"}
	}
	e.audit(author, cmd.GetTime(), origin, text, 0)
	if id := cmd.GetRequestId(); id != "" {
		e.put(requestKey(s.revision, id), &raftv1.Request{Id: id, Revision: s.revision, Digest: digest})
		e.forgetRequests()
	}
	return e.state(), res
}

// authorityDigest is a digest of what the caller asked for: the authority itself is made anew for a retry.
func authorityDigest(cmd *raftv1.AuthorityCommand) []byte {
	asked := "authority"
	if cmd.GetRetire() {
		asked += " retire"
	}
	sum := sha256.Sum256([]byte(asked))
	return sum[:]
}

func checkAuthority(a *raftv1.Authority) error {
	if len(a.GetCertificate()) == 0 || len(a.GetSealedKey()) == 0 {
		return invalid("authority", "needs a certificate and its sealed key")
	}
	if len(a.GetFormer()) > FormerAuthoritiesMax {
		return invalid("authority", "has %d before it: at most %d", len(a.GetFormer()), FormerAuthoritiesMax)
	}
	return nil
}
