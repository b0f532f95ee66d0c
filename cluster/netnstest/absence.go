//go:build linux

package netnstest

import (
	"slices"
	"sync"
	"time"
)

// absence remembers when hosts could not be reached or had no reason to answer. Its zero value is ready.
type absence struct {
	mu    sync.Mutex
	spans map[int][]*span
}

// span is a time; a zero end is: until now.
type span struct{ begin, end time.Time }

func (a *absence) begin(host int) *span {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.spans == nil {
		a.spans = map[int][]*span{}
	}
	s := &span{begin: time.Now()}
	a.spans[host] = append(a.spans[host], s)
	return s
}

func (a *absence) finish(s *span) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s.end.IsZero() {
		s.end = time.Now()
	}
}

// drop forgets a span.
func (a *absence) drop(host int, s *span) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.spans[host] = slices.DeleteFunc(a.spans[host], func(other *span) bool { return other == s })
}

func (a *absence) overlaps(host int, from, to time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.ContainsFunc(a.spans[host], func(s *span) bool {
		return !s.begin.After(to) && (s.end.IsZero() || !s.end.Before(from))
	})
}

// Excuse says that a host need not answer from now on (its process is killed, say) until the returned function is called.
func (n *Net) Excuse(host int) (end func()) {
	s := n.absence.begin(host)
	return func() { n.absence.finish(s) }
}

// Excused is whether the host could not be reached from Root, or was excused, at any moment between two times.
func (n *Net) Excused(host int, from, to time.Time) bool { return n.absence.overlaps(host, from, to) }
