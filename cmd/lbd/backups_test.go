package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cluster/backup"
	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// keptNode is a node whose state a test sets.
type keptNode struct {
	mu   sync.Mutex
	st   *state.State
	next chan struct{}
	role string
}

func (n *keptNode) State() *state.State {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.st
}

func (n *keptNode) Next() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.next
}

func (n *keptNode) Role() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.role
}

// set stores settings, and wakes who waits.
func (n *keptNode) set(t *testing.T, role string, settings *lbdv1.BackupSettings) {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	next, res := n.st.Apply(&raftv1.Command{Kind: &raftv1.Command_Change{Change: &raftv1.ChangeCommand{Owner: "ops", Upserts: []*raftv1.StoredResource{
		{Resource: &lbdv1.Resource{Spec: &lbdv1.Resource_ClusterSettings{ClusterSettings: &lbdv1.ClusterSettings{Backup: settings}}}},
	}}}})
	if res.Err != nil {
		t.Fatal(res.Err)
	}
	n.st, n.role = next, role
	close(n.next)
	n.next = make(chan struct{})
}

type backupRig struct {
	*backupKeeper
	kept *keptNode
	dir  string
	fail error // under kept.mu
	told []string
}

// newBackupRig runs a keeper within a bubble of synctest, whose clock begins at midnight of 2000-01-01.
func newBackupRig(t *testing.T, dir string) *backupRig {
	t.Helper()
	r := &backupRig{kept: &keptNode{st: state.New("c-1"), next: make(chan struct{}), role: "leader"}, dir: dir}
	r.backupKeeper = &backupKeeper{
		node: r.kept, log: slog.New(slog.DiscardHandler),
		tell: func(kind, resource, message string) { r.told = append(r.told, kind+" "+resource) },
		write: func(w io.Writer, st *state.State, recipients []string, now time.Time) (*lbdv1.BackupInfo, error) {
			info := &lbdv1.BackupInfo{ClusterId: st.ClusterID(), Revision: st.Revision(), CreateTime: timestamppb.New(now)}
			if _, err := io.WriteString(w, "half"); r.failing() != nil {
				return nil, errors.Join(r.failing(), err)
			}
			if s, ok := w.(io.Seeker); ok {
				if _, err := s.Seek(0, io.SeekStart); err != nil {
					return nil, err
				}
			}
			return info, backup.Write(w, info, nil, func(func(*raftv1.SnapshotRecord) bool) {})
		},
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return r
}

func (r *backupRig) failing() error {
	r.kept.mu.Lock()
	defer r.kept.mu.Unlock()
	return r.fail
}

func (r *backupRig) failWith(err error) {
	r.kept.mu.Lock()
	defer r.kept.mu.Unlock()
	r.fail = err
}

func (r *backupRig) settings(schedule string) *lbdv1.BackupSettings {
	return &lbdv1.BackupSettings{Schedule: schedule, Directory: r.dir, Keep: 3}
}

// after lets time pass and lists the backups' times of day.
func (r *backupRig) after(t *testing.T, d time.Duration) string {
	t.Helper()
	time.Sleep(d)
	synctest.Wait()
	entries, err := os.ReadDir(r.dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	var times []string
	for _, e := range entries {
		if at, ok := backup.TimeOf(e.Name(), "c-1"); ok {
			times = append(times, at.Format("02 15:04"))
		}
		if strings.Contains(e.Name(), "part") {
			t.Errorf("%s is left", e.Name())
		}
		if info, err := e.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", e.Name(), info.Mode(), err)
		}
	}
	return strings.Join(times, ", ")
}

func wantBackups(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

func TestBackupsEverySixHours(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "by", "lbd")
	synctest.Test(t, func(t *testing.T) {
		r := newBackupRig(t, dir)
		wantBackups(t, "nothing is asked for", r.after(t, 24*time.Hour), "")
		r.kept.set(t, "leader", r.settings("6h"))
		wantBackups(t, "at once", r.after(t, time.Second), "02 00:00")
		wantBackups(t, "not before", r.after(t, 5*time.Hour), "02 00:00")
		wantBackups(t, "later", r.after(t, 8*time.Hour), "02 00:00, 02 06:00, 02 12:00")
		// Others' files stay, whatever they are called.
		others := []string{"lbd-c-2-20000101T000000Z.backup", "lbd-c-1-20000101T000000Z.backup.old", "notes.txt"}
		for _, name := range others {
			if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		wantBackups(t, "the oldest goes", r.after(t, 6*time.Hour), "02 06:00, 02 12:00, 02 18:00")
		for _, name := range others {
			if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
				t.Error(err)
			}
		}
		if at := time.Unix(r.succeeded.Load(), 0).UTC().Format("02 15:04"); at != "02 18:00" {
			t.Errorf("last success %s", at)
		}
		if len(r.told) != 4 || r.told[3] != "backup_made lbd-c-1-20000102T180000Z.backup" {
			t.Errorf("events %q", r.told)
		}
		r.kept.set(t, "leader", nil)
		wantBackups(t, "no more", r.after(t, 24*time.Hour), "02 06:00, 02 12:00, 02 18:00")
	})
}

func TestBackupsByTheTimeOfDay(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		r := newBackupRig(t, dir)
		r.kept.set(t, "leader", r.settings("03:30"))
		wantBackups(t, "not at once", r.after(t, 3*time.Hour), "")
		wantBackups(t, "the first", r.after(t, time.Hour), "01 03:30")
		wantBackups(t, "every day", r.after(t, 24*time.Hour), "01 03:30, 02 03:30")
	})
	// A node that was away at the time makes up for it.
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(9*24*time.Hour + time.Hour)
		r := newBackupRig(t, dir)
		r.kept.set(t, "leader", r.settings("03:30"))
		wantBackups(t, "what was missed", r.after(t, time.Minute), "01 03:30, 02 03:30, 10 01:00")
		wantBackups(t, "and goes on", r.after(t, 3*time.Hour), "02 03:30, 10 01:00, 10 03:30")
	})
}

