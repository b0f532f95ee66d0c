package loop

import (
	"math"
	"runtime"
	"time"
)

// A watchdog looks at the loops from outside, four times a second. A loop that
// has not come back from its tasks for over a second is stalled: another one
// serves the queues of its listening sockets until it is back. (Closing its
// sockets would take it out of the kernel's spreading, and reset what waits in
// their queues.)
type watchdog struct {
	engine     *pollEngine
	stallAfter time.Duration
	every      time.Duration
	quit       chan struct{}
	finished   chan struct{}

	// The rest belongs to run.
	lent   map[*listenSocket]*listenSocket // a stalled loop's socket -> its duplicate
	seen   []instant                       // waited, per loop, when last looked
	looked instant
}

func newWatchdog(e *pollEngine) *watchdog {
	return &watchdog{
		engine: e, stallAfter: stallAfter, every: watchEvery,
		quit: make(chan struct{}), finished: make(chan struct{}),
		lent: map[*listenSocket]*listenSocket{}, seen: make([]instant, len(e.loops)), looked: now(),
	}
}

func (w *watchdog) run() {
	defer close(w.finished)
	ticker := time.NewTicker(w.every)
	defer ticker.Stop()
	for {
		select {
		case <-w.quit:
			return
		case <-ticker.C:
			w.look()
		}
	}
}

func (w *watchdog) stop() {
	close(w.quit)
	<-w.finished
}

func (w *watchdog) look() {
	w.engine.procs.Store(int64(runtime.GOMAXPROCS(0)))
	n := now()
	for i, l := range w.engine.loops {
		beat, waited := instant(l.beat.Load()), instant(l.waited.Load())
		if beat < 0 {
			waited += max(0, n+beat)
		}
		busy := 1 - float64(waited-w.seen[i])/float64(n-w.looked)
		l.busy.Store(math.Float64bits(min(max(busy, 0), 1)))
		w.seen[i] = waited
		w.judge(l, beat > 0 && n-beat > instant(w.stallAfter), n-beat)
	}
	w.looked = n
	w.lendSockets()
}

func (w *watchdog) judge(l *pollLoop, stalled bool, since instant) {
	if !stalled {
		since = 0
	}
	l.stalledFor.Store(int64(since))
	switch was := l.stalled.Swap(stalled); {
	case stalled && !was:
		l.stalls.Add(1)
		w.engine.log.Error("loop stalled", "loop", l.index, "for", time.Duration(since))
	case was && !stalled:
		w.engine.log.Warn("loop runs again", "loop", l.index)
	}
}

// lendSockets has each stalled loop's sockets served by another, and ends that
// for loops that are back.
func (w *watchdog) lendSockets() {
	for s, lent := range w.lent {
		if !s.loop.stalled.Load() || lent.loop.stalled.Load() {
			lent.loop.post(func() { lent.close(lent.loop) })
			delete(w.lent, s)
		}
	}
	for _, s := range w.stalledSockets() {
		if w.lent[s] != nil {
			continue
		}
		if borrower := w.engine.leastLoaded(); borrower != nil {
			if lent := s.lend(borrower); lent != nil {
				w.lent[s] = lent
			}
		}
	}
}

func (w *watchdog) stalledSockets() []*listenSocket {
	var found []*listenSocket
	w.engine.mu.Lock()
	defer w.engine.mu.Unlock()
	for ln := range w.engine.listeners {
		for _, s := range ln.open() {
			if !s.lent && s.loop.stalled.Load() {
				found = append(found, s)
			}
		}
	}
	return found
}
