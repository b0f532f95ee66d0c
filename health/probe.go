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
	// LastErrorTime is when that was; zero if there was none.
	LastErrorTime time.Time
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
	given       bool // the state is another check's, an earlier process's or the check's start
	results     int
	moves       int // how often the address that is dialled has changed
	since       time.Time
	lastCheck   time.Time
	lastError   string
	lastErrorAt time.Time
	transitions []Transition

	due   time.Time
	index int // in the queue, or notQueued
}

func newProbe(key Key, check Check, now time.Time) *probe {
	return &probe{
		key:     key,
		check:   check,
		tracker: NewTracker(check.Start, check.Rise, check.Fall),
		given:   check.Start == Down,
		since:   now,
		index:   notQueued,
	}
}

// inherit takes over what another check of the same address has found.
func (b *probe) inherit(old *probe) {
	b.tracker = NewTracker(old.tracker.State(), b.check.Rise, b.check.Fall)
	b.given = true
	b.since = old.since
	b.lastCheck = old.lastCheck
	b.lastError, b.lastErrorAt = old.lastError, old.lastErrorAt
	b.transitions = old.transitions
}

// restore takes over what an earlier process has found.
func (b *probe) restore(s Saved) {
	b.tracker = NewTracker(s.State, b.check.Rise, b.check.Fall)
	b.given = true
	b.since = s.Since
	b.lastCheck = s.LastCheck
	b.lastError, b.lastErrorAt = s.LastError, s.LastErrorTime
}

// move changes what is dialled, and reports whether it did. The state stays and is then decided at the fast pace.
func (b *probe) move(check Check) bool {
	b.check.TLS = check.TLS // of the same key: the newest is good
	if b.check.Dial == check.Dial {
		return false
	}
	b.check.Dial = check.Dial
	b.given, b.results = true, 0
	b.moves++
	return true
}

// observe takes one result and reports whether the state has changed.
func (b *probe) observe(err error, now time.Time) bool {
	b.lastCheck = now
	b.results++
	if err != nil {
		b.lastError, b.lastErrorAt = err.Error(), now
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
	interval := b.check.Interval
	if b.tracker.State() == Down {
		interval = b.check.DownInterval
	}
	settling := b.tracker.State() == Unknown || (b.given && b.results < max(b.check.Rise, b.check.Fall))
	if settling {
		return min(interval, max(settlingIntervalMax, b.check.Timeout))
	}
	return interval
}

func (b *probe) status() Status {
	if b.tracker.State() == Down && b.lastError == "" {
		return Status{State: Down, Since: b.since, LastCheck: b.lastCheck, LastError: startsDown, LastErrorTime: b.since}
	}
	return Status{
		State:         b.tracker.State(),
		Since:         b.since,
		LastCheck:     b.lastCheck,
		LastError:     b.lastError,
		LastErrorTime: b.lastErrorAt,
		Transitions:   slices.Clone(b.transitions),
	}
}

// startsDown is why a backend is down that no check has spoken against.
const startsDown = "it starts down: no check has brought it up yet"

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
