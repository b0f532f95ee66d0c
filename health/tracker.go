// Package health finds out whether backends are alive, seen from this node. What it finds never leaves the node.
package health

// State is what is known of a backend.
type State uint8

// The states. A backend that is not Down takes requests: no check has ever spoken against it.
//
//	          ok                      fall failures in a row
//	Unknown ───────▶ Up ─────────────────────────────────────▶ Down
//	   │              ◀─────────────────────────────────────     ▲
//	   │                        rise successes in a row          │
//	   └─────────────────────────────────────────────────────────┘
//	                     fall failures in a row
const (
	Unknown State = iota
	Up
	Down
)

// String is the word that status and metrics use.
func (s State) String() string {
	switch s {
	case Up:
		return "UP"
	case Down:
		return "DOWN"
	}
	return "UNKNOWN"
}

// Eligible reports whether a backend in this state takes requests.
func (s State) Eligible() bool { return s != Down }

// Tracker turns single results into a state. It has no clock: what comes in is all there is.
type Tracker struct {
	state      State
	rise, fall int
	run        int // results in a row that speak against state
}

// NewTracker starts in a state. Rise and fall are at least 1.
func NewTracker(start State, rise, fall int) Tracker {
	return Tracker{state: start, rise: rise, fall: fall}
}

// State is the state now.
func (t *Tracker) State() State { return t.state }

// Observe takes one result and reports whether the state has changed.
//
// One success is enough to leave Unknown: the backend takes requests already. One failure is not: a blip in the first
// second after a start is no less a blip.
func (t *Tracker) Observe(ok bool) (flipped bool) {
	next, needed := Down, t.fall
	if ok {
		next, needed = Up, t.rise
	}
	if ok && t.state == Unknown {
		needed = 1
	}
	if t.state == next {
		t.run = 0
		return false
	}
	if t.run++; t.run < needed {
		return false
	}
	t.state, t.run = next, 0
	return true
}
