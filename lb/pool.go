package lb

import (
	"cmp"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"lbd/lb/balance"
)

// Pool is a set of backends that answer the same requests. Its configuration never changes; which backends take requests
// does, by one atomic store.
type Pool struct {
	name               string
	server             *Server // nil: a pool without backends, for a table that is not served
	connectTimeout     time.Duration
	idleTimeout        time.Duration
	idlePerBackend     int
	maxPerBackend      int           // 0: no limit
	connectionRequests int           // likewise
	connectionAge      time.Duration // likewise
	queue              *Queue
	balance            Balance
	hashOn             HashOn
	persistence        *SessionPersistence
	slowStart          time.Duration
	drainTimeout       time.Duration
	failOpen           int
	ejection           *Ejection

	members []*member
	maglev  *balance.Maglev // of all members; nil if balance is another, or nobody has a weight
	choice  atomic.Pointer[choice]
	roamers *line                // requests that wait for a backend and may go to another, whatever form of the pool they came by
	next    atomic.Pointer[Pool] // the form that has replaced this one; nil if none has

	_     [64]byte
	turn  atomic.Uint64
	retry atomic.Int64 // retries in flight
	_     [64]byte
}

// member is a backend in its place in a pool, as configured, and its standing there.
type member struct {
	backend *Backend
	*standing
	weight     int
	backup     bool
	state      BackendState
	cutOff     bool
	drainSince time.Time
	mark       uint64 // that names it in a session's cookie
}

func newPool(cfg *PoolConfig) *Pool {
	p := &Pool{
		name:               cfg.Name,
		connectTimeout:     cmp.Or(cfg.ConnectTimeout, connectTimeout),
		idleTimeout:        cmp.Or(cfg.IdleTimeout, backendIdleTimeout),
		idlePerBackend:     max(0, cmp.Or(cfg.IdlePerBackend, idlePerBackend)),
		maxPerBackend:      cfg.MaxPerBackend,
		connectionRequests: cfg.ConnectionRequests,
		connectionAge:      cfg.ConnectionAge,
		queue:              cfg.Queue,
		balance:            cfg.Balance,
		hashOn:             cfg.HashOn,
		persistence:        cfg.Persistence.withDefaults(),
		slowStart:          cfg.SlowStart,
		drainTimeout:       cmp.Or(cfg.DrainTimeout, drainTimeout),
		failOpen:           cfg.FailOpen,
		ejection:           cfg.Ejection,
		roamers:            new(line),
	}
	// A random start: nodes that boot together must not send their first requests to the same backend.
	p.turn.Store(rand.Uint64())
	p.choice.Store(&choice{})
	return p
}

// join gives the pool its members. before is the pool that had the name until now, nil if it is new: its turn, and what it has
// learnt of backends that stay, go on.
func (p *Pool) join(cfg *PoolConfig, backends []*Backend, before *Pool) {
	known := make(map[*Backend]*member)
	if before != nil {
		p.roamers = before.roamers
		p.turn.Store(before.turn.Load())
		p.choice.Store(&choice{failOpen: before.FailOpen()})
		for _, m := range before.members {
			known[m.backend] = m
		}
	}
	for i := range cfg.Backends {
		c := &cfg.Backends[i]
		m := &member{
			backend: backends[i], weight: max(c.Weight, 0), backup: c.Backup,
			state: c.State, cutOff: c.CutOff, drainSince: c.DrainSince, mark: sessionMark(cfg.Name, c.Name),
		}
		if old := known[m.backend]; old != nil {
			m.standing = old.standing
		} else {
			m.standing = &standing{fresh: before == nil, down: c.Down}
		}
		p.members = append(p.members, m)
	}
	if p.balance == Maglev {
		p.maglev = p.newMaglev(cfg, before)
	}
}

// newMaglev makes the table, or takes over the one before if it would be the same: it costs some milliseconds.
func (p *Pool) newMaglev(cfg *PoolConfig, before *Pool) *balance.Maglev {
	same := before != nil && before.maglev != nil && len(before.members) == len(p.members)
	names, weights := make([]string, len(p.members)), make([]int, len(p.members))
	for i, m := range p.members {
		names[i], weights[i] = cfg.Backends[i].Name, m.weight
		same = same && before.members[i].mark == m.mark && before.members[i].weight == m.weight
	}
	if same {
		return before.maglev
	}
	return balance.NewMaglev(names, weights)
}

// Name returns the pool's name.
func (p *Pool) Name() string { return p.name }

// latest is the form of the pool that is served now.
func (p *Pool) latest() *Pool {
	for next := p.next.Load(); next != nil; next = p.next.Load() {
		p = next
	}
	return p
}

// FailOpen reports whether so few backends are eligible that all take requests.
func (p *Pool) FailOpen() bool { return p.choice.Load().failOpen }

// beginRetry takes a place in the retry budget, which the caller gives back with endRetry. The budget is a share of the
// requests in flight, in percent; left says that the one that asks is no longer counted among them.
func (p *Pool) beginRetry(percent int, left bool) bool {
	active := int64(0)
	if left {
		active = 1
	}
	for _, m := range p.members {
		active += m.backend.load.InFlight.Load()
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
	FailOpen bool // so few are eligible that all take requests
	Backends []PoolBackendStats
}

// PoolBackendStats is one backend in its place in a pool.
type PoolBackendStats struct {
	BackendStats
	Queued        int64 // requests of this pool that wait for a connection now
	QueueFull     int64 // that found no place to wait, so far
	QueueTimeouts int64 // that waited too long, so far

	Weight int
	Backup bool
	State  BackendState
	// Takes is whether it takes new requests in this pool now, and Why says why not in words ("down", "ejected until …", "drains",
	// "maintenance", "weight 0", "backup", "no address"); where it takes them in spite of that, Why says so, too.
	Takes bool
	Why   string
	// Effective is its weight now: less than Weight while it starts slowly, 0 while it takes no new requests.
	Effective    float64
	Ejections    int64     // so far, in this pool
	EjectedUntil time.Time // zero: it is not
	// LastFailure is how the last try of this pool failed there by the backend's fault, and LastFailureTime when; empty if none has. A status
	// of 5xx counts in a pool that ejects.
	LastFailure     string
	LastFailureTime time.Time
}

// stats is called under Server.mu.
func (p *Pool) stats() PoolStats {
	c := p.choice.Load()
	s := PoolStats{Name: p.name, FailOpen: c.failOpen}
	for i, m := range p.members {
		b := PoolBackendStats{
			BackendStats: m.backend.stats(), Weight: m.weight, Backup: m.backup, State: m.state,
			Queued: int64(m.queue.waiting.Load()), QueueFull: m.queue.full.Load(), QueueTimeouts: m.queue.timeouts.Load(),
			Ejections: m.ejections, EjectedUntil: m.ejectedUntil,
		}
		if last := m.last.Load(); last != nil {
			b.LastFailure, b.LastFailureTime = last.words(), last.at
		}
		if i < len(c.seats) {
			b.Takes, b.Why, b.Effective = c.seats[i].takes, p.explain(c, i), c.seats[i].weight(m)
		}
		s.Backends = append(s.Backends, b)
	}
	return s
}
