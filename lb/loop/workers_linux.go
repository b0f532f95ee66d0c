package loop

import (
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
)

// workers run offloaded calls, first come first served: such a call cannot be
// given up, so none may be overtaken for ever. Each task waits for its own call,
// which bounds the line by the number of tasks; loops pause their heavy steps
// while it is long.
type workers struct {
	group   *sync.WaitGroup
	waiting atomic.Int64

	mu      sync.Mutex
	come    sync.Cond
	line    []*pollTask
	stopped bool
}

func newWorkers(n int, group *sync.WaitGroup) *workers {
	w := &workers{group: group}
	w.come.L = &w.mu
	for range n {
		group.Go(w.run)
	}
	return w
}

func (w *workers) behind() bool { return w.waiting.Load() > offloadsWaitingMax }

func (w *workers) submit(t *pollTask) {
	w.waiting.Add(1)
	w.mu.Lock()
	w.line = append(w.line, t)
	w.mu.Unlock()
	w.come.Signal()
}

// stop ends the workers once their line is empty.
func (w *workers) stop() {
	w.mu.Lock()
	w.stopped = true
	w.mu.Unlock()
	w.come.Broadcast()
}

func (w *workers) take() *pollTask {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.line) == 0 {
		if w.stopped {
			return nil
		}
		w.come.Wait()
	}
	t := w.line[0]
	w.line[0] = nil
	w.line = w.line[1:]
	w.waiting.Add(-1)
	return t
}

func (w *workers) run() {
	for t := w.take(); t != nil; t = w.take() {
		w.call(t)
	}
}

// call runs t's job and tells t's loop. A panic goes to the task. If the job
// calls runtime.Goexit this worker ends with it and another takes its place.
func (w *workers) call(t *pollTask) {
	returned := false
	defer func() {
		if !returned {
			if r := recover(); r != nil {
				t.jobPanic = fmt.Sprintf("%v\n%s", r, debug.Stack())
			} else {
				t.jobExit = true
				w.group.Go(w.run)
			}
		}
		t.loop.post(t.comeBack)
	}()
	t.job()
	returned = true
}
