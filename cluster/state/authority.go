package state

import (
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

// authority puts the first authority in place. A later one changes nothing: two nodes may propose at the same moment, and clients
// pin the one that they have seen.
func (s *State) authority(e *edit, cmd *raftv1.AuthorityCommand) (*State, Result) {
	res := Result{Revision: s.revision}
	if _, exists := s.Authority(); exists {
		res.Replayed = true
		return s, res
	}
	a := cmd.GetAuthority()
	if len(a.GetCertificate()) == 0 || len(a.GetSealedKey()) == 0 {
		res.Err = invalid("authority", "needs a certificate and its sealed key")
		return s, res
	}
	e.put(authorityKey, a)
	e.audit("lbd", cmd.GetTime(), &raftv1.Origin{Source: "lbd", Method: "start"}, "made the cluster's certificate authority", 0)
	return e.state(), res
}
