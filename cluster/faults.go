package cluster

import (
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"
)

// faults are the disk's refusals that last, and what it leaves unanswered. They are reported, not thrown: raft panics in its
// own goroutine when its term cannot be stored, and with it would go the traffic that needs no disk.
type faults struct {
	logger *slog.Logger

	mu      sync.Mutex
	current map[string]error     // by file and use
	refused time.Time            // the last of them
	stalled map[string]time.Time // since when, by file and use
}

// note keeps an error, or its end (nil), and logs the change.
func (f *faults) note(what string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, had := f.current[what]
	switch {
	case err == nil && had:
		delete(f.current, what)
		f.logger.Info("disk works again", "file", what)
	case err != nil && !had:
		f.logger.Error("disk refuses: changes wait, traffic goes on", "file", what, "error", err)
		fallthrough
	case err != nil:
		f.keepLocked(what, err)
	}
}

// keep reports an error for good.
func (f *faults) keep(what string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.keepLocked(what, err)
}

func (f *faults) keepLocked(what string, err error) {
	if f.current == nil {
		f.current = make(map[string]error)
	}
	f.current[what] = err
	f.refused = time.Now()
}

// watch does op, and reports it once it has taken longer than stallAfter, until it ends.
func (f *faults) watch(what string, op func() error) error {
	began, over := time.Now(), false // over is under the lock
	timer := time.AfterFunc(stallAfter, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if !over {
			f.stallLocked(what, began)
		}
	})
	err := op()
	timer.Stop()
	f.mu.Lock()
	defer f.mu.Unlock()
	over = true
	if _, reported := f.stalled[what]; reported {
		delete(f.stalled, what)
		f.logger.Info("disk answers again", "file", what, "after", time.Since(began).Round(time.Millisecond))
	}
	return err
}

func (f *faults) stallLocked(what string, began time.Time) {
	if f.stalled == nil {
		f.stalled = make(map[string]time.Time)
	}
	f.stalled[what] = began
	f.logger.Error("disk does not answer: changes wait, traffic goes on", "file", what, "for", stallAfter)
}

// ill is whether the disk does not answer, or has refused something lately: it is not known to work again before it is asked again, and
// where all nodes' disks were full somebody has to be the first.
func (f *faults) ill() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.stalled) > 0 || len(f.current) > 0 && time.Since(f.refused) < illAfterRefusal
}

func (f *faults) list() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []string
	for _, what := range slices.Sorted(maps.Keys(f.current)) {
		all = append(all, fmt.Sprintf("%s: %v", what, f.current[what]))
	}
	for _, what := range slices.Sorted(maps.Keys(f.stalled)) {
		all = append(all, fmt.Sprintf("%s: the disk has not answered for %v", what, time.Since(f.stalled[what]).Round(time.Second)))
	}
	return all
}

// retry does op until it succeeds or closing is closed; then its last error is returned.
func (f *faults) retry(what string, closing <-chan struct{}, op func() error) error {
	for again := retryFirst; ; again = min(2*again, retryLast) {
		err := f.watch(what, op)
		f.note(what, err)
		if err == nil || !pause(again, closing) {
			return err
		}
	}
}

// pause is whether the time passed before closing was closed.
func pause(d time.Duration, closing <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-closing:
		return false
	}
}

// insist is retry for a goroutine of raft that can do nothing with an error but panic. When the node closes first, the
// goroutine ends there: its deferred calls run, and raft's shutdown finds it gone.
func (f *faults) insist(what string, closing <-chan struct{}, op func() error) {
	if f.retry(what, closing, op) != nil {
		runtime.Goexit()
	}
}
