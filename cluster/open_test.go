package cluster

import (
	"bytes"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"

	"lbd/cluster/state"
)

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestOldStateIsRebuiltFromTheSnapshot: raft does not replay what its snapshot holds, so a state.db that is older than
// that would miss it for ever.
func TestOldStateIsRebuiltFromTheSnapshot(t *testing.T) {
	dir := t.TempDir()
	n := start(t, config(dir))
	propose(t, n, pool("shop", 1))
	stop(t, n)
	old := filepath.Join(t.TempDir(), "state.db")
	copyFile(t, filepath.Join(dir, "state.db"), old)
	n = start(t, config(dir))
	propose(t, n, pool("shop", 2))
	if err := n.raft.Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
	want := snapshotBytes(t, n.State())
	stop(t, n)
	copyFile(t, old, filepath.Join(dir, "state.db"))
	n = start(t, config(dir))
	if !bytes.Equal(snapshotBytes(t, n.State()), want) {
		t.Fatal("the state is still the old one")
	}
	if res := propose(t, n, pool("shop", 3)); res.Revision != 3 {
		t.Fatalf("revision %d, want 3", res.Revision)
	}
}

// TestOldStateCatchesUpFromTheLog: without a snapshot in between, the log has what is missing.
func TestOldStateCatchesUpFromTheLog(t *testing.T) {
	dir := t.TempDir()
	n := start(t, config(dir))
	propose(t, n, pool("shop", 1))
	stop(t, n)
	old := filepath.Join(t.TempDir(), "state.db")
	copyFile(t, filepath.Join(dir, "state.db"), old)
	n = start(t, config(dir))
	propose(t, n, pool("shop", 2))
	stop(t, n)
	copyFile(t, old, filepath.Join(dir, "state.db"))
	n = start(t, config(dir))
	if res := propose(t, n, pool("shop", 3)); res.Revision != 3 {
		t.Fatalf("revision %d, want 3 after the one in the log", res.Revision)
	}
}

func wantOpenError(t *testing.T, dir, file string, cause error) {
	t.Helper()
	n, err := Open(config(dir))
	if err == nil {
		n.Close()
		t.Fatalf("opened although %s: %v", file, cause)
	}
	var open *OpenError
	if !errors.As(err, &open) || !errors.Is(err, cause) || filepath.Base(open.Path) != file || open.Remedy == "" {
		t.Fatalf("got %v, want %s: %v", err, file, cause)
	}
	if !strings.Contains(err.Error(), open.Path) || !strings.Contains(err.Error(), open.Remedy) {
		t.Fatalf("%q does not name path and remedy", err)
	}
}

// written is the directory of a node that has made some revisions and is closed.
func written(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	n := start(t, config(dir))
	for i := range 3 {
		propose(t, n, pool("shop", i+1))
	}
	stop(t, n)
	return dir
}

