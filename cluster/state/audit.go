package state

import (
	"encoding/binary"
	"fmt"
	"iter"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// The audit is what the cluster remembers of the commands that changed something: who, from where, what. Every command writes
// its entry when it is applied, so that no change is without one. A command that finds everything so already changes nothing
// and leaves none. What was refused never came here: each node keeps that by itself.

// Audit are the entries later than a time (zero: all that are kept), oldest first.
func (s *State) Audit(since time.Time) iter.Seq[*lbdv1.ListAuditResponse] {
	return func(yield func(*lbdv1.ListAuditResponse) bool) {
		for _, m := range s.prefix(auditPrefix) {
			entry := m.(*raftv1.AuditEntry).GetEntry()
			if entry.GetTime().AsTime().After(since) && !yield(entry) {
				return
			}
		}
	}
}

// audit records the command that the edit applies. The message is in words, for people; revision is the one that came of it, 0
// if none did.
func (e *edit) audit(author string, at *timestamppb.Timestamp, origin *raftv1.Origin, message string, revision int64) {
	n := e.newestAudit() + 1
	e.put(auditKey(n), &raftv1.AuditEntry{Number: n, Entry: &lbdv1.ListAuditResponse{
		Time: at, Author: author, Source: origin.GetSource(), Method: origin.GetMethod(),
		Result: auditAccepted, Message: cut(message, auditMessageBytesMax), Revision: revision, Count: 1,
	}})
	e.forgetAudit(n, at.AsTime().Add(-auditKeptFor))
}

const auditAccepted = "accepted"

// newestAudit is the number of the newest entry; 0: there is none.
func (e *edit) newestAudit() int64 {
	it := e.records.Root().ReverseIterator()
	it.SeekReverseLowerBound([]byte(auditKey(1<<63 - 1)))
	key, _, ok := it.Previous()
	if !ok || len(key) != len(auditPrefix)+8 || string(key[:len(auditPrefix)]) != auditPrefix {
		return 0
	}
	return int64(binary.BigEndian.Uint64(key[len(auditPrefix):]))
}

// forgetAudit drops what is too much and, but for the newest, what is too old.
func (e *edit) forgetAudit(newest int64, oldest time.Time) {
	var gone []string
	it := e.records.Root().Iterator()
	it.SeekPrefix([]byte(auditPrefix))
	for key, m, ok := it.Next(); ok; key, m, ok = it.Next() {
		entry := m.(*raftv1.AuditEntry)
		kept := newest - entry.GetNumber() // after this one: numbers have no gaps
		old := entry.GetEntry().GetTime().AsTime().Before(oldest)
		if kept < auditKeptMin || !old && kept < auditKeptMax {
			break
		}
		gone = append(gone, string(key))
	}
	for _, key := range gone {
		e.remove(key)
	}
}

// changesText counts what a revision did and names the first of it.
func changesText(owner, message string, changes []*lbdv1.Change) string {
	const named = 5
	var counts [4]int
	var names []string
	for _, c := range changes {
		if a := int(c.GetAction()); a > 0 && a < len(counts) {
			counts[a]++
		}
		if len(names) < named {
			names = append(names, Key{Kind(c.GetKind()), c.GetName()}.String())
		}
	}
	if len(changes) > named {
		names = append(names, "…")
	}
	text := fmt.Sprintf("%d created, %d updated, %d deleted: %s", counts[1], counts[2], counts[3], strings.Join(names, ", "))
	if owner != "" {
		text = "owner " + owner + ": " + text
	}
	if message != "" {
		text += " (" + message + ")"
	}
	return text
}

// cut shortens a text to so many bytes.
func cut(text string, bytesMax int) string {
	if len(text) <= bytesMax {
		return text
	}
	return strings.ToValidUTF8(text[:bytesMax-len("…")], "") + "…"
}

func auditKey(n int64) string { return auditPrefix + number(n) }
