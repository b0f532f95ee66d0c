package cluster

import (
	"errors"
	"fmt"

	"lbd/cluster/state"
)

// Refusals of a change that depend on what it says and on what the cluster holds: see package state.
type (
	InvalidError  = state.InvalidError
	ConflictError = state.ConflictError
)

var (
	// ErrNoLeader: nothing was stored; the same call may succeed soon.
	ErrNoLeader = errors.New("no leader: try again")
	// ErrOutcomeUnknown: the change may be stored or not; the same call with the same request id finds out and
	// changes nothing twice.
	ErrOutcomeUnknown = errors.New("the change may be stored or not: repeat it with the same request id")
	// ErrClosed: the node is closing or was never started; another node may take the call.
	ErrClosed = errors.New("node takes no changes: it is not running")
	// ErrRemoved: the node that asks is no member of the cluster any more, for good.
	ErrRemoved = errors.New("the node was removed from the cluster")
	// ErrLeftBehind is ErrRemoved of a node that the cluster has left behind with a new epoch. It holds whatever other nodes of the old one say.
	ErrLeftBehind = fmt.Errorf("%w, which has begun anew without it", ErrRemoved)
	// ErrCopied: the node that asks runs a copy of a data directory whose node runs elsewhere.
	ErrCopied = errors.New("the data directory is a copy: its node runs elsewhere")
	// ErrPast: what was asked for is too long ago.
	ErrPast = errors.New("that is too long ago")
	// ErrGate: nothing was stored: not every node's build could read it. The text says whose.
	ErrGate = errors.New("not every node can read this yet: upgrade the others first")
)

// NotLeaderError is ErrNoLeader of a node that does not lead.
type NotLeaderError struct {
	// Leader is the id of the node that does, as far as it is known; empty: none.
	Leader string
}

func (e *NotLeaderError) Error() string {
	if e.Leader == "" {
		return ErrNoLeader.Error()
	}
	return "node " + e.Leader + " leads, not this one"
}

// Is makes it an ErrNoLeader.
func (e *NotLeaderError) Is(target error) bool { return target == ErrNoLeader }

// OpenError says which file kept a node from opening, why, and what to do.
type OpenError struct {
	Path   string
	Err    error
	Remedy string
}

func (e *OpenError) Error() string { return fmt.Sprintf("open %s: %v: %s", e.Path, e.Err, e.Remedy) }

func (e *OpenError) Unwrap() error { return e.Err }

const (
	remedyLocked  = "stop the other lbd process, or choose another data directory"
	remedyDamaged = "put the data directory back from a copy; a node of a larger cluster can be removed from it and joined anew on an empty directory"
	remedyAccess  = "check the owner and the permissions of the data directory, and that its disk is mounted, writable and not full"
	remedyVersion = "start the version of lbd that wrote it, or a newer one"
)
