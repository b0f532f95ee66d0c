package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// everyPage is what is done to each page of a file in turn.
var everyPage = map[string]func(b []byte, at, size int) []byte{
	"flipped in the head":  func(b []byte, at, size int) []byte { return flipped(b, at+3, 0x04) },
	"flipped in the first": func(b []byte, at, size int) []byte { return flipped(b, at+20, 0x80) },
	"flipped in the body":  func(b []byte, at, size int) []byte { return flipped(b, at+size/2, 0x01) },
	"flipped at the end":   func(b []byte, at, size int) []byte { return flipped(b, at+size-2, 0x10) },
	"inverted": func(b []byte, at, size int) []byte {
		for i := range size {
			b[at+i] ^= 0xff
		}
		return b
	},
	"zeroed":             func(b []byte, at, size int) []byte { clear(b[at : at+size]); return b },
	"another's":          func(b []byte, at, size int) []byte { copy(b[at:at+size], b[(at+size)%len(b):]); return b },
	"removed":            func(b []byte, at, size int) []byte { return slices.Delete(b, at, at+size) },
	"truncated before":   func(b []byte, at, size int) []byte { return b[:at] },
	"truncated in midst": func(b []byte, at, size int) []byte { return b[:at+size/2] },
}

func flipped(b []byte, at int, bits byte) []byte {
	b[at%len(b)] ^= bits
	return b
}

// TestEveryPageDamaged does to every page of every file what a disk may do. The node opens and has, once its log is
// replayed, everything that was acknowledged, and takes further changes; or it says which file is damaged, and what to
// do. It never begins anew, and it never panics.
func TestEveryPageDamaged(t *testing.T) {
	for name, good := range map[string]string{"young": written(t), "with a snapshot": snapshotted(t)} {
		n := open(t, config(good))
		want := snapshotBytes(t, n.State())
		stop(t, n)
		for _, file := range filesOf(t, good) {
			if file == "lock" {
				continue
			}
			content, err := os.ReadFile(filepath.Join(good, file))
			if err != nil {
				t.Fatal(err)
			}
			size := min(os.Getpagesize(), len(content))
			for at := 0; at+size <= len(content); at += size {
				t.Run(fmt.Sprintf("%s/%s/%d", name, file, at/size), func(t *testing.T) {
					t.Parallel()
					for _, how := range slices.Sorted(maps.Keys(everyPage)) {
						openDamaged(t, good, file, how, everyPage[how](bytes.Clone(content), at, size), want)
					}
				})
			}
		}
	}
}

// snapshotted is the directory of a node whose log begins behind its snapshot.
func snapshotted(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	n := start(t, config(dir))
	for i := range 3 {
		propose(t, n, pool("shop", 200*(i+1)))
	}
	if err := n.raft.Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
	last, err := n.log.LastIndex()
	if err == nil {
		propose(t, n, pool("shop", 7))
		err = n.log.DeleteRange(1, last)
	}
	if err != nil {
		t.Fatal(err)
	}
	stop(t, n)
	return dir
}

func filesOf(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			all = append(all, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func openDamaged(t *testing.T, good, file, how string, content, want []byte) {
	t.Helper()
	dir := t.TempDir() // a database that panicked keeps its lock
	if err := os.CopyFS(dir, os.DirFS(good)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, file), content, 0o600); err != nil {
		t.Fatal(err)
	}
	n, err := Open(config(dir))
	if err == nil {
		err = n.Start()
		defer n.Close()
	}
	var open *OpenError
	switch {
	case err == nil:
		until(t, file+" "+how+": the state is there", func() bool { return bytes.Equal(snapshotBytes(t, n.State()), want) })
		before := n.State().Revision()
		if res := propose(t, n, pool("after", 1)); res.Revision != before+1 {
			t.Errorf("%s %s: revision %d after %d", file, how, res.Revision, before)
		}
	case !errors.As(err, &open) || open.Path == "" || open.Remedy == "" || errors.Is(err, errLocked):
		t.Errorf("%s %s: %v", file, how, err)
	}
}
