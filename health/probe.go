package health

import (
	"container/heap"
	"slices"
	"time"
)

// Status is what is known of one checked backend.
type Status struct {
	State State
	// Since is when the state began; for Unknown, when the check was added.
	Since time.Time
	// LastCheck is when the last check ended; zero before the first.
	LastCheck time.Time
	// LastError is the last failure's words; it stays after a recovery. Empty if there was none.
	LastError string
	// Transitions are the last eight changes of state, oldest first.
	Transitions []Transition
}

// Transition is one change of state.
type Transition struct {
	At    time.Time
	State State
	// Cause is the failure that took the backend down; empty for one that came up.
	Cause string
}

// probe is one key's check, its state and when it is due.
type probe struct {
	key         Key
	check       Check // complete
	tracker     Tracker
	inherited   bool // the state is another check's
	results     int
	since       time.Time
	lastCheck   time.Time
	lastError   string
	transitions []Transition

	due   time.Time
	index int // in the queue, or notQueued
}

func newProbe(key Key, check Check, now time.Time) *probe {
	return &probe{
		key:     key,
		check:   check,
		tracker: NewTracker(Unknown, check.Rise, check.Fall),
		since:   now,
	}
}

// inherit takes over what another check of the same address has found.
func (b *probe) inherit(old *probe) {
	b.tracker = NewTracker(old.tracker.State(), b.check.Rise, b.check.Fall)
	b.inherited = true
	b.since = old.since
	b.lastCheck = old.lastCheck
	b.lastError = old.lastError
	b.transitions = old.transitions
}

// observe takes one result and reports whether the state has changed.
func (b *probe) observe(err error, now time.Time) bool {
	b.lastCheck = now
	b.results++
	if err != nil {
		b.lastError = err.Error()
	}
	if !b.tracker.Observe(err == nil) {
		return false
	}
	b.since = now
	flip := Transition{At: now, State: b.tracker.State()}
	if err != nil {
		flip.Cause = b.lastError
	}
	if len(b.transitions) == transitionsMax {
		b.transitions = slices.Delete(b.transitions, 0, 1)
	}
	b.transitions = append(b.transitions, flip)
	return true
}

// interval until the next check: shorter until this check has had the chance to decide by itself.
func (b *probe) interval() time.Duration {
	settling := b.tracker.State() == Unknown || (b.inherited && b.results < max(b.check.Rise, b.check.Fall))
	if settling {
		return min(b.check.Interval, max(settlingIntervalMax, b.check.Timeout))
	}
	return b.check.Interval
}

func (b *probe) status() Status {
	return Status{
		State:       b.tracker.State(),
		Since:       b.since,
		LastCheck:   b.lastCheck,
		LastError:   b.lastError,
		Transitions: slices.Clone(b.transitions),
	}
}

// dueQueue is a heap of probes by the time at which they are due.
type dueQueue []*probe

const notQueued = -1

var _ heap.Interface = (*dueQueue)(nil)

func (q dueQueue) Len() int           { return len(q) }
func (q dueQueue) Less(i, j int) bool { return q[i].due.Before(q[j].due) }
func (q dueQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

func (q *dueQueue) Push(x any) {
	b := x.(*probe)
	b.index = len(*q)
	*q = append(*q, b)
}

func (q *dueQueue) Pop() any {
	last := len(*q) - 1
	b := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	b.index = notQueued
	return b
}
