package state

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// Result is the answer to a command.
type Result struct {
	// The revision that the command made; where nothing changed, the newest.
	Revision int64
	// What the revision did, ordered as in a document. Empty: everything was so already, and no revision was made. Of a command about
	// tokens: which it has revoked and made, as kind "tokens".
	Changes []*lbdv1.Change
	// What the change was warned of.
	Warnings []*lbdv1.Violation
	// What an override command put in force, and what it ended, each by pool and address. A replay has neither.
	Overrides, Ended []*lbdv1.Override
	// Secrets that a reseal sealed anew, keys that a purge removed, credentials that a restore put in place.
	Count int64
	// Replayed: the request id was known, the answer is the one given then.
	Replayed bool
	// *InvalidError, *ConflictError, *MissingError, *PanicError, ErrPartsMissing, ErrUnknownCommand, ErrFormat: the resources are unchanged.
	Err error
	// Keys of the records that differ from those of the state before, for Record; ordered.
	Touched []string
}

// Apply is the state after a command, and the command's answer. The receiver does not change. A refused command leaves
// the resources as they were; its result says why.
func (s *State) Apply(cmd *raftv1.Command) (next *State, res Result) {
	defer func() {
		if v := recover(); v != nil {
			next, res = s, Result{Revision: s.revision, Err: &PanicError{v, debug.Stack()}}
		}
	}()
	e := s.edit()
	switch kind := cmd.GetKind().(type) {
	case *raftv1.Command_Change:
		next, res = s.change(e, kind.Change)
	case *raftv1.Command_Part:
		next, res = s.part(e, kind.Part)
	case *raftv1.Command_Commit:
		next, res = s.commit(e, kind.Commit)
	case *raftv1.Command_Override:
		next, res = s.override(e, kind.Override)
	case *raftv1.Command_Token:
		next, res = s.token(e, kind.Token)
	case *raftv1.Command_Authority:
		next, res = s.authority(e, kind.Authority)
	case *raftv1.Command_Reseal:
		next, res = s.reseal(e, kind.Reseal)
	case *raftv1.Command_Purge:
		next, res = s.purge(e, kind.Purge)
	case *raftv1.Command_Restore:
		next, res = s.restore(e, kind.Restore)
	case *raftv1.Command_Node:
		next, res = s.node(e, kind.Node)
	case *raftv1.Command_JoinToken:
		next, res = s.joinToken(e, kind.JoinToken)
	case *raftv1.Command_Gate:
		next, res = s.gate(e, kind.Gate)
	case *raftv1.Command_Epoch:
		next, res = s.epoch(e, kind.Epoch)
	case *raftv1.Command_TicketKeys:
		next, res = s.ticketKeys(e, kind.TicketKeys)
	default:
		next, res = s.next(e, cmd)
	}
	res.Touched = slices.Sorted(maps.Keys(e.touched))
	return next, res
}

