package lb

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"lbd/lb/balance"
)

// PoolConfig is a pool as the publisher compiles it.
type PoolConfig struct {
	Name           string
	Backends       []BackendConfig
	ConnectTimeout time.Duration // 3 s
	IdleTimeout    time.Duration // an unused connection's life; 4 s, or 1 s less than the backend announces
	IdlePerBackend int           // idle connections kept per backend, over all loops; 4096
}

// Pool is a set of backends that answer the same requests. Its configuration never changes; which backends are eligible
// does, by one atomic store.
type Pool struct {
	name           string
	connectTimeout time.Duration
	idleTimeout    time.Duration
	idlePerBackend int
	members        []member
	eligible       atomic.Pointer[eligible]

	_     [64]byte
	turn  atomic.Uint64
	retry atomic.Int64 // retries in flight
	_     [64]byte
}

type member struct {
	backend *Backend
	weight  int
}

// eligible is what Pick reads: immutable.
type eligible struct {
	backends []*Backend
	policy   balance.Policy // nil if nobody may be picked
}

func newPool(cfg *PoolConfig, members []member) *Pool {
	p := &Pool{
		name:           cfg.Name,
		connectTimeout: cmp.Or(cfg.ConnectTimeout, connectTimeout),
		idleTimeout:    cmp.Or(cfg.IdleTimeout, backendIdleTimeout),
		idlePerBackend: cmp.Or(cfg.IdlePerBackend, idlePerBackend),
		members:        members,
	}
	// A random start: nodes that boot together must not send their first requests to the same backend.
	p.turn.Store(rand.Uint64())
	p.refresh()
	return p
}

// Name returns the pool's name.
func (p *Pool) Name() string { return p.name }

// refresh compiles who is eligible now. The turn goes on where it was. Only the publisher calls it.
func (p *Pool) refresh() {
	next := &eligible{}
	var weights []int
	for _, m := range p.members {
		if m.backend.ineligible || m.weight <= 0 || !m.backend.address.Load().IsValid() {
			continue
		}
		next.backends = append(next.backends, m.backend)
		weights = append(weights, m.weight)
	}
	if policy := balance.NewRoundRobin(weights); policy != nil {
		next.policy = policy
	}
	p.eligible.Store(next)
}

// pick returns the backend whose turn it is, one that is not in tried if there is any, and nil if none is eligible. A retry
// takes no turn: else the backend behind the one that fails would get nothing but retries, and that one every first try.
func (p *Pool) pick(tried []*Backend) *Backend {
	e := p.eligible.Load()
	if e.policy == nil {
		return nil
	}
	if len(tried) == 0 {
		return e.backends[e.policy.Pick(p.turn.Add(1))]
	}
	var picked *Backend
	for range len(e.backends) {
		picked = e.backends[e.policy.Pick(rand.Uint64())]
		if !slices.Contains(tried, picked) {
			return picked
		}
	}
	for _, b := range e.backends {
		if !slices.Contains(tried, b) {
			return b
		}
	}
	return picked
}

// beginRetry takes a place in the retry budget, which the caller gives back with endRetry. The budget is a share of the
// requests in flight, in percent.
func (p *Pool) beginRetry(percent int) bool {
	active := int64(0)
	for _, m := range p.members {
		active += m.backend.inFlight.Load()
	}
	if p.retry.Add(1) <= max(retryBudgetMin, active*int64(percent)/100) {
		return true
	}
	p.retry.Add(-1)
	return false
}

func (p *Pool) endRetry() { p.retry.Add(-1) }

// PoolStats is a snapshot of one pool.
type PoolStats struct {
	Name     string
	Backends []PoolBackendStats
}

// PoolBackendStats is one backend in its place in a pool.
type PoolBackendStats struct {
	BackendStats
	Weight int
}

func (p *Pool) stats() PoolStats {
	s := PoolStats{Name: p.name}
	for _, m := range p.members {
		s.Backends = append(s.Backends, PoolBackendStats{BackendStats: m.backend.stats(), Weight: m.weight})
	}
	return s
}
