package state

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"iter"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// kindJoinTokens is what a remembered request calls a join token.
const kindJoinTokens = "join_tokens"

// JoinToken finds a join token by its id, whether or not it has expired.
func (s *State) JoinToken(id string) (*raftv1.StoredJoinToken, bool) {
	m, ok := s.records.Get([]byte(joinTokenKey(id)))
	if !ok {
		return nil, false
	}
	return m.(*raftv1.StoredJoinToken), true
}

// JoinTokens are all join tokens by id, those that have expired too.
func (s *State) JoinTokens() iter.Seq[*raftv1.StoredJoinToken] {
	return func(yield func(*raftv1.StoredJoinToken) bool) {
		for _, m := range s.prefix(joinTokenPrefix) {
			if !yield(m.(*raftv1.StoredJoinToken)) {
				return
			}
		}
	}
}

// JoinTokenExpired tells whether a join token is of no use any more at a time.
func JoinTokenExpired(t *lbdv1.JoinToken, now time.Time) bool {
	return !t.GetExpireTime().AsTime().After(now)
}

// JoinTokenFault says why a node of this name, that calls from there, may not join with a token at a time; empty: it may.
func JoinTokenFault(t *lbdv1.JoinToken, name, source string, now time.Time) string {
	switch {
	case JoinTokenExpired(t, now):
		return "expired at " + t.GetExpireTime().AsTime().UTC().Format(time.RFC3339)
	case t.GetNode() != "" && t.GetNode() != name:
		return fmt.Sprintf("is for a node named `%s`, not `%s`", t.GetNode(), cut(name, nameBytesMax))
	case len(t.GetSources()) > 0 && !slices.ContainsFunc(t.GetSources(), func(prefix string) bool { return comesFrom(prefix, source) }):
		return fmt.Sprintf("is for nodes of %s, not for %s", strings.Join(t.GetSources(), ", "), source)
	}
	return ""
}

// comesFrom tells whether an address ("10.0.0.9" or "10.0.0.9:51234") is one of a prefix.
func comesFrom(prefix, address string) bool {
	if host, _, err := net.SplitHostPort(address); err == nil {
		address = host
	}
	p, err := netip.ParsePrefix(prefix)
	a, aerr := netip.ParseAddr(address)
	return err == nil && aerr == nil && p.Contains(a.Unmap().WithZone(""))
}

// PendingJoin finds a node that waits for an approval, or for its own next call after one, by its id or name.
func (s *State) PendingJoin(node string) (*raftv1.PendingJoin, bool) {
	for p := range s.PendingJoins() {
		if p.GetNode().GetId() == node || p.GetNode().GetName() == node {
			return p, true
		}
	}
	return nil, false
}

// PendingJoins are the nodes that wait, by id.
func (s *State) PendingJoins() iter.Seq[*raftv1.PendingJoin] {
	return func(yield func(*raftv1.PendingJoin) bool) {
		for _, m := range s.prefix(pendingPrefix) {
			if !yield(m.(*raftv1.PendingJoin)) {
				return
			}
		}
	}
}

// useJoinToken takes one use of the token that a joining node has shown.
func (s *State) useJoinToken(e *edit, cmd *raftv1.NodeCommand, join *raftv1.JoinNode) error {
	stored, ok := s.JoinToken(join.GetTokenId())
	if !ok {
		return &MissingError{printable("there is no join token `" + join.GetTokenId() + "`: it was used, revoked or has expired; make another one with `lbctl cluster join-token create`"), kindJoinTokens + "/" + join.GetTokenId()}
	}
	t := stored.GetToken()
	if fault := JoinTokenFault(t, join.GetNode().GetName(), join.GetSource(), cmd.GetTime().AsTime()); fault != "" {
		return invalid("token", "%s", fault)
	}
	if t.GetApproval() != join.GetPending() {
		return invalid("token", "demands an approval: %v", t.GetApproval())
	}
	if n := s.countPending(); join.GetPending() && n >= pendingNodesMax {
		return invalid("node", "has to wait: %d others wait for an approval", n)
	}
	if t.GetReusable() {
		return nil
	}
	if t.GetUses() <= 1 {
		e.remove(joinTokenKey(t.GetId()))
		return nil
	}
	stored = proto.CloneOf(stored)
	stored.Token.Uses--
	e.put(joinTokenKey(t.GetId()), stored)
	return nil
}

