// Package loop runs straight-line connection code at the cost of an event loop.
//
// A connection's life is written as one plain function that reads, writes and
// waits. On Linux it runs as a coroutine owned by one epoll loop, one loop per
// core: no locks, no wake-ups across threads, two reads and two writes for a
// proxied request. Elsewhere, and with LBD_ENGINE=goroutine, the same code runs
// on goroutines that take turns, so that what belongs to a loop needs no lock
// there either.
package loop

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"time"
)

// Options say how an engine is built. The zero value is right for a server.
type Options struct {
	// Kind is "epoll" or "goroutine". Empty means the environment variable
	// LBD_ENGINE and, where that is empty too, the best this system has.
	Kind string
	// Loops is the number of loops; 0 means one for each core that affinity and
	// CPU quota leave to the process.
	Loops int
	// Workers is the number of goroutines that run Offload calls; 0 means one
	// for every four loops, at least one.
	Workers int
	// Logger gets one line for each task that panicked and each stalled loop;
	// nil means slog.Default().
	Logger *slog.Logger
}

// Kinds of engine.
const (
	KindEpoll     = "epoll"
	KindGoroutine = "goroutine"
)

// An Engine owns the loops, their tasks and their connections.
type Engine struct {
	kind  string
	loops int
	core  core
}

// core is what a kind of engine does.
type core interface {
	run(loop int, fn func(*Task)) // loop -1: any
	listen(addr *net.TCPAddr, opts ListenOptions) (acceptor, error)
	stats() Stats
	close()
}

// strand is the engine's side of a task.
type strand interface {
	now() instant
	wall() time.Time // now
	pass() error
	sleep(until instant) error
	spawn(fn func(*Task))
	offload(fn func())
	dial(addr netip.AddrPort, deadline instant) (*Conn, error)
	wait(deadline instant, wants []Want) (int, error)
	waker(s *Signal) func()
	holds(c socket) bool // c is of this task's loop, and the task runs
	steal(take func(loop int) *Conn, loops []int) *Conn
	buffers() *buffers
}

// socket is the engine's side of a connection.
type socket interface {
	read(p []byte) (int, error)
	write(p []byte) (int, error)
	flush() error
	uncork()
	pending() int
	unacked() int
	broken() bool
	atEnd() bool
	closeWrite() error
	close() error
	reset() error
	abort()
	localAddr() net.Addr
	owner() *Task
	park(deadline instant, resume Handler)
	claim(t *Task) bool
}

// New starts an engine. It does not change GOMAXPROCS; see Procs.
func New(opts Options) (*Engine, error) {
	if opts.Kind == "" {
		opts.Kind = os.Getenv("LBD_ENGINE")
	}
	if opts.Kind == "" {
		opts.Kind = bestKind
	}
	if opts.Loops <= 0 {
		opts.Loops = cores()
	}
	if opts.Workers <= 0 {
		opts.Workers = workersFor(opts.Loops)
	}
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	e := &Engine{kind: opts.Kind, loops: opts.Loops}
	var err error
	switch opts.Kind {
	case KindEpoll:
		e.core, err = newPollEngine(opts)
	case KindGoroutine:
		e.core = newTwinEngine(opts)
	default:
		err = fmt.Errorf("unknown engine %q: want %s or %s", opts.Kind, KindEpoll, KindGoroutine)
	}
	if err != nil {
		return nil, fmt.Errorf("start engine: %w", err)
	}
	return e, nil
}

// Kind is "epoll" or "goroutine".
func (e *Engine) Kind() string { return e.kind }

// Loops is the number of loops; Task.Loop counts from 0 to below it.
func (e *Engine) Loops() int { return e.loops }

// Go runs fn as a task of some loop. After Close it does nothing. It may be
// called from any goroutine.
func (e *Engine) Go(fn func(*Task)) { e.core.run(-1, fn) }

// GoOn is Go on a loop of the caller's choice, from 0 to below Loops: the way to
// what belongs to that loop.
func (e *Engine) GoOn(loop int, fn func(*Task)) { e.core.run(loop, fn) }

// Stats is a snapshot of all counters. It may be called from any goroutine.
func (e *Engine) Stats() Stats { return e.core.stats() }

// Close ends the engine: listeners close, every call that waits or will wait
// returns ErrClosed, parked connections are resumed to learn it, and Close
// returns when the last task has returned. It must not be called from a task.
func (e *Engine) Close() error {
	e.core.close()
	return nil
}

// Stats are an engine's counters, one LoopStats for each loop.
type Stats struct {
	Loops []LoopStats
}

// LoopStats describe one loop. Counters only grow; Connections, Served, Tasks
// and HeavyQueued are what is there now. The goroutine twin has no heavy class and
// does not measure Busy; it never stalls.
type LoopStats struct {
	Connections  int64
	Served       int64 // of Connections those of listeners; also such as are on their way from another loop
	Tasks        int64
	Busy         float64 // share of the last quarter second not spent waiting, 0 to 1
	Stalled      bool    // has not come back from its tasks for over a second
	Stalls       int64
	StalledFor   time.Duration // so far, if it is stalled
	Panics       int64         // tasks that ended by a panic or runtime.Goexit
	HeavyQueued  int64
	HeavyDropped int64
	Accepted     int64
	Moved        int64 // accepted here, served by another loop
	AcceptErrors int64 // out of files or memory
	Stolen       int64 // idle connections this loop got from others
	Rounds       int64
}

// Stalled reports whether any loop is stalled: the node is not ready then.
func (s Stats) Stalled() bool {
	for i := range s.Loops {
		if s.Loops[i].Stalled {
			return true
		}
	}
	return false
}
