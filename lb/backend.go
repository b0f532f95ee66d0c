package lb

import (
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"lbd/lb/balance"
)

// Backend is one server process as this node sees it: its idle connections and its counters. It belongs to the Server's
// register, by key, for as long as some pool of the served table names it.
type Backend struct {
	key, name string
	address   atomic.Pointer[netip.AddrPort]
	idle      []idleStack                // one per loop
	over      atomic.Pointer[backendTLS] // nil: in the clear

	// Under Server.mu.
	pools []*Pool

	_ [64]byte // the counters below are written by every loop: nothing read-mostly beside them
	backendCounters
	_ [64]byte
}

// backendCounters are the node's, not a loop's.
type backendCounters struct {
	load      balance.Load
	requests  atomic.Int64
	failures  atomic.Int64
	connects  atomic.Int64
	reuses    atomic.Int64
	idleTotal atomic.Int64
	warned    atomic.Int64 // seconds; when the log last said why it cannot be spoken to
	slots
}

func newBackend(cfg *BackendConfig, loops int) *Backend {
	return &Backend{key: cfg.Key, name: cfg.Name, idle: make([]idleStack, loops)}
}

// idleStack holds the idle connections of one loop, newest last. It belongs to that loop, so it has no lock; only count is
// read by others, when they look for a connection.
type idleStack struct {
	conns []*backendConn
	count atomic.Int32
	_     [64]byte
}

func (s *idleStack) push(bc *backendConn) {
	s.conns = append(s.conns, bc)
	s.count.Add(1)
}

// pop takes the newest: the others may reach their idle time, so that a burst's connections go away after it.
func (s *idleStack) pop() *backendConn {
	last := len(s.conns) - 1
	if last < 0 {
		return nil
	}
	bc := s.conns[last]
	s.conns[last] = nil
	s.conns = s.conns[:last]
	s.count.Add(-1)
	return bc
}

// remove takes bc out and reports whether it was there. The one that expires is nearly always the first.
func (s *idleStack) remove(bc *backendConn) bool {
	i := slices.Index(s.conns, bc)
	if i < 0 {
		return false
	}
	s.conns = slices.Delete(s.conns, i, i+1)
	s.count.Add(-1)
	return true
}

// pop takes the newest idle connection of a loop, on that loop; nil if it has none.
func (b *Backend) pop(loop int) *backendConn {
	bc := b.idle[loop].pop()
	if bc != nil {
		b.idleTotal.Add(-1)
	}
	return bc
}

// push keeps bc as idle on its loop. It reports false if the backend has enough idle ones.
func (b *Backend) push(bc *backendConn, limit int) bool {
	if b.idleTotal.Add(1) > int64(limit) {
		b.idleTotal.Add(-1)
		return false
	}
	b.idle[bc.loop].push(bc)
	return true
}

// remove takes bc out of its loop's stack if it is still there.
func (b *Backend) remove(bc *backendConn) {
	if b.idle[bc.loop].remove(bc) {
		b.idleTotal.Add(-1)
	}
}

// refreshPools compiles anew who is eligible wherever b is a member. The caller holds Server.mu.
func (b *Backend) refreshPools(now time.Time) {
	for _, p := range b.pools {
		p.refresh(now)
	}
}

// BackendStats is a snapshot of one backend's counters.
type BackendStats struct {
	Key, Name      string
	InFlight       int64 // requests that wait for or receive an answer; none that wait for a connection
	Requests       int64 // tries sent
	Failures       int64 // tries that brought no whole answer, by the backend's fault
	NewConnections int64 // connections made
	Reused         int64 // tries that found an idle connection
	Idle           int64 // connections that wait for a request
	Connections    int64 // open now, idle ones and dials under way included
	// Latency is the moving average from a request's last byte to its answer's first; 0 if no pool of the backend measures it.
	Latency time.Duration
}

func (b *Backend) stats() BackendStats {
	return BackendStats{
		Key: b.key, Name: b.name,
		InFlight: max(0, b.load.InFlight.Load()-int64(b.line.length.Load())), Requests: b.requests.Load(), Failures: b.failures.Load(),
		NewConnections: b.connects.Load(), Reused: b.reuses.Load(), Idle: b.idleTotal.Load(),
		Connections: b.open.Load(), Latency: b.load.Latency(),
	}
}
