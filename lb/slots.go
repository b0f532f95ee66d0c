package lb

import (
	"slices"
	"sync/atomic"
)

// slots bound the connections to one backend, over all loops, and hold the line of requests that wait for one.
//
// A connection has its slot from before its dial until the kernel has its close, so the backend never sees one too many; an idle one
// has it, too. Whoever is first in line, and nobody else, may take what becomes free: an idle connection or a slot. Where nobody
// waits, those may who wait for other backends of a pool.
type slots struct {
	open    atomic.Int64            // slots taken
	line    line                    // all pools'
	roamers atomic.Pointer[[]*line] // of the pools that have the backend and a queue; nil: none
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

// offer tells the first in line that there may be something for it; with nobody in line, the first of each pool that would come here.
func (s *slots) offer() {
	if s.line.length.Load() > 0 {
		s.line.tell() // if the last one leaves meanwhile, it offers
		return
	}
	if all := s.roamers.Load(); all != nil {
		for _, l := range *all {
			l.tell()
		}
	}
}

// heedRoamers makes known who else may take what becomes free. The caller holds Server.mu.
func (b *Backend) heedRoamers() {
	var all []*line
	for _, p := range b.pools {
		if p.queue != nil && !slices.Contains(all, p.roamers) {
			all = append(all, p.roamers)
		}
	}
	if all == nil {
		b.roamers.Store(nil)
		return
	}
	b.roamers.Store(&all)
}

// queueShare is what of a backend's line is one pool's. It is counted by the pool's name and the backend: pools of several owners have
// one backend in common, and nobody fills another's queue.
type queueShare struct {
	waiting  atomic.Int32
	full     atomic.Int64 // found no place
	timeouts atomic.Int64
}

// join takes a place, unless length are taken.
func (q *queueShare) join(length int) bool {
	for {
		n := q.waiting.Load()
		if int(n) >= length {
			q.full.Add(1)
			return false
		}
		if q.waiting.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (q *queueShare) leave() { q.waiting.Add(-1) }
