package lb

import (
	"container/list"
	"sync"
	"sync/atomic"

	"lbd/lb/loop"
)

// slots bound the connections to one backend, over all loops, and hold the line of requests that wait for one.
//
// A connection has its slot from before its dial until the kernel has its close, so the backend never sees one too many; an idle one
// has it, too. Whoever is first in line, and nobody else, may take what becomes free: an idle connection or a slot. It is told by
// its signal, which is raised after the thing is there to be seen, and looks only after lowering it: no wake-up is lost.
type slots struct {
	open    atomic.Int64 // slots taken
	waiting atomic.Int32 // length of line

	queueFull     atomic.Int64
	queueTimeouts atomic.Int64

	mu   sync.Mutex // never held while a task waits
	line list.List  // of *loop.Signal
}

// acquire takes a slot, unless limit are taken. A limit of 0 is none.
func (s *slots) acquire(limit int) bool {
	for {
		n := s.open.Load()
		if limit > 0 && n >= int64(limit) {
			return false
		}
		if s.open.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// release gives a slot back.
func (s *slots) release() {
	s.open.Add(-1)
	s.offer()
}

// offer tells the first in line that there may be something for it.
func (s *slots) offer() {
	if s.waiting.Load() == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.raiseFirstLocked()
}

// rouse tells all who wait to look again: whether they may wait here at all, or what the limit is, has changed.
func (s *slots) rouse() {
	if s.waiting.Load() == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for e := s.line.Front(); e != nil; e = e.Next() {
		e.Value.(*loop.Signal).Raise()
	}
}

func (s *slots) raiseFirstLocked() {
	if first := s.line.Front(); first != nil {
		first.Value.(*loop.Signal).Raise()
	}
}

// join takes a place at the end of the line; nil if it is full.
func (s *slots) join(signal *loop.Signal, length int) *list.Element {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.line.Len() >= length {
		s.queueFull.Add(1)
		return nil
	}
	s.waiting.Add(1)
	return s.line.PushBack(signal)
}

// first reports whether it is the turn of that place.
func (s *slots) first(place *list.Element) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.line.Front() == place
}

// leave gives up a place. If it was the first, the next one is told: there may be more than was taken.
func (s *slots) leave(place *list.Element) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := s.line.Front() == place
	s.line.Remove(place)
	s.waiting.Add(-1)
	if first {
		s.raiseFirstLocked()
	}
}