// TestBackupsThatFail: told at once, tried again, and nothing is left of them.
func TestBackupsThatFail(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		r := newBackupRig(t, dir)
		r.failWith(errors.New("no space left on device"))
		r.kept.set(t, "leader", r.settings("6h"))
		wantBackups(t, "failed", r.after(t, time.Minute), "")
		if p := r.problems(); len(p) != 1 || !strings.Contains(p[0], "the scheduled backup to "+dir+" failed at 2000-01-01T00:00:00Z: no space left") {
			t.Errorf("problems %q", p)
		}
		wantBackups(t, "again", r.after(t, 10*time.Minute), "")
		if r.failures.Load() != 2 || !slices.Equal(r.told, []string{"backup_failed cluster_settings", "backup_failed cluster_settings"}) {
			t.Errorf("%d failures, events %q", r.failures.Load(), r.told)
		}
		r.failWith(nil)
		wantBackups(t, "made", r.after(t, 10*time.Minute), "01 00:20")
		if p := r.problems(); len(p) > 0 || r.succeeded.Load() == 0 {
			t.Errorf("problems %q", p)
		}
	})
}

// TestBackupsNowhere: a directory that takes no file is told at once, not when the first backup is due, until it takes one.
func TestBackupsNowhere(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "file", "backups")
	if err := os.WriteFile(filepath.Dir(dir), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := backupFault(dir); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("below a file: %v", err)
	}
	synctest.Test(t, func(t *testing.T) {
		r := newBackupRig(t, dir)
		r.kept.set(t, "leader", r.settings("23:59"))
		time.Sleep(time.Second)
		synctest.Wait()
		if p := r.problems(); len(p) != 1 || !strings.Contains(p[0], "no backup can be written to "+dir+": ") {
			t.Errorf("problems %q", p)
		}
		if err := os.Remove(filepath.Dir(dir)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(backupRetry)
		synctest.Wait()
		if p := r.problems(); len(p) > 0 {
			t.Errorf("problems of a directory that can be made: %q", p)
		}
		if left, _ := os.ReadDir(filepath.Dir(filepath.Dir(dir))); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	})
}

func TestBackupsOnlyOfTheLeader(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		r := newBackupRig(t, dir)
		r.kept.set(t, "follower", r.settings("6h"))
		wantBackups(t, "a follower", r.after(t, 24*time.Hour), "")
		r.kept.mu.Lock()
		r.kept.role = "leader"
		r.kept.mu.Unlock()
		wantBackups(t, "once it leads", r.after(t, 2*time.Minute), "02 00:01")
	})
}

// TestBackupsOfAnotherLeader: who leads next goes on where the one before left off.
func TestBackupsOfAnotherLeader(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		one, two := newBackupRig(t, dir), newBackupRig(t, dir)
		two.kept.set(t, "follower", two.settings("6h"))
		one.kept.set(t, "leader", one.settings("6h"))
		wantBackups(t, "the first leader's", one.after(t, 13*time.Hour), "01 00:00, 01 06:00, 01 12:00")
		one.kept.set(t, "follower", one.settings("6h"))
		two.kept.mu.Lock()
		two.kept.role = "leader"
		two.kept.mu.Unlock()
		wantBackups(t, "the second leader's", two.after(t, 4*time.Hour), "01 00:00, 01 06:00, 01 12:00")
		wantBackups(t, "the second leader's", two.after(t, 2*time.Hour), "01 06:00, 01 12:00, 01 18:00")
	})
}
