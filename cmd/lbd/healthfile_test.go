package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"lbd/health"
)

// keeperRig is a keeper over a directory, and what it knows.
type keeperRig struct {
	*healthKeeper
	t          *testing.T
	known      []health.Saved
	complaints int
}

func newKeeperRig(t *testing.T, dir string) *keeperRig {
	r := &keeperRig{t: t, known: []health.Saved{{Key: "a", State: health.Up, Since: time.Unix(1000, 0)}}}
	r.healthKeeper = &healthKeeper{
		path: filepath.Join(dir, healthFile), complain: func(error) { r.complaints++ },
		snapshot: func() []health.Saved {
			now := append([]health.Saved{}, r.known...)
			for i := range now {
				now[i].At, now[i].LastCheck = time.Now(), time.Now()
			}
			return now
		},
	}
	return r
}

// wrote saves, and reports whether a file came of it, with what is known now.
func (r *keeperRig) wrote() bool {
	r.t.Helper()
	_ = os.Remove(r.path)
	r.save()
	saved, err := readHealth(filepath.Dir(r.path))
	if err != nil {
		r.t.Fatal(err)
	}
	if len(saved) > 0 && (len(saved) != len(r.known) || saved[0].State != r.known[0].State || !saved[0].At.IsZero()) {
		r.t.Errorf("kept %+v, want %+v without a time", saved, r.known)
	}
	return len(saved) > 0
}

func TestHealthIsKeptWhenItFlips(t *testing.T) {
	r := newKeeperRig(t, t.TempDir())
	if !r.wrote() {
		t.Error("the first state is not kept")
	}
	if r.wrote() {
		t.Error("written though nothing has flipped")
	}
	r.known[0].LastError = "refused"
	if r.wrote() {
		t.Error("written for another error of the same state")
	}
	r.known[0].State, r.known[0].Since = health.Down, time.Unix(2000, 0)
	if !r.wrote() {
		t.Error("a flip is not kept")
	}
	r.known = append(r.known, health.Saved{Key: "b", State: health.Up})
	if !r.wrote() {
		t.Error("a new backend is not kept")
	}
	if files, err := os.ReadDir(filepath.Dir(r.path)); err != nil || len(files) != 1 {
		t.Errorf("left behind: %v, %v", files, err)
	}
}

// TestHealthAtTheEnd: who ends in order says when, so that after a long pause nothing of it counts.
func TestHealthAtTheEnd(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		r := newKeeperRig(t, dir)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			r.run(ctx)
		}()
		time.Sleep(healthSaveInterval + time.Second)
		synctest.Wait()
		if saved, err := readHealth(dir); err != nil || len(saved) != 1 || !saved[0].At.IsZero() {
			t.Errorf("kept %+v, %v", saved, err)
		}
		cancel()
		<-ended
		if saved, err := readHealth(dir); err != nil || len(saved) != 1 || !saved[0].At.Equal(time.Now()) {
			t.Errorf("kept at the end %+v, %v", saved, err)
		}
	})
}

func TestHealthThatCannotBeKept(t *testing.T) {
	r := newKeeperRig(t, filepath.Join(t.TempDir(), "none"))
	r.save()
	r.save()
	if r.complaints != 1 {
		t.Errorf("%d complaints of one fault", r.complaints)
	}
	if err := os.Mkdir(filepath.Dir(r.path), 0o700); err != nil {
		t.Fatal(err)
	}
	if !r.wrote() {
		t.Error("not written once it can be")
	}
}

func TestHealthFileThatIsDamaged(t *testing.T) {
	dir := t.TempDir()
	if saved, err := readHealth(dir); saved != nil || err != nil {
		t.Errorf("no file: %v, %v", saved, err)
	}
	for _, text := range []string{"", "{", "[1]", `[{"state":"ILL"}]`, "\x00\x00\x00"} {
		writeFile(t, filepath.Join(dir, healthFile), text)
		if saved, err := readHealth(dir); saved != nil || err == nil {
			t.Errorf("%q: %v, %v", text, saved, err)
		}
	}
}
