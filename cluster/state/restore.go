package state

import (
	"crypto/sha256"

	"google.golang.org/protobuf/proto"

	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// revisionMax bounds what a backup may say of revisions: what JSON's readers count to exactly.
const revisionMax = 1 << 53

// restore makes everything as it was in a backup, as one revision that no owner has:
//
//  1. answer a repeated request as before
//  2. bring everything into its stored form; revisions go on after the newest of cluster and backup, so that what is older stays
//     older
//  3. refuse what is invalid, and to delete unasked
//  4. keep what differs, and what was there before; make the revision
//  5. put credentials in place
//  6. remember the request
//  7. refuse what is too much for the state's budget
//
// Because the revision is nobody's, an owner's rollback across it is a conflict (ChangedSince): what a restore did is undone by
// another restore.
func (s *State) restore(e *edit, cmd *raftv1.RestoreCommand) (*State, Result) {
	digest := restoreDigest(cmd)
	if id := cmd.GetRequestId(); id != "" {
		if known, ok := s.request(id); ok {
			return s, replay(known, digest)
		}
	}
	change, base, err := s.restoration(cmd)
	if err != nil {
		return s, Result{Revision: s.revision, Err: err}
	}
	c := &checker{base: base, storing: true, restoring: true}
	violations := append(c.run(change), s.faultsOfTokens(cmd)...)
	if hasError(violations) {
		return s, Result{Revision: s.revision, Err: &InvalidError{violations}}
	}
	res := Result{Warnings: violations, Revision: s.revision}
	if res.Changes = e.store(base, change); len(res.Changes) > 0 {
		e.revision = base.revision + 1
		e.put(revisionKey(e.revision), e.newRevision(change, res.Changes))
		e.endOrphans(res.Changes)
		e.forgetRevisions("", cmd.GetTime())
		res.Revision = e.revision
	}
	e.restoreTokens(s, cmd, &res)
	if after := e.view(); !after.Settings().LocalAdmin && !after.HasAdmin(cmd.GetTime().AsTime()) {
		return s, Result{Revision: s.revision, Err: ErrLastAdmin}
	}
	e.audit(cmd.GetAuthor(), cmd.GetTime(), cmd.GetOrigin(), changesText("", cmd.GetMessage(), res.Changes), res.Revision)
	if id := cmd.GetRequestId(); id != "" {
		e.put(requestKey(e.revision, id), &raftv1.Request{Id: id, Revision: e.revision, Digest: digest, Changes: res.Changes})
		e.forgetRequests()
	}
	next := e.state()
	if err := s.withinBudget(next, res.Changes); err != nil {
		return s, Result{Revision: s.revision, Err: err}
	}
	return next, res
}

// restoration is the change that a restore makes, and the state to make it of: this one, but as old as the backup if that is
// older.
func (s *State) restoration(cmd *raftv1.RestoreCommand) (*raftv1.ChangeCommand, *State, error) {
	change := &raftv1.ChangeCommand{Author: cmd.GetAuthor(), Time: cmd.GetTime(), Message: cmd.GetMessage(), RequestId: cmd.GetRequestId()}
	newest := s.revision
	kept := make(map[Key]bool, len(cmd.GetResources()))
	for i, stored := range cmd.GetResources() {
		key, ok := KeyOf(stored.GetResource())
		if fault := ownerFault(stored.GetResource().GetOwner()); ok && !key.Kind.Single() && fault != "" {
			return nil, nil, invalid(key.Field(), "has an owner that %s", fault)
		}
		created := Created(stored)
		if newest = max(newest, created, stored.GetResource().GetRevision()); created < 0 || newest > revisionMax {
			return nil, nil, invalid(itemPath("resources", i), "is of no revision that there can be")
		}
		kept[key] = true
		change.Upserts = append(change.Upserts, &raftv1.StoredResource{
			Resource: Normalize(stored.GetResource()), Material: stored.GetMaterial(), Applied: stored.GetApplied(), Created: created,
		})
	}
	var extra []Conflict
	for _, kind := range Kinds() {
		for stored := range s.All(kind) {
			key, _ := KeyOf(stored.GetResource())
			switch {
			case kept[key]:
			case !key.Kind.Single():
				extra = append(extra, Conflict{Key: key, Owner: stored.GetResource().GetOwner()})
				change.Deletes = append(change.Deletes, key.String())
			case cmd.GetReplace(): // they cannot go: they are emptied
				change.Upserts = append(change.Upserts, &raftv1.StoredResource{Resource: emptySettings()})
			}
		}
	}
	if len(extra) > 0 && !cmd.GetReplace() {
		return nil, nil, &ConflictError{Reason: WouldDelete, Conflicts: extra}
	}
	return change, &State{s.clusterID, newest, s.records, s.index}, nil
}

func emptySettings() *lbdv1.Resource {
	return &lbdv1.Resource{Spec: &lbdv1.Resource_ClusterSettings{ClusterSettings: &lbdv1.ClusterSettings{}}}
}

// restoreTokens puts the backup's credentials in place, but for those that have expired meanwhile.
func (e *edit) restoreTokens(before *State, cmd *raftv1.RestoreCommand, res *Result) {
	kept := make(map[string]bool)
	for _, t := range cmd.GetTokens() {
		key := tokenKey(t.GetToken().GetId())
		if TokenExpired(t.GetToken(), cmd.GetTime().AsTime()) {
			continue
		}
		kept[key] = true
		if old, ok := before.records.Get([]byte(key)); ok && proto.Equal(old, t) {
			continue
		}
		e.forgetExpired(before, t.GetToken().GetPublicKey(), cmd.GetTime().AsTime())
		e.put(key, t)
		res.Count++
	}
	if !cmd.GetReplace() {
		return
	}
	for key := range before.prefix(tokenPrefix) {
		if !kept[key] {
			e.remove(key)
		}
	}
}

// faultsOfTokens reports credentials that could not have been made, or not beside those that stay.
func (s *State) faultsOfTokens(cmd *raftv1.RestoreCommand) []*lbdv1.Violation {
	c := &checker{base: New(""), next: New("")}
	seen := make(map[string]bool)
	held := s.heldBeside(cmd)
	stay := len(held)
	pins := make(map[string]string) // who has a client certificate's key
	for _, t := range held {
		if !TokenExpired(t, cmd.GetTime().AsTime()) {
			pins[t.GetPublicKey()] = t.GetId()
		}
	}
	for i, t := range cmd.GetTokens() {
		c.field = itemPath("tokens", i)
		if id := t.GetToken().GetId(); seen[id] {
			c.errorf("id", "`%s` is there twice", id)
		}
		seen[t.GetToken().GetId()] = true
		if TokenExpired(t.GetToken(), cmd.GetTime().AsTime()) {
			continue
		}
		stay++
		c.checkToken(t, &raftv1.TokenCommand{Time: cmd.GetTime()})
		c.checkPin(t.GetToken(), pins)
	}
	c.field = ""
	c.checkMost("tokens", max(stay, len(cmd.GetTokens())), tokensMax)
	return c.violations
}

// heldBeside are the credentials that a restore leaves as they are.
func (s *State) heldBeside(cmd *raftv1.RestoreCommand) []*lbdv1.Token {
	if cmd.GetReplace() {
		return nil
	}
	named := make(map[string]bool)
	for _, t := range cmd.GetTokens() {
		named[t.GetToken().GetId()] = !TokenExpired(t.GetToken(), cmd.GetTime().AsTime())
	}
	var held []*lbdv1.Token
	for stored := range s.Tokens() {
		if t := stored.GetToken(); !named[t.GetId()] {
			held = append(held, t)
		}
	}
	return held
}

// restoreDigest is a digest of what the caller asked for: the backup without the bytes of sealed keys, which differ from one
// sending to the next.
func restoreDigest(cmd *raftv1.RestoreCommand) []byte {
	h := sha256.New()
	h.Write(encode(&raftv1.RestoreCommand{Message: cmd.GetMessage(), Replace: cmd.GetReplace(), Tokens: cmd.GetTokens()}))
	for _, stored := range cmd.GetResources() {
		up := &raftv1.StoredResource{Resource: stored.GetResource(), Applied: stored.GetApplied(), Created: stored.GetCreated()}
		if m := stored.GetMaterial(); m != nil {
			up.Material = &raftv1.CertificateMaterial{Chain: m.GetChain(), PublicKeySha256: m.GetPublicKeySha256()}
		}
		h.Write(encode(up))
	}
	return h.Sum(nil)
}
