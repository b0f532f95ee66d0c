package state

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"iter"
	"net"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// A node's record says who belongs to the cluster, and what it shall be: raft's own configuration follows it. Like credentials, nodes
// are beside the revisions. Who was removed is remembered for a while, so that it can be told.

// kindNodes is what a remembered request calls a node.
const kindNodes = "nodes"

// Node finds a member by its id.
func (s *State) Node(id string) (*lbdv1.Node, bool) {
	m, ok := s.records.Get([]byte(nodeKey(id)))
	if !ok {
		return nil, false
	}
	return m.(*lbdv1.Node), true
}

// NodeNamed finds a member by its name or its id.
func (s *State) NodeNamed(name string) (*lbdv1.Node, bool) {
	for n := range s.Nodes() {
		if n.GetName() == name {
			return n, true
		}
	}
	return s.Node(name)
}

// Nodes are the members by id. There are none before the first has written itself down.
func (s *State) Nodes() iter.Seq[*lbdv1.Node] {
	return func(yield func(*lbdv1.Node) bool) {
		for _, m := range s.prefix(nodePrefix) {
			if !yield(m.(*lbdv1.Node)) {
				return
			}
		}
	}
}

// RemovedNode finds who is a member no more, as far as that is remembered.
func (s *State) RemovedNode(id string) (*raftv1.RemovedNode, bool) {
	m, ok := s.records.Get([]byte(removedKey(id)))
	if !ok {
		return nil, false
	}
	return m.(*raftv1.RemovedNode), true
}

// RemovedNodeNamed finds who is a member no more by the name that it had, the last of that name, or by its id.
func (s *State) RemovedNodeNamed(name string) (*raftv1.RemovedNode, bool) {
	var found *raftv1.RemovedNode
	for _, m := range s.prefix(removedPrefix) {
		gone := m.(*raftv1.RemovedNode)
		if gone.GetName() == name && (found == nil || gone.GetTime().AsTime().After(found.GetTime().AsTime())) {
			found = gone
		}
	}
	if found != nil {
		return found, true
	}
	return s.RemovedNode(name)
}

// node changes one node, or nothing:
//
//  1. answer a repeated request
//  2. refuse what is invalid
//  3. change the record
//  4. say so in the audit, remember the request
func (s *State) node(e *edit, cmd *raftv1.NodeCommand) (*State, Result) {
	digest := nodeCommandDigest(cmd)
	if id := cmd.GetRequestId(); id != "" {
		if known, ok := s.request(id); ok {
			return s, replay(known, digest)
		}
	}
	res := Result{Revision: s.revision}
	var id, text string
	switch change := cmd.GetChange().(type) {
	case *raftv1.NodeCommand_Join:
		id, text, res.Err = s.joinNode(e, cmd, change.Join)
	case *raftv1.NodeCommand_Update:
		id, text, res.Err = s.updateNode(e, change.Update)
	case *raftv1.NodeCommand_Remove:
		id, text, res.Err = s.removeNode(e, cmd, change.Remove)
	case *raftv1.NodeCommand_Role:
		id, text, res.Err = s.setNodeRole(e, change.Role)
	case *raftv1.NodeCommand_Drain:
		id, text, res.Err = s.drainNode(e, cmd, change.Drain)
	default:
		res.Err = ErrUnknownCommand
	}
	if res.Err != nil {
		return s, res
	}
	if text != "" {
		if cmd.GetMessage() != "" {
			text += ": " + cmd.GetMessage()
		}
		e.audit(cmd.GetAuthor(), cmd.GetTime(), cmd.GetOrigin(), text, 0)
		res.Changes = []*lbdv1.Change{{Action: lbdv1.ChangeAction_CHANGE_ACTION_UPDATE, Kind: kindNodes, Name: id}}
	}
	if request := cmd.GetRequestId(); request != "" {
		e.put(requestKey(s.revision, request), &raftv1.Request{Id: request, Revision: s.revision, Digest: digest, Changes: res.Changes})
		e.forgetRequests()
	}
	return e.state(), res
}

