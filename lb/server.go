package lb

import (
	crand "crypto/rand"
	"crypto/tls"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

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
	// OnEvent is told what the server has decided by itself. It must neither block nor call the server. Nil: nobody.
	OnEvent func(Event)
	// Held keeps listeners from accepting until BeginAccepting: who connects meanwhile waits, or is another process's that has the same sockets.
	Held bool
	// Inherit is asked for each address that a listener is to accept on: which sockets of another process's are bound there. They stay the
	// callee's; there may be several for one address, as one for each loop. None, or nil: the address is bound anew.
	Inherit func(listener, address string) []*loop.Descriptor
	// Node is this node's name, for records and Via.
	Node string

	now func() time.Time // nil: time.Now; for tests
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
	accepted    atomic.Int64 // likewise, ever: the last id
	retries     atomic.Int64
	stage       atomic.Int32
	succeeded   atomic.Bool   // another process has the listening sockets, and the node was ready
	emptied     chan struct{} // one slot: connections has reached 0
	now         func() time.Time

	mu        sync.Mutex // stopped, listeners, backends and what of a Backend says so: readers are Stats and the publisher
	stopped   bool       // accepting, for good
	held      bool       // accepting has not begun; only the publisher
	listeners map[string]*listener
	backends  map[string]*Backend
	pools     map[string]*Pool        // the latest of each name
	traffic   map[trafficKey]*traffic // of the served table's routes
	leaving   bool                    // some of backends are in no pool, but have connections
}

// shard is what the tasks of one loop share. It belongs to that loop: no lock.
type shard struct {
	spare   []*exchange
	active  []*exchange
	date    httpDate
	clients clientList
	random  *rand.ChaCha8
	_       [64]byte
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
		pools:     make(map[string]*Pool),
		held:      options.Held,
		now:       options.now,

		trafficShards: min(options.Engine.Loops(), trafficShardsMax),
	}
	for i := range s.shards {
		s.shards[i].clients.init()
		var seed [32]byte
		crand.Read(seed[:])
		s.shards[i].random = rand.NewChaCha8(seed)
	}
	if s.log == nil {
		s.log = slog.Default()
	}
	if s.now == nil {
		s.now = time.Now
	}
	s.table.Store(&Table{})
	s.options.Engine.Go(s.keep)
	return s
}

// NewPool compiles a pool. Backends with a key that the server knows are kept, with their connections and counters, and what is known
// of them in a pool of that name; new ones are eligible unless they begin Down. The pool serves once a table that leads to it is set.
func (s *Server) NewPool(cfg PoolConfig) *Pool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	p := newPool(&cfg)
	p.server = s
	backends := make([]*Backend, len(cfg.Backends))
	for i := range cfg.Backends {
		backends[i] = s.backend(&cfg.Backends[i], now)
		backends[i].speak(cfg.TLS)
	}
	p.join(&cfg, backends, s.pools[cfg.Name])
	p.refresh(now)
	s.pools[cfg.Name] = p
	for _, b := range backends {
		b.pools = append(b.pools, p)
	}
	return p
}

// backend returns the backend of that key, made if it is new, with the address that it has now. The caller holds mu.
func (s *Server) backend(cfg *BackendConfig, now time.Time) *Backend {
	b := s.backends[cfg.Key]
	if b == nil {
		b = newBackend(cfg, s.options.Engine.Loops())
		s.backends[cfg.Key] = b
	}
	if old := b.address.Load(); old == nil || *old != cfg.Address {
		b.address.Store(&cfg.Address)
		b.refreshPools(now)
	}
	return b
}

// SetEligible says whether a pool's backend with that key may take requests: each pool has its own check. What is unknown is
// ignored. Requests that are under way are left alone.
func (s *Server) SetEligible(pool, key string, eligible bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pools[pool]
	if p == nil {
		return
	}
	changed := false
	for _, m := range p.members {
		if m.backend.key == key && m.down == eligible {
			m.down, changed = !eligible, true
		}
	}
	if !changed {
		return
	}
	now := s.now()
	p.refresh(now)
	for _, served := range s.table.Load().pools { // one that is made but not served yet has its members' standing in common with it
		if served.name == pool && served != p {
			served.refresh(now)
		}
	}
}

// SetTable makes t what is served, by one atomic store: a request sees the table before or t, whole. Backends that no pool
// of t names are forgotten once their last connection is closed, idle ones by their idle time.
func (s *Server) SetTable(t *Table) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.adopt(t)
	before := s.table.Load()
	s.table.Store(t)
	for _, b := range s.backends {
		b.pools = b.pools[:0]
	}
	for _, p := range t.pools {
		for _, m := range p.members {
			m.backend.pools = append(m.backend.pools, p)
		}
	}
	for _, b := range s.backends {
		b.heedRoamers()
	}
	s.forgetBackends()
	clear(s.pools)
	for _, p := range t.pools {
		s.pools[p.name] = p
		p.next.Store(nil) // it may have been served before
	}
	for _, p := range before.pools {
		if next := s.pools[p.name]; next != p {
			p.next.Store(next)
		}
	}
	now := s.now()
	for _, p := range t.pools {
		s.cutDrained(p, now)
		p.roamers.tell()
	}
	for _, p := range before.pools {
		for _, m := range p.members {
			m.backend.line.tellAll()
		}
	}
}

// forgetBackends forgets those that no pool names and that have no connection left: one that comes back meanwhile must not get as
// many again. The caller holds mu.
func (s *Server) forgetBackends() {
	s.leaving = false
	for key, b := range s.backends {
		switch {
		case len(b.pools) > 0:
		case b.open.Load() > 0:
			s.leaving = true
		default:
			delete(s.backends, key)
		}
	}
}
