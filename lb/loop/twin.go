package loop

import (
	"context"
	"net"
	"sync"
)

// twinEngine runs tasks on goroutines. What makes them tasks of a loop is the
// loop's baton: a goroutine holds it while it runs and lets go of it while it
// waits, so the tasks of one loop take turns exactly as coroutines do.
type twinEngine struct {
	opts  Options
	loops []*twinLoop
	ctx   context.Context // done when closing
	group sync.WaitGroup  // every goroutine of the engine

	mu        sync.Mutex
	closed    bool
	next      int // round robin of Go
	listeners map[*twinListener]struct{}
	cancel    context.CancelFunc
}

// twinLoop is what the tasks of one loop share.
type twinLoop struct {
	counters
	engine *twinEngine
	index  int

	mu      sync.Mutex // the baton; everything below belongs to its holder
	current *twinTask
	conns   map[*twinConn]struct{}
	buffers buffers
}

func newTwinEngine(opts Options) *twinEngine {
	e := &twinEngine{opts: opts, listeners: map[*twinListener]struct{}{}}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	for i := range opts.Loops {
		e.loops = append(e.loops, &twinLoop{engine: e, index: i, conns: map[*twinConn]struct{}{}})
	}
	return e
}

func (e *twinEngine) run(loop int, fn func(*Task)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return
	}
	if loop < 0 {
		e.next++
		loop = e.next % len(e.loops)
	}
	e.loops[loop].start(fn)
}

func (e *twinEngine) stats() Stats {
	var s Stats
	for _, l := range e.loops {
		s.Loops = append(s.Loops, l.snapshot())
	}
	return s
}

func (e *twinEngine) close() {
	e.mu.Lock()
	first := !e.closed
	e.closed = true
	var listeners []*twinListener
	for l := range e.listeners {
		listeners = append(listeners, l)
	}
	e.mu.Unlock()
	if first {
		e.cancel()
		for _, l := range listeners {
			l.close()
		}
		for _, l := range e.loops {
			l.closeConns()
		}
	}
	e.group.Wait()
}

// closeConns wakes everything that waits for a socket.
func (l *twinLoop) closeConns() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		c.nc.Close()
		c.event()
	}
}

// start runs fn as a task. The caller is a goroutine of the engine's group, or
// holds the engine's lock and has seen it open.
func (l *twinLoop) start(fn func(*Task)) {
	l.engine.group.Add(1)
	go func() {
		defer l.engine.group.Done()
		t := &twinTask{loop: l, wake: make(chan struct{}, 1), owned: map[*twinConn]struct{}{}}
		t.Task = Task{on: t, loop: l.index}
		l.tasks.Add(1)
		t.take()
		defer t.end()
		fn(&t.Task)
		t.returned = true
	}()
}

// leastLoaded is where a new connection goes.
func (e *twinEngine) leastLoaded() *twinLoop {
	best := e.loops[0]
	for _, l := range e.loops[1:] {
		if l.served.Load() < best.served.Load() {
			best = l
		}
	}
	return best
}

func (e *twinEngine) listen(addr *net.TCPAddr, opts ListenOptions) (acceptor, error) {
	l := &twinListener{admission: newAdmission(opts), engine: e}
	var err error
	if len(opts.Inherited) > 0 {
		err = l.adopt(opts.Inherited)
	} else {
		err = l.bind(addr)
	}
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		l.closeSockets()
		return nil, ErrClosed
	}
	e.listeners[l] = struct{}{}
	if !opts.Held {
		l.beginLocked()
	}
	return l, nil
}