// change makes one revision of a change, or none:
//
//  1. answer a repeated request as before
//  2. refuse what was made for another state
//  3. bring everything into its stored form
//  4. refuse what is invalid, or belongs to another owner
//  5. keep what differs, and what was there before
//  6. make the revision of it, and say so in the audit
//  7. end overrides of backends that are gone
//  8. remember the request, forget what is too old, and uploads that were given up
//  9. refuse what is too much for the state's budget
func (s *State) change(e *edit, change *raftv1.ChangeCommand) (*State, Result) {
	digest := changeDigest(change)
	if id := change.GetRequestId(); id != "" {
		if known, ok := s.request(id); ok {
			return s, replay(known, digest)
		}
	}
	if err := s.checkPreconditions(change); err != nil {
		return s, Result{Revision: s.revision, Err: err}
	}
	change = normalizeChange(change)
	violations := check(s, change, true)
	if hasError(violations) {
		return s, Result{Revision: s.revision, Err: &InvalidError{violations}}
	}
	if conflicts := s.conflicts(change); len(conflicts) > 0 {
		return s, Result{Revision: s.revision, Err: &ConflictError{Reason: OwnedByOther, Conflicts: conflicts}}
	}
	res := Result{Warnings: violations}
	res.Changes = e.store(s, change)
	if len(res.Changes) > 0 {
		e.revision++
		e.put(revisionKey(e.revision), e.newRevision(change, res.Changes))
		e.audit(change.GetAuthor(), change.GetTime(), change.GetOrigin(), changesText(change.GetOwner(), change.GetMessage(), res.Changes), e.revision)
		e.endOrphans(res.Changes)
		e.forgetRevisions(change.GetOwner(), change.GetTime())
	}
	res.Revision = e.revision
	if id := change.GetRequestId(); id != "" {
		e.put(requestKey(e.revision, id), &raftv1.Request{Id: id, Revision: e.revision, Digest: digest, Changes: res.Changes})
		e.forgetRequests()
	}
	e.forgetStaleUploads(change.GetTime(), 0)
	next := e.state()
	if err := s.withinBudget(next, res.Changes); err != nil {
		roomy, told, ok := next.forgetForRoom()
		if !ok {
			return s, Result{Revision: s.revision, Err: err}
		}
		next = roomy
		res.Warnings = append(res.Warnings, &lbdv1.Violation{Severity: lbdv1.Severity_SEVERITY_WARNING, Description: told})
	}
	return next, res
}

// conflicts are the resources of the change that another owner holds. What the first start made may be taken over by
// naming it.
func (s *State) conflicts(change *raftv1.ChangeCommand) []Conflict {
	if change.GetTakeOver() {
		return nil
	}
	held := make(map[Key]string)
	note := func(key Key, own ...string) {
		stored, ok := s.Get(key.Kind, key.Name)
		owner := stored.GetResource().GetOwner()
		if ok && !key.Kind.Single() && !slices.Contains(own, owner) {
			held[key] = owner
		}
	}
	for _, up := range change.GetUpserts() {
		key, _ := KeyOf(up.GetResource())
		note(key, change.GetOwner(), OwnerDev)
	}
	for _, text := range change.GetDeletes() {
		key, _ := ParseKey(text)
		note(key, change.GetOwner())
	}
	return conflictsOf(held)
}

// store puts and removes what differs from the state before, as part of the next revision.
func (e *edit) store(before *State, change *raftv1.ChangeCommand) []*lbdv1.Change {
	made := make(map[Key]*lbdv1.Change)
	for _, up := range change.GetUpserts() {
		key, _ := KeyOf(up.GetResource())
		stored, existed := before.Get(key.Kind, key.Name)
		if existed && same(stored, up) {
			continue
		}
		made[key] = &lbdv1.Change{Action: lbdv1.ChangeAction_CHANGE_ACTION_CREATE}
		if existed {
			made[key].Action = lbdv1.ChangeAction_CHANGE_ACTION_UPDATE
		}
		// An apply that made it once may prune it, whoever changed it since.
		up.Applied = up.GetApplied() || change.GetApplied() || stored.GetApplied()
		up.Created = cmp.Or(e.age(stored, up, change), before.revision+1)
		up.Resource.Revision = before.revision + 1
		up.Resource.UpdateTime = change.GetTime()
		up.Resource.Etag = etag(up)
		e.put(resourceKey(key), up)
	}
	for _, text := range change.GetDeletes() {
		key, _ := ParseKey(text)
		made[key] = &lbdv1.Change{Action: lbdv1.ChangeAction_CHANGE_ACTION_DELETE}
		e.remove(resourceKey(key))
	}
	keys := slices.Collect(maps.Keys(made))
	sortKeys(keys)
	changes := make([]*lbdv1.Change, len(keys))
	for i, key := range keys {
		was, _ := before.Get(key.Kind, key.Name)
		changes[i] = made[key]
		changes[i].Kind, changes[i].Name, changes[i].TakenFrom = string(key.Kind), key.Name, takenFrom(was, e.taker(key, was, change))
		e.remember(before.revision+1, key, was)
	}
	return changes
}

