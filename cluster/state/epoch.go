package state

import (
	"crypto/sha256"
	"fmt"

	"google.golang.org/protobuf/proto"

	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

const clusterKey = clusterPrefix + "cluster"

func (s *State) cluster() *raftv1.ClusterRecord {
	m, ok := s.records.Get([]byte(clusterKey))
	if !ok {
		return &raftv1.ClusterRecord{Epoch: 1, Gate: 1}
	}
	return m.(*raftv1.ClusterRecord)
}

// Epoch grows by one each time that the cluster is begun anew with one of its nodes. It begins with 1.
func (s *State) Epoch() int64 { return s.cluster().GetEpoch() }

// Gate is the newest kinds of log entries that may be written: 1 to GateMax, else this build cannot read the state.
func (s *State) Gate() int32 { return s.cluster().GetGate() }

// gate lets newer kinds of entries be written. A node that does not know them stays before this entry.
func (s *State) gate(e *edit, cmd *raftv1.GateCommand) (*State, Result) {
	res := Result{Revision: s.revision}
	if cmd.GetGate() > GateMax {
		res.Err = fmt.Errorf("gate %d, this build knows %d: %w", cmd.GetGate(), GateMax, ErrFormat)
		return s, res
	}
	if cmd.GetGate() <= s.Gate() {
		res.Replayed = true
		return s, res
	}
	for n := range s.Nodes() {
		if n.GetGate() < cmd.GetGate() {
			res.Err = invalid("gate", "%d is beyond what node `%s` reads, %d", cmd.GetGate(), n.GetName(), n.GetGate())
			return s, res
		}
	}
	record := proto.CloneOf(s.cluster())
	record.Gate = cmd.GetGate()
	e.put(clusterKey, record)
	e.audit("lbd", cmd.GetTime(), &raftv1.Origin{Source: "lbd", Method: "gate"}, fmt.Sprintf("every node reads what builds of gate %d write: older builds cannot join any more", cmd.GetGate()), 0)
	return e.state(), res
}

// epoch begins a new one: of all nodes one stays, with another authority, and votes. Join tokens and nodes that wait were promised something by the
// old one, and go.
func (s *State) epoch(e *edit, cmd *raftv1.EpochCommand) (*State, Result) {
	res := Result{Revision: s.revision}
	stays, ok := s.Node(cmd.GetNode())
	switch {
	case cmd.GetEpoch() == s.Epoch() && s.alone(cmd.GetNode()):
		res.Replayed = true
		return s, res
	case !ok:
		res.Err = s.noNode(cmd.GetNode())
		return s, res
	case cmd.GetEpoch() != s.Epoch()+1:
		res.Err = invalid("epoch", "%d does not follow %d", cmd.GetEpoch(), s.Epoch())
		return s, res
	}
	if _, has := s.Authority(); has {
		if err := checkAuthority(cmd.GetAuthority()); err != nil {
			res.Err = err
			return s, res
		}
		e.put(authorityKey, cmd.GetAuthority())
	}
	if err := s.renewTicketKeysWith(e, cmd.GetTicketKeys(), cmd.GetTime()); err != nil {
		res.Err = err
		return s, res
	}
	for n := range s.Nodes() {
		if n.GetId() != stays.GetId() {
			e.bury(n, cmd.GetTime(), true)
			res.Count++
		}
	}
	if stays.GetRole() != lbdv1.NodeRole_NODE_ROLE_VOTER {
		voter := proto.CloneOf(stays)
		voter.Role = lbdv1.NodeRole_NODE_ROLE_VOTER
		e.put(nodeKey(voter.GetId()), voter)
	}
	for _, prefix := range []string{joinTokenPrefix, pendingPrefix} {
		for key := range s.prefix(prefix) {
			e.remove(key)
		}
	}
	record := proto.CloneOf(s.cluster())
	record.Epoch = cmd.GetEpoch()
	e.put(clusterKey, record)
	e.audit(cmd.GetAuthor(), cmd.GetTime(), cmd.GetOrigin(), fmt.Sprintf("epoch %d begins with node %s; %d others are members no more", cmd.GetEpoch(), nodeText(stays), res.Count), 0)
	return e.state(), res
}

// alone tells whether a node is the only member.
func (s *State) alone(id string) bool {
	for n := range s.Nodes() {
		if n.GetId() != id {
			return false
		}
	}
	return true
}

// Digest is SHA-256 over all records in order: nodes that have applied the same entries of the log have the same. It takes time that grows with the
// state, about a second for a gigabyte.
func (s *State) Digest() [sha256.Size]byte {
	h := sha256.New()
	h.Write(encode(s.Header()))
	for _, m := range s.prefix("") {
		h.Write(encode(wrapRecord(m))) // without the key: parts of changes under way are numbered anew by a snapshot
	}
	return [sha256.Size]byte(h.Sum(nil))
}
