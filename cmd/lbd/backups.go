package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"lbd/cluster/backup"
	"lbd/cluster/rpc"
	"lbd/cluster/state"
	lbdv1 "lbd/proto/lbd/v1"
)

const (
	// backupsKeptDefault is how many scheduled backups stay.
	backupsKeptDefault = 14
	// backupRetry is between a backup that failed and the next attempt.
	backupRetry = 10 * time.Minute
	// backupLook is how often a node that does not lead looks whether it does.
	backupLook = time.Minute
)

// backupKeeper makes the backups that cluster_settings.backup asks for: on the node that leads, one file each, and removes its
// oldest ones. It remembers nothing: when the last one was made it reads from the names of the files.
type backupKeeper struct {
	node interface {
		State() *state.State
		Next() <-chan struct{}
		Role() string
	}
	// write writes a backup of a state.
	write func(io.Writer, *state.State, []string, time.Time) (*lbdv1.BackupInfo, error)
	tell  func(kind, resource, message string)
	log   *slog.Logger

	started time.Time
	tried   time.Time // the last attempt, if that failed
	blocked bool      // the directory was found to take nothing

	succeeded atomic.Int64 // when the newest backup was made, in seconds since 1970; 0: none is known
	failures  atomic.Int64
	mu        sync.Mutex
	fault     string // why there is no newer backup; empty: nothing is wrong
}

func (a *appliance) newBackupKeeper() *backupKeeper {
	return &backupKeeper{node: a.node, tell: a.events.add, log: a.log, write: func(w io.Writer, st *state.State, recipients []string, now time.Time) (*lbdv1.BackupInfo, error) {
		return rpc.WriteBackup(w, st, a.keys, rpc.BackupPlan{Recipients: recipients, Time: now, Version: readBuild().version})
	}}
}

// run makes backups until ctx ends.
func (k *backupKeeper) run(ctx context.Context) {
	k.started = time.Now()
	var settings *lbdv1.BackupSettings
	var last time.Time // of the newest backup
	for {
		next := k.node.Next()
		if now := backupSettings(k.node.State()); !proto.Equal(now, settings) {
			settings = now
			last = k.newest(settings)
			k.tried = time.Time{}
			k.clear()
			k.probe(settings)
		}
		select {
		case <-ctx.Done():
			return
		case <-next:
			continue
		case <-k.probeAgain():
			k.probe(settings)
			continue
		case <-k.wait(settings, last):
		}
		if newest := k.newest(settings); newest.After(last) { // another node led, and made it
			last = newest
			continue
		}
		if k.node.Role() != "leader" {
			continue // wait looks again soon
		}
		if at, err := k.make(settings); err != nil {
			k.fail(settings, err)
		} else {
			last, k.tried = at, time.Time{}
		}
	}
}

func backupSettings(st *state.State) *lbdv1.BackupSettings {
	stored, _ := st.Get(state.ClusterSettings, "")
	return stored.GetResource().GetClusterSettings().GetBackup()
}

// wait fires when a backup is due; it never does while none is asked for.
func (k *backupKeeper) wait(settings *lbdv1.BackupSettings, last time.Time) <-chan time.Time {
	if settings == nil {
		return nil
	}
	now := time.Now()
	due := k.due(settings.GetSchedule(), last, now)
	if k.node.Role() != "leader" && !due.After(now) {
		due = now.Add(backupLook)
	}
	return time.After(due.Sub(now))
}

// due is when the next backup is to be made: so long after the last one, or at the time of day that comes first after it. One that
// was missed is made at once.
func (k *backupKeeper) due(schedule string, last, now time.Time) time.Time {
	if last.After(now) { // of a clock that was wrong
		last = now
	}
	every, at, err := state.ParseBackupSchedule(schedule)
	if err != nil { // it was validated
		return now.Add(backupLook)
	}
	due := last.Add(every)
	if every == 0 {
		from := last
		if from.IsZero() {
			from = k.started
		}
		midnight := from.UTC().Truncate(24 * time.Hour)
		if due = midnight.Add(at); !due.After(from) {
			due = due.Add(24 * time.Hour)
		}
	}
	if again := k.tried.Add(backupRetry); !k.tried.IsZero() && due.Before(again) {
		due = again
	}
	return due
}