// takenFrom is the owner who loses a resource by another's change of it; empty: nobody does.
func takenFrom(was *raftv1.StoredResource, owner string) string {
	before := was.GetResource()
	if key, ok := KeyOf(before); !ok || key.Kind.Single() || before.GetOwner() == owner {
		return ""
	}
	return before.GetOwner()
}

// age is the revision that made a resource: what a rollback brings back is as old as it was, and what a restore (a change of nobody)
// brings is as old as in the backup. 0: it is new.
func (e *edit) age(stored, up *raftv1.StoredResource, change *raftv1.ChangeCommand) int64 {
	if change.GetOwner() == "" {
		return up.GetCreated()
	}
	return cmp.Or(Created(stored), up.GetCreated())
}

// taker is who has a resource after the change: its owner, but in a restore whom the backup names.
func (e *edit) taker(key Key, was *raftv1.StoredResource, change *raftv1.ChangeCommand) string {
	if change.GetOwner() != "" {
		return change.GetOwner()
	}
	if m, ok := e.records.Get([]byte(resourceKey(key))); ok {
		return m.(*raftv1.StoredResource).GetResource().GetOwner()
	}
	return was.GetResource().GetOwner()
}

// Created is the revision that made a resource: of two routes that cannot be told apart the older one wins.
func Created(stored *raftv1.StoredResource) int64 {
	return cmp.Or(stored.GetCreated(), stored.GetResource().GetRevision())
}

// same tells whether a normalised resource is what is stored. Sealing the same key twice gives different bytes, so a
// key is compared by its public half.
func same(stored, up *raftv1.StoredResource) bool {
	a, b := stored.GetResource(), up.GetResource()
	if a.GetOwner() != b.GetOwner() || !proto.Equal(Spec(a), Spec(b)) {
		return false
	}
	m, n := stored.GetMaterial(), up.GetMaterial()
	return bytes.Equal(m.GetPublicKeySha256(), n.GetPublicKeySha256()) && slices.EqualFunc(m.GetChain(), n.GetChain(), bytes.Equal)
}

func (e *edit) newRevision(change *raftv1.ChangeCommand, changes []*lbdv1.Change) *lbdv1.Revision {
	return &lbdv1.Revision{
		Number:      e.revision,
		Owner:       change.GetOwner(),
		Author:      change.GetAuthor(),
		Time:        change.GetTime(),
		Message:     change.GetMessage(),
		Changes:     changes,
		ContentHash: e.contentHash(changes),
	}
}

// contentHash is SHA-256 over the changes in order, each with the resource as it is stored now, in hex.
func (e *edit) contentHash(changes []*lbdv1.Change) string {
	h := sha256.New()
	write := func(b []byte) {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(b))))
		h.Write(b)
	}
	for _, c := range changes {
		write(encode(c))
		if m, ok := e.records.Get([]byte(resourceKey(Key{Kind(c.GetKind()), c.GetName()}))); ok {
			write(encode(m))
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}

// etag is a digest of a resource as stored; the revision in it makes it differ after every change.
func etag(stored *raftv1.StoredResource) string {
	sum := sha256.Sum256(encode(stored))
	return hex.EncodeToString(sum[:8])
}

// encode is the same bytes for the same message. It panics on strings that are no UTF-8, which Apply contains.
func encode(m proto.Message) []byte {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		panic(fmt.Errorf("encode %s: %w", m.ProtoReflect().Descriptor().FullName(), err))
	}
	return b
}

// forgetRevisions drops what the owner's history may no longer hold at the time of its newest revision.
func (e *edit) forgetRevisions(owner string, now *timestamppb.Timestamp) {
	view := e.view()
	kept := view.counter(keptIndex(owner))
	oldest := now.AsTime().Add(-revisionsKeptFor)
	view.indexed(historyIndex(owner), func(rest string) bool {
		r, _ := view.RevisionAt(int64(binary.BigEndian.Uint64([]byte(rest))))
		old := r.GetTime().AsTime().Before(oldest)
		if kept <= revisionsKeptMin || (!old && kept <= revisionsKeptMax) {
			return false
		}
		kept--
		e.forgetRevision(view, r.GetNumber())
		return true
	})
}