// joinNode adds a member, or one that waits for an approval. One that is there already, with the same key, is let in again: it was cut off
// before it knew.
func (s *State) joinNode(e *edit, cmd *raftv1.NodeCommand, join *raftv1.JoinNode) (id, text string, err error) {
	n := proto.CloneOf(join.GetNode())
	if known, ok := s.Node(n.GetId()); ok && known.GetKey() == n.GetKey() {
		return n.GetId(), "", nil
	}
	first := !e.hasPrefix(nodePrefix)
	if violations := s.checkNode(n, first); hasError(violations) {
		return "", "", &InvalidError{violations}
	}
	n.JoinTime, n.Drain = cmd.GetTime(), nil
	waiting, waits := s.PendingJoin(n.GetId())
	switch {
	case first:
	case waits && waiting.GetNode().GetKey() == n.GetKey() && waiting.GetApproved():
		e.remove(pendingKey(n.GetId()))
	case waits && waiting.GetNode().GetKey() == n.GetKey():
		if join.GetPending() {
			return n.GetId(), "", nil
		}
		return "", "", invalid("node", "`%s` waits for an approval", n.GetName())
	default:
		if err := s.useJoinToken(e, cmd, join); err != nil {
			return "", "", err
		}
		if join.GetPending() {
			return n.GetId(), s.await(e, cmd, join, n), nil
		}
	}
	e.put(nodeKey(n.GetId()), n)
	return n.GetId(), "node " + nodeText(n) + " joined", nil
}

// await writes a node down that has to be approved.
func (s *State) await(e *edit, cmd *raftv1.NodeCommand, join *raftv1.JoinNode, n *lbdv1.Node) string {
	e.put(pendingKey(n.GetId()), &raftv1.PendingJoin{As: n, Node: &lbdv1.PendingNode{
		Id: n.GetId(), Name: n.GetName(), Address: n.GetAddress(), Source: join.GetSource(), Key: n.GetKey(),
		TokenId: join.GetTokenId(), Time: cmd.GetTime(),
	}})
	return "node " + nodeText(n) + " waits for an approval"
}

// updateNode takes what a node says of itself. Neither what it shall be nor its key is its own to say; but a node that is alone may have lost its key.
func (s *State) updateNode(e *edit, said *lbdv1.Node) (id, text string, err error) {
	before, ok := s.Node(said.GetId())
	if !ok {
		return "", "", s.noNode(said.GetId())
	}
	alone := s.alone(said.GetId())
	if said.GetKey() != before.GetKey() && !alone {
		return "", "", invalid("key", "of node `%s` is another one: a node with another key joins anew", before.GetName())
	}
	n := proto.CloneOf(before)
	n.Name, n.Address, n.Version, n.Gate, n.Key = said.GetName(), said.GetAddress(), said.GetVersion(), said.GetGate(), said.GetKey()
	if violations := s.checkNode(n, alone); hasError(violations) {
		return "", "", &InvalidError{violations}
	}
	if proto.Equal(before, n) {
		return n.GetId(), "", nil
	}
	e.put(nodeKey(n.GetId()), n)
	text = "node " + nodeText(n) + " is of version " + n.GetVersion()
	switch {
	case before.GetName() != n.GetName():
		text = "node " + before.GetName() + " is called " + n.GetName() + " now"
	case before.GetAddress() != n.GetAddress():
		text = "node " + n.GetName() + " is at " + n.GetAddress() + " now"
	case before.GetKey() != n.GetKey():
		text = "node " + n.GetName() + " has another key"
	}
	return n.GetId(), text, nil
}

// removeNode takes a member out, and puts another authority and other ticket keys in place: the node could open the present ones.
func (s *State) removeNode(e *edit, cmd *raftv1.NodeCommand, remove *raftv1.RemoveNode) (id, text string, err error) {
	n, ok := s.Node(remove.GetId())
	if !ok {
		return "", "", s.noNode(remove.GetId())
	}
	if s.alone(n.GetId()) {
		return "", "", invalid("node", "`%s` is the only one", n.GetName())
	}
	if _, has := s.Authority(); has {
		if err := checkAuthority(remove.GetAuthority()); err != nil {
			return "", "", err
		}
		e.put(authorityKey, remove.GetAuthority())
	}
	if err := s.renewTicketKeysWith(e, remove.GetTicketKeys(), cmd.GetTime()); err != nil {
		return "", "", err
	}
	e.bury(n, cmd.GetTime(), false)
	return n.GetId(), "node " + nodeText(n) + " removed", nil
}

