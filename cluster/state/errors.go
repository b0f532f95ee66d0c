package state

import (
	"errors"
	"fmt"
	"strings"

	lbdv1 "lbd/proto/lbd/v1"
)

var (
	// ErrUnknownCommand refuses a log entry of a kind that this build does not know: the node is older than the leader.
	ErrUnknownCommand = errors.New("unknown command: this node is older than the one that wrote the log")
	// ErrPartsMissing refuses a commit whose parts are not all there any more. Sending the whole again helps.
	ErrPartsMissing = errors.New("parts of the change are missing: send it again")
	// ErrFormat refuses a snapshot or durable state that another version wrote.
	ErrFormat = errors.New("unknown format")
	// ErrDamaged refuses a record that cannot be what was written.
	ErrDamaged = errors.New("damaged record")
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

// ConflictReason says what a change collided with, as ErrorInfo names it.
type ConflictReason string

const (
	// OwnedByOther: resources belong to another owner, and the change does not take them over.
	OwnedByOther ConflictReason = "OWNED_BY_OTHER"
	// RequestIDReused: the request id was used for another change.
	RequestIDReused ConflictReason = "REQUEST_ID_REUSED"
)

// Conflict is a resource that another owner holds.
type Conflict struct {
	Key   Key
	Owner string
}

// ConflictError refuses a change for what the cluster holds. Repeating it does not help.
type ConflictError struct {
	Reason ConflictReason
	// Ordered by key; only for OwnedByOther.
	Conflicts []Conflict
}

func (e *ConflictError) Error() string {
	if e.Reason == RequestIDReused {
		return "conflict: this request id was used for another change: use a new one"
	}
	held := make([]string, len(e.Conflicts))
	for i, c := range e.Conflicts {
		held[i] = fmt.Sprintf("%s belongs to owner `%s`", c.Key, c.Owner)
	}
	return "conflict: " + strings.Join(held, ", ") + ": change it there or take it over"
}

// PanicError is a command whose application panicked: a fault of this program. The state is as before the command.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("apply panicked: %v", e.Value) }
