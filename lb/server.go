package lb

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"

	"lbd/lb/loop"
)

// Terminator ends TLS on a connection.
type Terminator interface {
	// Handshake does the server's side of a handshake under the policy of the named listener. c is a *loop.Conn whose
	// deadlines are set; the result reads and writes through it. It does not close c. With an error the connection may be
	// returned as far as it came, and the error may have a method Detail() string: a stable word for the access log.
	Handshake(c net.Conn, listener string) (*tls.Conn, error)
}

// Options say what a Server works with.
type Options struct {
	Engine     *loop.Engine // closed by its owner, after Drain
	Terminator Terminator   // needed once a listener has TLS
	Logger     *slog.Logger // slog.Default if nil
	// AccessLog is called at the end of every exchange, on its loop: it must neither block nor keep the record. Nil: none.
	AccessLog func(*Record)
	// Node is this node's name, for records and Via.
	Node string
}

// Server is the data plane of one node: listeners, the table they serve and the backends behind it. Its exported methods
// that change something are for one goroutine, the publisher; what they change is seen by the loops through atomic stores.
type Server struct {
	options Options
	log     *slog.Logger
	table   atomic.Pointer[Table]
	shards  []shard // one per loop

	trafficShards int // places to count in, for each route and backend

	connections atomic.Int64 // clients
	retries     atomic.Int64
	draining    atomic.Bool
	emptied     chan struct{} // one slot: connections has reached 0

	mu        sync.Mutex // listeners, backends and what of a Backend says so: readers are Stats and the publisher
	listeners map[string]*listener
	backends  map[string]*Backend
	traffic   map[trafficKey]*traffic // of the served table's routes
}

// shard is what the tasks of one loop share. It belongs to that loop: no lock.
type shard struct {
	spare []*exchange
	date  httpDate
	_     [64]byte
}

// NewServer returns a server without listeners and with an empty table.
func NewServer(options Options) *Server {
	s := &Server{
		options:   options,
		log:       options.Logger,
		shards:    make([]shard, options.Engine.Loops()),
		emptied:   make(chan struct{}, 1),
		listeners: make(map[string]*listener),
		backends:  make(map[string]*Backend),

		trafficShards: min(options.Engine.Loops(), trafficShardsMax),
	}
	if s.log == nil {
		s.log = slog.Default()
	}
	s.table.Store(&Table{})
	return s
}

// NewPool compiles a pool. Backends with a key that the server knows are kept, with their connections, counters and
// eligibility; new ones are eligible. The pool serves once a table that leads to it is set.
func (s *Server) NewPool(cfg PoolConfig) *Pool {
	s.mu.Lock()
	defer s.mu.Unlock()
	members := make([]member, 0, len(cfg.Backends))
	for i := range cfg.Backends {
		bc := &cfg.Backends[i]
		b := s.backends[bc.Key]
		if b == nil {
			b = newBackend(bc, s.options.Engine.Loops())
			s.backends[bc.Key] = b
		}
		if old := b.address.Load(); old == nil || *old != bc.Address {
			b.address.Store(&bc.Address)
			b.refreshPools()
		}
		members = append(members, member{backend: b, weight: bc.Weight})
	}
	p := newPool(&cfg, members)
	for _, m := range members {
		m.backend.pools = append(m.backend.pools, p)
	}
	return p
}

// SetEligible says whether the backend with that key may take requests; an unknown key is ignored. Requests that are
// under way are left alone.
func (s *Server) SetEligible(key string, eligible bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.backends[key]
	if b == nil || b.ineligible == !eligible {
		return
	}
	b.ineligible = !eligible
	b.refreshPools()
}

// SetTable makes t what is served, by one atomic store: a request sees the table before or t, whole. Backends that no pool
// of t names are forgotten; their idle connections end by their idle time.
func (s *Server) SetTable(t *Table) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.adopt(t)
	s.table.Store(t)
	for _, b := range s.backends {
		b.pools = b.pools[:0]
	}
	for _, p := range t.pools {
		for _, m := range p.members {
			m.backend.pools = append(m.backend.pools, p)
		}
	}
	for key, b := range s.backends {
		if len(b.pools) == 0 {
			delete(s.backends, key)
		}
	}
}

// Drain takes the server out of service: listeners close, idle connections are closed at once, the others with the end of
// the request that they are at, or of one last one that is on its way. It returns when all are gone, or ctx's error;
// closing the engine ends the rest.
func (s *Server) Drain(ctx context.Context) error {
	s.draining.Store(true)
	s.mu.Lock()
	all := make([]*listener, 0, len(s.listeners))
	for _, l := range s.listeners {
		all = append(all, l)
	}
	clear(s.listeners)
	s.mu.Unlock()
	for _, l := range all {
		l.close()
	}
	for s.connections.Load() > 0 {
		select {
		case <-s.emptied:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// gone counts one client connection less.
func (s *Server) gone() {
	if s.connections.Add(-1) == 0 {
		select {
		case s.emptied <- struct{}{}:
		default:
		}
	}
}