// bury makes a member one that was, and forgets the oldest of those where they are too many.
func (e *edit) bury(n *lbdv1.Node, at *timestamppb.Timestamp, leftBehind bool) {
	e.remove(nodeKey(n.GetId()))
	e.put(removedKey(n.GetId()), &raftv1.RemovedNode{Id: n.GetId(), Name: n.GetName(), Key: n.GetKey(), Time: at, LeftBehind: leftBehind})
	var buried []*raftv1.RemovedNode
	for _, m := range e.view().prefix(removedPrefix) {
		buried = append(buried, m.(*raftv1.RemovedNode))
	}
	slices.SortStableFunc(buried, func(a, b *raftv1.RemovedNode) int { return a.GetTime().AsTime().Compare(b.GetTime().AsTime()) })
	for len(buried) > removedNodesMax {
		e.remove(removedKey(buried[0].GetId()))
		buried = buried[1:]
	}
}

func (s *State) setNodeRole(e *edit, role *raftv1.SetNodeRole) (id, text string, err error) {
	before, ok := s.Node(role.GetId())
	if !ok {
		return "", "", s.noNode(role.GetId())
	}
	if !isNodeRole(role.GetRole()) {
		return "", "", invalid("role", "is none: want `VOTER` or `NON_VOTER`")
	}
	if before.GetRole() == role.GetRole() {
		return before.GetId(), "", nil
	}
	n := proto.CloneOf(before)
	n.Role = role.GetRole()
	e.put(nodeKey(n.GetId()), n)
	if n.GetRole() == lbdv1.NodeRole_NODE_ROLE_VOTER {
		return n.GetId(), "node " + n.GetName() + " becomes a voter", nil
	}
	return n.GetId(), "node " + n.GetName() + " votes no more", nil
}

func (s *State) drainNode(e *edit, cmd *raftv1.NodeCommand, change *raftv1.SetNodeDrain) (id, text string, err error) {
	before, ok := s.Node(change.GetId())
	if !ok {
		return "", "", s.noNode(change.GetId())
	}
	reason := change.GetDrain().GetReason()
	if (before.GetDrain() == nil) == (change.GetDrain() == nil) && (reason == "" || reason == before.GetDrain().GetReason()) {
		return before.GetId(), "", nil
	}
	n := proto.CloneOf(before)
	if n.Drain = nil; change.GetDrain() == nil {
		e.put(nodeKey(n.GetId()), n)
		return n.GetId(), "node " + n.GetName() + " takes traffic again", nil
	}
	c := &checker{base: s, next: s}
	c.checkText("reason", reason, messageBytesMax)
	if hasError(c.violations) {
		return "", "", &InvalidError{c.violations}
	}
	n.Drain = &lbdv1.NodeDrain{Author: cmd.GetAuthor(), Reason: reason, Time: cmd.GetTime()}
	if d := before.GetDrain(); d != nil { // another reason for what is so already
		n.Drain.Time = d.GetTime()
	}
	e.put(nodeKey(n.GetId()), n)
	if reason != "" {
		return n.GetId(), "node " + n.GetName() + " drained: " + reason, nil
	}
	return n.GetId(), "node " + n.GetName() + " drained", nil
}

func (s *State) noNode(id string) error {
	if gone, ok := s.RemovedNode(id); ok {
		return &MissingError{printable("node `" + gone.GetName() + "` was removed"), kindNodes + "/" + id}
	}
	return &MissingError{printable("there is no node `" + id + "`"), kindNodes + "/" + id}
}