// waitingBy are the nodes that wait, for an approval or for their own next call after one, and have come by a join token.
func (s *State) waitingBy(token string) (all []*raftv1.PendingJoin) {
	for p := range s.PendingJoins() {
		if p.GetNode().GetTokenId() == token {
			all = append(all, p)
		}
	}
	return all
}

func (s *State) countPending() int {
	n := 0
	for range s.PendingJoins() {
		n++
	}
	return n
}

// joinToken makes and revokes join tokens, approves and rejects nodes, or changes nothing.
func (s *State) joinToken(e *edit, cmd *raftv1.JoinTokenCommand) (*State, Result) {
	digest := joinTokenDigest(cmd)
	if id := cmd.GetRequestId(); id != "" {
		if known, ok := s.request(id); ok {
			return s, replay(known, digest)
		}
	}
	res := Result{Revision: s.revision}
	e.forgetJoins(s, cmd.GetTime().AsTime())
	note := func(action lbdv1.ChangeAction, kind, id, text string) {
		res.Changes = append(res.Changes, &lbdv1.Change{Action: action, Kind: kind, Name: id})
		e.audit(cmd.GetAuthor(), cmd.GetTime(), cmd.GetOrigin(), text, 0)
	}
	if create := cmd.GetCreate(); create != nil {
		t := proto.CloneOf(create)
		if violations := s.checkJoinToken(t, cmd); hasError(violations) {
			return s, Result{Revision: s.revision, Err: &InvalidError{violations}}
		}
		t.Token.Author, t.Token.CreateTime = cmd.GetAuthor(), cmd.GetTime()
		e.put(joinTokenKey(t.GetToken().GetId()), t)
		note(lbdv1.ChangeAction_CHANGE_ACTION_CREATE, kindJoinTokens, t.GetToken().GetId(), "made join token "+joinTokenText(t.GetToken()))
	}
	for _, id := range cmd.GetRevokes() {
		waiting := s.waitingBy(id)
		if _, ok := s.JoinToken(id); !ok && len(waiting) == 0 {
			return s, Result{Revision: s.revision, Err: &MissingError{printable("there is no join token `" + id + "`"), kindJoinTokens + "/" + id}}
		}
		e.remove(joinTokenKey(id))
		note(lbdv1.ChangeAction_CHANGE_ACTION_DELETE, kindJoinTokens, id, "revoked join token "+id)
		for _, p := range waiting { // a token that is used up is not there any more, but what it has let wait is
			e.remove(pendingKey(p.GetNode().GetId()))
			note(lbdv1.ChangeAction_CHANGE_ACTION_DELETE, kindNodes, p.GetNode().GetId(), "turned node "+nodeText(p.GetAs())+" away, which has come by join token "+id)
		}
	}
	for i, id := range append(slices.Clone(cmd.GetApproves()), cmd.GetRejects()...) {
		waiting, ok := s.PendingJoin(id)
		if !ok {
			return s, Result{Revision: s.revision, Err: &MissingError{printable("no node `" + id + "` waits for an approval"), kindNodes + "/" + id}}
		}
		key := pendingKey(waiting.GetNode().GetId())
		if i >= len(cmd.GetApproves()) {
			e.remove(key)
			note(lbdv1.ChangeAction_CHANGE_ACTION_DELETE, kindNodes, waiting.GetNode().GetId(), "turned node "+nodeText(waiting.GetAs())+" away")
			continue
		}
		waiting = proto.CloneOf(waiting)
		waiting.Approved = true
		e.put(key, waiting)
		note(lbdv1.ChangeAction_CHANGE_ACTION_UPDATE, kindNodes, waiting.GetNode().GetId(), "approved node "+nodeText(waiting.GetAs()))
	}
	if id := cmd.GetRequestId(); id != "" {
		e.put(requestKey(s.revision, id), &raftv1.Request{Id: id, Revision: s.revision, Digest: digest, Changes: res.Changes})
		e.forgetRequests()
	}
	return e.state(), res
}

