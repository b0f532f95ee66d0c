package loop

import (
	"log/slog"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
)

const bestKind = KindEpoll

// pollEngine is a set of epoll loops, a watchdog and workers.
type pollEngine struct {
	log     *slog.Logger
	loops   []*pollLoop
	workers *workers
	watch   *watchdog
	procs   atomic.Int64   // GOMAXPROCS, as the watchdog last saw it
	next    atomic.Uint64  // round robin of Go
	group   sync.WaitGroup // every goroutine of the engine
	closing sync.Once
	done    chan struct{} // closed when Close is through

	mu        sync.Mutex
	closed    bool
	listeners map[*pollListener]struct{}
}

// liveLoops counts the epoll loops of the process, over all engines: a loop may
// hold its P while it waits only if others are left.
var liveLoops atomic.Int64

// preemptible reports whether the runtime may interrupt a thread that waits in
// a raw system call; without that a stop-the-world would wait for it for ever.
var preemptible = !strings.Contains(os.Getenv("GODEBUG"), "asyncpreemptoff=1")

func newPollEngine(opts Options) (core, error) {
	e := &pollEngine{log: opts.Logger, done: make(chan struct{}), listeners: map[*pollListener]struct{}{}}
	e.procs.Store(int64(runtime.GOMAXPROCS(0)))
	for i := range opts.Loops {
		l, err := newPollLoop(e, i)
		if err != nil {
			for _, made := range e.loops {
				made.closeFiles()
			}
			return nil, err
		}
		e.loops = append(e.loops, l)
	}
	e.workers = newWorkers(opts.Workers, &e.group)
	e.watch = newWatchdog(e)
	liveLoops.Add(int64(len(e.loops)))
	for _, l := range e.loops {
		e.group.Go(l.run)
	}
	e.group.Go(e.watch.run)
	return e, nil
}

// mayHoldP reports whether loops may wait without giving up their P.
func (e *pollEngine) mayHoldP() bool { return preemptible && liveLoops.Load() < e.procs.Load() }

func (e *pollEngine) run(loop int, fn func(*Task)) {
	if loop < 0 {
		loop = int(e.next.Add(1) % uint64(len(e.loops)))
	}
	l := e.loops[loop]
	l.post(func() { l.spawn(fn) })
}

func (e *pollEngine) stats() Stats {
	s := Stats{Loops: make([]LoopStats, 0, len(e.loops))}
	for _, l := range e.loops {
		s.Loops = append(s.Loops, l.snapshot())
	}
	return s
}

func (e *pollEngine) close() {
	e.closing.Do(func() {
		e.mu.Lock()
		e.closed = true
		for ln := range e.listeners {
			if ln.closeHeldLocked() {
				delete(e.listeners, ln)
			}
		}
		e.mu.Unlock()
		e.watch.stop()
		for _, l := range e.loops {
			l.post(l.beginClose)
		}
		for _, l := range e.loops {
			<-l.ended
		}
		e.workers.stop()
		e.group.Wait()
		liveLoops.Add(-int64(len(e.loops)))
		for _, l := range e.loops {
			l.closeFiles()
		}
		close(e.done)
	})
	<-e.done
}

// leastLoaded is the loop with the fewest connections, of those that run; nil if
// all are stalled.
func (e *pollEngine) leastLoaded() *pollLoop {
	var best *pollLoop
	for _, l := range e.loops {
		if !l.stalled.Load() && (best == nil || l.connections.Load() < best.connections.Load()) {
			best = l
		}
	}
	return best
}

// homeFor is the loop on which a connection that l has accepted should live: l
// itself, unless with it l would have a quarter and moveSlack more than the mean.
func (e *pollEngine) homeFor(l *pollLoop) *pollLoop {
	over := l.served.Load() + 1 - moveSlack
	if over <= 0 {
		return l
	}
	home, least, total := l, l.served.Load(), int64(0)
	for _, other := range e.loops {
		n := other.served.Load()
		total += n
		if n < least && !other.stalled.Load() {
			home, least = other, n
		}
	}
	if 4*over*int64(len(e.loops)) <= 5*total {
		return l
	}
	return home
}

func (e *pollEngine) listen(addr *net.TCPAddr, opts ListenOptions) (acceptor, error) {
	ln := &pollListener{admission: newAdmission(opts), engine: e, sockets: map[*listenSocket]struct{}{}}
	var err error
	if len(opts.Inherited) > 0 {
		err = ln.adopt(opts.Inherited)
	} else {
		err = ln.bind(addr)
	}
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		ln.closeUnserved()
		return nil, ErrClosed
	}
	e.listeners[ln] = struct{}{}
	if !opts.Held {
		ln.beginLocked()
	}
	return ln, nil
}