// checkNode reports what is wrong with a record that is to be stored. A node that is alone needs no address.
func (s *State) checkNode(n *lbdv1.Node, alone bool) []*lbdv1.Violation {
	c := &checker{base: s, next: s}
	if !isNodeID(n.GetId()) {
		c.errorf("id", "`%s` is none", cut(n.GetId(), nameBytesMax))
	}
	if fault := NodeNameFault(n.GetName()); fault != "" {
		c.errorf("name", "%s", fault)
	}
	if n.GetAddress() != "" || !alone {
		if host, port, err := net.SplitHostPort(n.GetAddress()); err != nil || host == "" || port == "" || port == "0" || len(n.GetAddress()) > hostBytesMax+6 {
			c.errorf("address", "`%s` is not how others reach the node: want HOST:PORT", cut(n.GetAddress(), hostBytesMax+6))
		}
	}
	if !isPin(n.GetKey()) {
		c.errorf("key", "is no fingerprint: want `sha256:` and 64 hexadecimal digits")
	}
	if !isNodeRole(n.GetRole()) {
		c.errorf("role", "is none: want `VOTER` or `NON_VOTER`")
	}
	c.checkText("version", n.GetVersion(), nameBytesMax)
	if n.GetGate() < s.Gate() {
		c.errorf("gate", "is %d, and the cluster writes what only builds of gate %d read: start a newer lbd on it", n.GetGate(), s.Gate())
	}
	if _, gone := s.RemovedNode(n.GetId()); gone {
		c.errorf("id", "is of a node that was removed: join anew with an empty data directory")
	}
	c.checkBesideOthers(n)
	return c.violations
}

// checkBesideOthers reports what another node has already.
func (c *checker) checkBesideOthers(n *lbdv1.Node) {
	count := 0
	for other := range c.base.Nodes() {
		count++
		switch {
		case other.GetId() == n.GetId():
			count--
		case other.GetName() == n.GetName():
			c.errorf("name", "`%s` is another node's: give this one a name of its own, `--node NAME`", n.GetName())
		case other.GetKey() == n.GetKey():
			c.errorf("key", "is that of node `%s`: is its data directory a copy?", other.GetName())
		case n.GetAddress() != "" && other.GetAddress() == n.GetAddress():
			c.errorf("address", "`%s` is that of node `%s`: remove that one first if it is gone", n.GetAddress(), other.GetName())
		}
	}
	if count >= nodesMax {
		c.errorf("node", "would be one too many: a cluster has at most %d", nodesMax)
	}
	for p := range c.base.PendingJoins() {
		if p.GetNode().GetId() != n.GetId() && p.GetNode().GetName() == n.GetName() {
			c.errorf("name", "`%s` is another node's, which waits for an approval", n.GetName())
		}
	}
}

// NodeNameFault says why a node cannot be called so; empty: it can.
func NodeNameFault(name string) string {
	if name == "" || len(name) > nameBytesMax || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == '/' || r == '"' || r > '~' }) {
		return fmt.Sprintf("`%s` is none: want at most %d visible ASCII characters without '/' and '\"'", cut(name, nameBytesMax), nameBytesMax)
	}
	if name == "all" || name == "*" {
		return fmt.Sprintf("`%s` means every node: call this one otherwise", name)
	}
	return ""
}

func isNodeID(id string) bool {
	digits, ok := strings.CutPrefix(id, "n")
	digits = strings.TrimPrefix(digits, "-")
	return ok && len(digits) == 16 && strings.Trim(digits, "0123456789abcdef") == ""
}

func isNodeRole(r lbdv1.NodeRole) bool {
	return r == lbdv1.NodeRole_NODE_ROLE_VOTER || r == lbdv1.NodeRole_NODE_ROLE_NON_VOTER
}

// nodeCommandDigest is a digest of what the caller asked for; not of what is made anew for a retry.
func nodeCommandDigest(cmd *raftv1.NodeCommand) []byte {
	asked := proto.CloneOf(cmd)
	asked.Author, asked.Time, asked.Origin, asked.RequestId = "", nil, nil, ""
	if r := asked.GetRemove(); r != nil {
		r.Authority, r.TicketKeys = nil, nil
	}
	sum := sha256.Sum256(bytes.Join([][]byte{[]byte("node"), encode(asked)}, []byte{0}))
	return sum[:]
}

func nodeText(n *lbdv1.Node) string { return fmt.Sprintf("%s (%s)", n.GetName(), n.GetId()) }

func nodeKey(id string) string    { return recordNamed(nodePrefix, id) }
func removedKey(id string) string { return recordNamed(removedPrefix, id) }

// recordNamed is the key of a record that is known by an id; empty for one without.
func recordNamed(prefix, id string) string {
	if id == "" {
		return ""
	}
	return prefix + id
}
