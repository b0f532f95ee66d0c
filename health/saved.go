package health

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Saved is what one process knew of a check, for the one after it: a restart must not put a dead backend back into service.
type Saved struct {
	Key       Key       `json:"key"`
	State     State     `json:"state"`
	Since     time.Time `json:"since"`
	LastCheck time.Time `json:"last_check"`
	LastError string    `json:"last_error,omitempty"`
	// LastErrorTime is zero if there was no error, and where an older process did not write it.
	LastErrorTime time.Time `json:"last_error_time,omitzero"`
	// At is when Snapshot was called. The zero value is for a process that may end without a word: the state is what it was when that
	// happened, however long it had not changed before.
	At time.Time `json:"at"`
}

// Snapshot lists what has been decided, by key. It goes into Options.Saved.
func (p *Prober) Snapshot() []Saved {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	all := make([]Saved, 0, len(p.probes))
	for key, b := range p.probes {
		if s := b.tracker.State(); s != Unknown && !b.lastCheck.IsZero() {
			all = append(all, Saved{
				Key: key, State: s, Since: b.since, LastCheck: b.lastCheck, LastError: b.lastError, LastErrorTime: b.lastErrorAt, At: now,
			})
		}
	}
	slices.SortFunc(all, func(a, b Saved) int { return strings.Compare(string(a.Key), string(b.Key)) })
	return all
}

// recallLocked finds what an earlier process knew of a check that this one has not had yet.
func (p *Prober) recallLocked(key Key, now time.Time) (Saved, bool) {
	saved, ok := p.saved[key]
	delete(p.saved, key)
	age := now.Sub(saved.At)
	return saved, ok && saved.State != Unknown && (saved.At.IsZero() || age >= 0 && age <= savedAgeMax)
}

// MarshalText is the state's word.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads the state's word; another one is an error.
func (s *State) UnmarshalText(text []byte) error {
	for _, state := range [...]State{Unknown, Up, Down} {
		if state.String() == string(text) {
			*s = state
			return nil
		}
	}
	return fmt.Errorf("no health state %q: want UNKNOWN, UP or DOWN", text)
}