// newest is the time of the newest backup that is there.
func (k *backupKeeper) newest(settings *lbdv1.BackupSettings) (last time.Time) {
	if settings == nil {
		k.succeeded.Store(0)
		return last
	}
	entries, _ := os.ReadDir(settings.GetDirectory()) // what cannot be read now is found out by the next backup
	for _, e := range entries {
		if at, ok := backup.TimeOf(e.Name(), k.node.State().ClusterID()); ok && at.After(last) {
			last = at
		}
	}
	if !last.IsZero() {
		k.succeeded.Store(last.Unix())
	}
	return last
}

// make makes a backup: it has its name once it is whole, on disk and found readable.
func (k *backupKeeper) make(settings *lbdv1.BackupSettings) (time.Time, error) {
	st, dir, now := k.node.State(), settings.GetDirectory(), time.Now()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return now, err
	}
	k.removeParts(dir, st.ClusterID())
	f, err := os.CreateTemp(dir, partPrefix(st.ClusterID())+"*") // mode 0600
	if err != nil {
		return now, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if _, err = k.write(f, st, settings.GetRecipients(), now); err == nil {
		err = f.Sync()
	}
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		return now, err
	}
	info, _, err := backup.Read(f, nil)
	if err != nil {
		return now, fmt.Errorf("read it again: %w", err)
	}
	path := filepath.Join(dir, backup.FileName(info))
	if err := errors.Join(os.Rename(f.Name(), path), syncFolder(dir)); err != nil {
		return now, err
	}
	k.succeeded.Store(now.Unix())
	k.blocked = false
	k.clear()
	k.tell("backup_made", filepath.Base(path), fmt.Sprintf("revision %d, %d bytes", info.GetRevision(), info.GetBytes()))
	k.log.Info("backup made", "file", path, "revision", info.GetRevision(), "bytes", info.GetBytes())
	k.removeOld(dir, st.ClusterID(), int(cmp.Or(settings.GetKeep(), backupsKeptDefault)))
	return now, nil
}

func partPrefix(clusterID string) string { return ".lbd-" + clusterID + "-part-" }

// removeParts removes what a backup that was cut off has left.
func (k *backupKeeper) removeParts(dir, clusterID string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), partPrefix(clusterID)) {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}

// removeOld removes all but the newest backups of this cluster. What has another name is not touched.
func (k *backupKeeper) removeOld(dir, clusterID string, keep int) {
	entries, err := os.ReadDir(dir) // by name, which is by time
	var own []string
	for _, e := range entries {
		if _, ok := backup.TimeOf(e.Name(), clusterID); ok && e.Type().IsRegular() {
			own = append(own, e.Name())
		}
	}
	for _, name := range own[:max(len(own)-keep, 0)] {
		err = errors.Join(err, os.Remove(filepath.Join(dir, name)))
	}
	if err != nil {
		k.log.Warn("old backups stay", "directory", dir, "err", err)
	}
}

func (k *backupKeeper) fail(settings *lbdv1.BackupSettings, err error) {
	k.tried = time.Now()
	k.failures.Add(1)
	k.mu.Lock()
	k.fault = fmt.Sprintf("the scheduled backup to %s failed at %s: %v", settings.GetDirectory(), k.tried.UTC().Format(time.RFC3339), err)
	k.mu.Unlock()
	k.tell("backup_failed", "cluster_settings", err.Error())
	k.log.Error("backup failed: it is tried again", "directory", settings.GetDirectory(), "after", backupRetry, "err", err)
}

// probe finds out at once whether the directory takes files, not only when the first backup is due.
func (k *backupKeeper) probe(settings *lbdv1.BackupSettings) {
	was := k.blocked
	k.blocked = false
	if settings == nil {
		return
	}
	err := backupFault(settings.GetDirectory())
	switch {
	case err == nil && was:
		k.clear()
	case err != nil:
		k.blocked = true
		k.mu.Lock()
		k.fault = fmt.Sprintf("no backup can be written to %s: %v", settings.GetDirectory(), err)
		k.mu.Unlock()
	}
	if err != nil && !was {
		k.log.Warn("no backup can be written: it is tried again", "directory", settings.GetDirectory(), "after", backupRetry, "err", err)
	}
}

// probeAgain fires when a directory that took nothing is to be tried again.
func (k *backupKeeper) probeAgain() <-chan time.Time {
	if !k.blocked {
		return nil
	}
	return time.After(backupRetry)
}

func (k *backupKeeper) clear() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fault = ""
}

// problems are what an operator has to look at.
func (k *backupKeeper) problems() []string {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.fault == "" {
		return nil
	}
	return []string{k.fault}
}

func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
