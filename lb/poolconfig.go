package lb

import (
	"crypto/tls"
	"net/netip"
	"time"
)

// PoolConfig is a pool as the publisher compiles it. Zero fields mean the defaults in limits.go.
type PoolConfig struct {
	Name           string
	Backends       []BackendConfig
	Balance        Balance
	HashOn         HashOn        // for Maglev
	ConnectTimeout time.Duration // 3 s; TLS included
	TLS            *BackendTLS   // nil: in the clear

	IdleTimeout        time.Duration // an unused connection's life; 4 s, or 1 s less than the backend announces
	IdlePerBackend     int           // idle connections kept per backend, over all loops; 4096; negative: none
	MaxPerBackend      int           // connections to a backend, over all loops; 0: no limit
	ConnectionRequests int           // requests on one connection; 0: no limit
	ConnectionAge      time.Duration // 0: no limit
	Queue              *Queue        // nil: none

	Persistence  *SessionPersistence // nil: off
	SlowStart    time.Duration       // 0: off
	DrainTimeout time.Duration       // 60 s
	FailOpen     int                 // below this share of eligible backends, in percent, all are; 0: off
	Ejection     *Ejection           // nil: off
}

// Balance is an algorithm that picks a backend.
type Balance uint8

// The algorithms.
const (
	RoundRobin Balance = iota
	LeastConnections
	P2CEWMA
	Maglev
)

// HashOn is what Maglev hashes: a request field, a cookie, or, where both are empty or the request has it not, the client's address.
type HashOn struct {
	Header string // lower case
	Cookie string
}

// BackendTLS is how backends are spoken to. Immutable.
type BackendTLS struct {
	// Config has RootCAs, GetClientCertificate and the rest. Its ServerName, if empty, is the backend's host.
	Config *tls.Config
	// Key tells two settings apart: connections are kept for as long as it stays.
	Key string
}

// Queue bounds the requests of the pool that wait for a connection to one backend; those of other pools there do not count.
type Queue struct {
	Length  int
	Timeout time.Duration
}

// SessionPersistence keeps a client with its backend, by a cookie.
type SessionPersistence struct {
	Cookie                       string
	IdleTimeout, AbsoluteTimeout time.Duration // 0: never ends
	SameSite                     string        // "Lax", "Strict", "None"
}

// Ejection takes a backend out that fails ConsecutiveErrors times in a row.
type Ejection struct {
	ConsecutiveErrors int
	BaseTime          time.Duration
	MaxPercent        int
}

// BackendConfig is one backend of a pool.
type BackendConfig struct {
	// Key says which Backend this is: address and TLS settings in one string, made by the caller. Pools that name the same key
	// share the Backend, and it outlives every change that keeps its key.
	Key string
	// Name is the address as the operator wrote it; for logs and status.
	Name string
	// Address is where it answers now. The zero value (a name that could not be resolved yet) takes no requests.
	Address netip.AddrPort
	// Weight is its share among the pool's backends; 0 means no new requests.
	Weight int
	// Backup takes requests only while no other is eligible.
	Backup bool
	// Down: a check says so already, where the backend is new in the pool. Later SetEligible has the word.
	Down bool
	// State is what an operator has said of it in this pool.
	State BackendState
	// CutOff ends open requests of a draining backend at once, and not at DrainTimeout.
	CutOff bool
	// DrainSince is when State became Drain.
	DrainSince time.Time
}

// BackendState is what an operator wants of a backend.
type BackendState uint8

// The states of a backend.
const (
	Ready         BackendState = iota
	Drain                      // no new clients
	InMaintenance              // no requests at all
)
