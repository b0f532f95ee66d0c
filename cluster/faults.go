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

// faults are the disk's refusals that last. They are reported, not thrown: raft panics in its own goroutine when its
// term cannot be stored, and with it would go the traffic that needs no disk.
type faults struct {
	logger *slog.Logger

	mu      sync.Mutex
	current map[string]error // by file and use
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
		if f.current == nil {
			f.current = make(map[string]error)
		}
		f.current[what] = err
	}
}

func (f *faults) list() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []string
	for _, what := range slices.Sorted(maps.Keys(f.current)) {
		all = append(all, fmt.Sprintf("%s: %v", what, f.current[what]))
	}
	return all
}

// retry does op until it succeeds or closing is closed; then its last error is returned.
func (f *faults) retry(what string, closing <-chan struct{}, op func() error) error {
	for again := retryFirst; ; again = min(2*again, retryLast) {
		err := op()
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
