package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"lbd/health"
)

const (
	healthFile = "health.json"
	// healthSaveInterval is how much of what was found out a kill -9 may lose. Nothing is written while nothing flips.
	healthSaveInterval = 5 * time.Second
)

// readHealth reads what the run before knew of its backends: after a restart nothing that was down counts as up until it is asked.
// What cannot be read is no reason not to start.
func readHealth(dir string) ([]health.Saved, error) {
	data, err := os.ReadFile(filepath.Join(dir, healthFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var saved []health.Saved
	if err == nil {
		err = json.Unmarshal(data, &saved)
	}
	if err != nil {
		return nil, fmt.Errorf("read the state of backends of the run before: %w", err)
	}
	return saved, nil
}

// healthKeeper keeps what is known of the backends for the next start. It has a goroutine of its own: a disk that hangs must not
// hold up what is served.
type healthKeeper struct {
	path     string
	snapshot func() []health.Saved
	complain func(error)

	kept []health.Saved // as the file has it
	sick bool           // the last write failed, which has been said
}

func (a *appliance) newHealthKeeper() *healthKeeper {
	return &healthKeeper{path: filepath.Join(a.cfg.dataDir, healthFile), snapshot: a.prober.Snapshot, complain: func(err error) {
		a.log.Warn("cannot keep the state of backends for the next start", "err", err)
	}}
}

// run writes what has changed until ctx ends, and then all with the time: who ends in order says when that was.
func (k *healthKeeper) run(ctx context.Context) {
	tick := time.NewTicker(healthSaveInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			k.write(k.snapshot())
			return
		case <-tick.C:
			k.save()
		}
	}
}

// save writes if a state differs from the file's. It leaves out the time: a kill comes unannounced, however long nothing has flipped.
func (k *healthKeeper) save() {
	now := k.snapshot()
	if slices.EqualFunc(now, k.kept, func(a, b health.Saved) bool {
		return a.Key == b.Key && a.State == b.State && a.Since.Equal(b.Since)
	}) {
		return
	}
	for i := range now {
		now[i].At = time.Time{}
	}
	k.write(now)
}

func (k *healthKeeper) write(now []health.Saved) {
	data, err := json.Marshal(now)
	if err == nil {
		err = replaceFile(k.path, data)
	}
	if err == nil {
		k.kept, k.sick = now, false
		return
	}
	if !k.sick {
		k.complain(err)
	}
	k.sick = true
}