// forgetJoins drops expired tokens, and nodes that have waited too long.
func (e *edit) forgetJoins(s *State, now time.Time) {
	for stored := range s.JoinTokens() {
		if JoinTokenExpired(stored.GetToken(), now) {
			e.remove(joinTokenKey(stored.GetToken().GetId()))
		}
	}
	for p := range s.PendingJoins() {
		if p.GetNode().GetTime().AsTime().Before(now.Add(-pendingKeptFor)) {
			e.remove(pendingKey(p.GetNode().GetId()))
		}
	}
}

func (s *State) checkJoinToken(stored *raftv1.StoredJoinToken, cmd *raftv1.JoinTokenCommand) []*lbdv1.Violation {
	c := &checker{base: s, next: s}
	t := stored.GetToken()
	if id := t.GetId(); id == "" || len(id) > tokenIDBytesMax || strings.Trim(id, "abcdefghijklmnopqrstuvwxyz0123456789") != "" {
		c.errorf("id", "`%s` is none: want 1 to %d lower-case letters and digits", cut(id, nameBytesMax), tokenIDBytesMax)
	} else if _, exists := s.JoinToken(id); exists {
		c.errorf("id", "`%s` is there already", id)
	}
	if len(stored.GetSecretSha256()) != sha256.Size {
		c.errorf("secret_sha256", "has %d bytes: want %d", len(stored.GetSecretSha256()), sha256.Size)
	}
	if life := t.GetExpireTime().AsTime().Sub(cmd.GetTime().AsTime()); life < JoinTokenLifeMin || life > JoinTokenLifeMax {
		c.errorf("ttl", "must be %s to %s, not %s", JoinTokenLifeMin, JoinTokenLifeMax, life)
	}
	switch {
	case t.GetReusable() && t.GetUses() != 0:
		c.errorf("uses", "and reusable exclude each other")
	case !t.GetReusable() && (t.GetUses() < 1 || t.GetUses() > joinTokenUsesMax):
		c.errorf("uses", "must be 1 to %d, not %d", joinTokenUsesMax, t.GetUses())
	}
	if t.GetNode() != "" {
		if fault := NodeNameFault(t.GetNode()); fault != "" {
			c.errorf("node", "%s", fault)
		}
	}
	c.checkMost("sources", len(t.GetSources()), joinSourcesMax)
	for i, source := range t.GetSources() {
		if p, err := netip.ParsePrefix(source); err != nil || p.Masked() != p {
			c.errorf(itemPath("sources", i), "`%s` is no network: want 10.0.0.0/24 or 10.0.0.9/32", cut(source, nameBytesMax))
		}
	}
	n := 0
	for range s.JoinTokens() {
		n++
	}
	if n >= joinTokensMax {
		c.errorf("tokens", "are too many: at most %d are kept, revoke some", joinTokensMax)
	}
	return c.violations
}

// joinTokenDigest is a digest of what the caller asked for: neither id nor secret, which are made anew for a retry.
func joinTokenDigest(cmd *raftv1.JoinTokenCommand) []byte {
	asked := &raftv1.JoinTokenCommand{Revokes: cmd.GetRevokes(), Approves: cmd.GetApproves(), Rejects: cmd.GetRejects()}
	if t := cmd.GetCreate().GetToken(); t != nil {
		asked.Create = &raftv1.StoredJoinToken{Token: &lbdv1.JoinToken{
			Uses: t.GetUses(), Reusable: t.GetReusable(), Node: t.GetNode(), Sources: t.GetSources(), Approval: t.GetApproval(),
		}}
	}
	sum := sha256.Sum256(bytes.Join([][]byte{[]byte("join"), encode(asked)}, []byte{0}))
	return sum[:]
}

func joinTokenText(t *lbdv1.JoinToken) string {
	text := t.GetId() + ", good until " + t.GetExpireTime().AsTime().UTC().Format(time.RFC3339)
	if t.GetReusable() {
		text += ", reusable"
	} else {
		text += fmt.Sprintf(", for %d", t.GetUses())
	}
	if t.GetNode() != "" {
		text += ", for node " + t.GetNode()
	}
	if len(t.GetSources()) > 0 {
		text += ", from " + strings.Join(t.GetSources(), ", ")
	}
	if t.GetApproval() {
		text += ", with approval"
	}
	return text
}

func joinTokenKey(id string) string { return recordNamed(joinTokenPrefix, id) }
func pendingKey(id string) string   { return recordNamed(pendingPrefix, id) }
