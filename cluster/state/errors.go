package state

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	lbdv1 "lbd/proto/lbd/v1"
)

var (
	// ErrUnknownCommand refuses a log entry of a kind that this build does not know: the node is older than the leader.
	ErrUnknownCommand = errors.New("unknown command: this node is older than the one that wrote the log")
	// ErrPartsMissing refuses a commit whose parts are not all there any more. Sending the whole again helps.
	ErrPartsMissing = errors.New("parts of the change are missing: send it again")
	// ErrFormat refuses a snapshot or durable state that another version wrote, and of the log a command that a newer build
	// wrote. Who applies the log must stop before that command: to skip it would be to hold another state than the others.
	ErrFormat = errors.New("unknown format")
	// ErrDamaged refuses a record that cannot be what was written.
	ErrDamaged = errors.New("damaged record")
	// ErrLastAdmin refuses what would leave nobody who may administer the cluster.
	ErrLastAdmin = errors.New("no bearer token of an admin who is bound to no owner would be left, and local_admin is false: make another one first")
	// ErrNotKept: history does not hold what is asked for.
	ErrNotKept = errors.New("not in the history that is kept")
)

// InvalidError refuses a change for what it says. The caller has to change it.
type InvalidError struct {
	// Errors and warnings; at least one error.
	Violations []*lbdv1.Violation
}

func (e *InvalidError) Error() string {
	var first *lbdv1.Violation
	n := 0
	for _, v := range e.Violations {
		if v.GetSeverity() == lbdv1.Severity_SEVERITY_ERROR {
			if n++; first == nil {
				first = v
			}
		}
	}
	text := fmt.Sprintf("invalid change: %s: %s", first.GetField(), first.GetDescription())
	if n > 1 {
		text += fmt.Sprintf(" (and %d more)", n-1)
	}
	return text
}

// FullError refuses what there is no room for, though it is in order. Something else has to go first.
type FullError struct{ Text string }

func (e *FullError) Error() string { return e.Text }

// ConflictReason says what a change collided with, as ErrorInfo names it.
type ConflictReason string

const (
	// OwnedByOther: resources belong to another owner, and the change does not take them over.
	OwnedByOther ConflictReason = "OWNED_BY_OTHER"
	// RequestIDReused: the request id was used for another change.
	RequestIDReused ConflictReason = "REQUEST_ID_REUSED"
	// RevisionMoved: the owner's newest revision is not the one that the change was made for.
	RevisionMoved ConflictReason = "REVISION_MISMATCH"
	// ResourceMoved: resources are not as they were when the change was made.
	ResourceMoved ConflictReason = "ETAG_MISMATCH"
	// WouldDelete: resources are not in the backup that is to be restored, and may not be deleted.
	WouldDelete ConflictReason = "WOULD_DELETE"
	// ChangedSince: somebody else has changed what is to be rolled back.
	ChangedSince ConflictReason = "CHANGED_SINCE"
	// ChangedLater: a later revision, of whatever owner, has changed what is to be undone alone.
	ChangedLater ConflictReason = "CHANGED_LATER"
)

// Conflict is a resource that another owner holds or has changed.
type Conflict struct {
	Key Key
	// Empty where the resource is gone, but for cluster_settings.
	Owner string
	// The resource's revision, for ResourceMoved; the newest one that changed it, 0 if it is forgotten, for ChangedLater.
	Revision int64
}

// conflictsOf are conflicts ordered by key.
func conflictsOf(owners map[Key]string) []Conflict {
	keys := slices.Collect(maps.Keys(owners))
	sortKeys(keys)
	conflicts := make([]Conflict, len(keys))
	for i, key := range keys {
		conflicts[i] = Conflict{Key: key, Owner: owners[key]}
	}
	return conflicts
}

// ConflictError refuses a change for what the cluster holds. Repeating it does not help.
type ConflictError struct {
	Reason ConflictReason
	// Ordered by key; for OwnedByOther, ResourceMoved, ChangedSince and ChangedLater.
	Conflicts []Conflict
	// Only for RevisionMoved: whose newest revision was to be Want and is Have.
	Owner      string
	Want, Have int64
}

func (e *ConflictError) Error() string {
	switch e.Reason {
	case RequestIDReused:
		return "conflict: this request id was used for another change: use a new one"
	case RevisionMoved:
		return fmt.Sprintf("conflict: the newest revision of owner `%s` is %d, not %d: see what changed and send the change again for %d",
			e.Owner, e.Have, e.Want, e.Have)
	case ResourceMoved:
		return "conflict: " + e.list(movedText) + ": read again and repeat the change"
	case WouldDelete:
		return "conflict: " + e.list(func(c Conflict) string { return c.Key.String() }) + ": not in the backup, to be deleted by the restore only if that is allowed"
	case ChangedSince:
		return "conflict: " + e.list(changedText) + ": put it back by an apply"
	case ChangedLater:
		return "conflict: " + e.list(laterText) + ": undo the later revisions first, the newest before the others, or put it right by an apply"
	default:
		return "conflict: " + e.list(heldText) + ": change it there or take it over"
	}
}

// Each tells of every cause apart: what it is about ("pools/shop", "owners/shop"), and in words.
func (e *ConflictError) Each(visit func(subject, text string)) {
	text := map[ConflictReason]func(Conflict) string{OwnedByOther: heldText, ResourceMoved: movedText, ChangedSince: changedText}[e.Reason]
	switch {
	case e.Reason == RevisionMoved:
		visit("owners/"+e.Owner, fmt.Sprintf("its newest revision is %d, not %d", e.Have, e.Want))
	case text == nil || len(e.Conflicts) == 0:
		visit("request", e.Error())
	default:
		for _, c := range e.Conflicts {
			visit(c.Key.String(), text(c))
		}
	}
}

func (e *ConflictError) list(text func(Conflict) string) string {
	texts := make([]string, len(e.Conflicts))
	for i, c := range e.Conflicts {
		texts[i] = text(c)
	}
	return strings.Join(texts, ", ")
}

func heldText(c Conflict) string { return fmt.Sprintf("%s belongs to owner `%s`", c.Key, c.Owner) }

func movedText(c Conflict) string {
	if c.Revision == 0 {
		return fmt.Sprintf("%s does not exist", c.Key)
	}
	return fmt.Sprintf("%s is as revision %d stored it", c.Key, c.Revision)
}

func changedText(c Conflict) string {
	if c.Owner == "" {
		return fmt.Sprintf("%s was changed or deleted by somebody else since", c.Key)
	}
	return fmt.Sprintf("%s was changed by owner `%s` since", c.Key, c.Owner)
}

func laterText(c Conflict) string {
	switch {
	case c.Revision == 0:
		return fmt.Sprintf("%s was changed or deleted later", c.Key)
	case c.Owner == "":
		return fmt.Sprintf("%s was changed by revision %d", c.Key, c.Revision)
	}
	return fmt.Sprintf("%s was changed by revision %d of owner `%s`", c.Key, c.Revision, c.Owner)
}

// MissingError refuses what is about something that is not there.
type MissingError struct {
	// Text names it, and what might be meant.
	Text string
	// Resource is what is not there: "pools/shop", "tokens/k3v9".
	Resource string
}

func (e *MissingError) Error() string { return e.Text }

// absentError is an ErrNotKept whose text says it all.
type absentError string

func (e absentError) Error() string { return string(e) }

func (e absentError) Is(target error) bool { return target == ErrNotKept }

// PanicError is a command whose application panicked: a fault of this program. The state is as before the command.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("apply panicked: %v", e.Value) }