// TestLostFilesAreNoFirstStart removes every set of files but all of them, and all of them beside a snapshot.
func TestLostFilesAreNoFirstStart(t *testing.T) {
	good := written(t)
	files := []string{"state.db", "raft.db", "votes", "node-id"}
	for set := 1; set < 1<<len(files); set++ {
		dir := t.TempDir()
		lost := map[string]bool{}
		for i, name := range files {
			if set&(1<<i) != 0 {
				lost[name] = true
				continue
			}
			copyFile(t, filepath.Join(good, name), filepath.Join(dir, name))
		}
		if len(lost) == 1 && lost["node-id"] {
			continue // it is written again
		}
		if len(lost) == len(files) {
			if err := os.MkdirAll(filepath.Join(dir, "snapshots", "1-2-3"), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		n, err := Open(config(dir))
		if err == nil {
			n.Close()
			t.Fatalf("opened without %v", lost)
		}
		var open *OpenError
		if !errors.As(err, &open) || !lost[filepath.Base(open.Path)] || !errors.Is(err, errLost) && !errors.Is(err, errOlder) || open.Remedy != remedyDamaged {
			t.Errorf("without %v: %v", lost, err)
		}
	}
}

// TestFirstStartThatWasCutOff: what is made in order may end after any step.
func TestFirstStartThatWasCutOff(t *testing.T) {
	made := []string{"state.db", "raft.db", "votes", "node-id"}
	for done := range len(made) {
		dir := t.TempDir()
		n := open(t, config(dir))
		stop(t, n)
		for _, name := range made[done:] {
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
		again := start(t, config(dir))
		if done > 0 && (again.ID() != n.ID() || again.State().ClusterID() != n.State().ClusterID()) {
			t.Errorf("after %v: node %s and cluster %s, were %s and %s", made[:done],
				again.ID(), again.State().ClusterID(), n.ID(), n.State().ClusterID())
		}
		propose(t, again, pool("shop", 1))
		stop(t, again)
		stop(t, open(t, config(dir)))
	}
}

func TestLostNodeIDIsWrittenAgain(t *testing.T) {
	dir := written(t)
	id := open(t, config(dir))
	stop(t, id)
	if err := os.Remove(filepath.Join(dir, "node-id")); err != nil {
		t.Fatal(err)
	}
	n := open(t, config(dir))
	if n.ID() != id.ID() || n.State().Revision() != 3 {
		t.Fatalf("id %s, was %s; revision %d", n.ID(), id.ID(), n.State().Revision())
	}
	stop(t, n)
	if err := os.WriteFile(filepath.Join(dir, "node-id"), []byte("?\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	wantOpenError(t, dir, "node-id", errNoNodeID)
}

func TestFilesOfAnotherNodeAreRefused(t *testing.T) {
	for _, name := range []string{"state.db", "raft.db", "votes"} {
		dir, other := written(t), written(t)
		copyFile(t, filepath.Join(other, name), filepath.Join(dir, name))
		wantOpenError(t, dir, name, errStranger)
	}
}

func TestOldLogIsRefused(t *testing.T) {
	dir := written(t)
	old := filepath.Join(t.TempDir(), "raft.db")
	copyFile(t, filepath.Join(dir, "raft.db"), old)
	n := start(t, config(dir))
	propose(t, n, pool("shop", 9))
	stop(t, n)
	copyFile(t, old, filepath.Join(dir, "raft.db"))
	wantOpenError(t, dir, "raft.db", errOlder)
}

func TestSecondProcessIsRefused(t *testing.T) {
	dir := written(t)
	n := open(t, config(dir))
	wantOpenError(t, dir, "lock", errLocked)
	stop(t, n)
	stop(t, open(t, config(dir)))
}

func TestUnknownFormatIsRefused(t *testing.T) {
	dir := written(t)
	d, st, _, err := openDurable(filepath.Join(dir, "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	header := st.Header()
	header.Format++
	value, err := proto.Marshal(header)
	if err != nil {
		t.Fatal(err)
	}
	err = d.update(func(tx *bbolt.Tx) error {
		return tx.Bucket(metaBucket).Put(headerKey, frame(headerKey, value))
	})
	if err = errors.Join(err, d.close()); err != nil {
		t.Fatal(err)
	}
	wantOpenError(t, dir, "state.db", state.ErrFormat)
}

// TestDamageIsFoundOrHarmless flips bytes anywhere in the databases. A node either opens, or says which file is damaged;
// it never panics. Where it opens it has the state that it had, or gets it from the log: bbolt goes back by one
// transaction when the newer of its two first pages is damaged.
func TestDamageIsFoundOrHarmless(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	good := written(t)
	n := open(t, config(good))
	want := snapshotBytes(t, n.State())
	stop(t, n)
	found := 0
	for round := range 48 {
		dir := t.TempDir() // a new one each round: a database that panicked keeps its lock
		for _, name := range []string{"state.db", "raft.db", "votes", "node-id"} {
			copyFile(t, filepath.Join(good, name), filepath.Join(dir, name))
		}
		damage(t, filepath.Join(dir, []string{"state.db", "raft.db", "votes"}[round%3]), random)
		n, err := Open(config(dir))
		var open *OpenError
		switch {
		case err == nil:
			if err := n.Start(); err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
			until(t, "the state is there", func() bool { return bytes.Equal(snapshotBytes(t, n.State()), want) })
			stop(t, n)
		case !errors.As(err, &open) || errors.Is(err, errLocked):
			t.Fatalf("round %d: %v", round, err)
		default:
			found++
		}
	}
	if found == 0 {
		t.Error("no damage was noticed")
	}
}

// damage changes a few bytes where there are any, or cuts the file off.
func damage(t *testing.T, path string, random *rand.Rand) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	used, size := usedPages(b), os.Getpagesize()
	for range 1 + random.IntN(4) {
		b[used[random.IntN(len(used))]*size+random.IntN(size/8)] ^= byte(1 + random.IntN(255))
	}
	if random.IntN(6) == 0 {
		b = b[:random.IntN(len(b))]
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// usedPages are the pages of a file that are not all zero.
func usedPages(file []byte) []int {
	var used []int
	size := os.Getpagesize()
	for i := 0; (i+1)*size <= len(file); i++ {
		if len(bytes.Trim(file[i*size:(i+1)*size], "\x00")) > 0 {
			used = append(used, i)
		}
	}
	return used
}

// TestOthersSeeNothing: whatever the mode of the directory, this machine's other users read no file of it.
func TestOthersSeeNothing(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(filepath.Join(dir, "snapshots"), 0o755)); err != nil {
		t.Fatal(err)
	}
	n := start(t, config(dir))
	propose(t, n, pool("shop", 2))
	if err := n.running().Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
	seen := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		seen++
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s is %v", path, info.Mode())
		}
		if d.IsDir() {
			return fs.SkipDir // nobody gets into it
		}
		return nil
	})
	if err != nil || seen < 5 {
		t.Errorf("%d files, %v", seen, err)
	}
}
