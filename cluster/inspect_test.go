package cluster

import (
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// contents are the files of a directory.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		all[path] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestInspect(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "lbd")
	if in, err := Inspect(dir); err != nil || in.Running || in.State != nil {
		t.Errorf("a directory that is not there: %+v, %v", in, err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Error("it was made")
	}
	node, err := Open(Config{Dir: dir, Node: "n1", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if err := node.Start(); err != nil {
		t.Fatal(err)
	}
	proposeFirst(t, node)
	if in, err := Inspect(dir); err != nil || !in.Running || in.State != nil {
		t.Errorf("of a running node: %+v, %v", in, err)
	}
	if err := node.Close(); err != nil {
		t.Fatal(err)
	}
	before := contents(t, dir)
	in, err := Inspect(dir)
	if err != nil || in.Running || in.State.Revision() != 1 {
		t.Fatalf("of a node that has ended: %+v, %v", in, err)
	}
	if _, ok := in.State.Get(state.Pools, "hello"); !ok {
		t.Error("what was stored is not there")
	}
	if after := contents(t, dir); !maps.Equal(before, after) {
		t.Error("a file has changed")
	}
	for _, name := range []string{"state.db", "raft.db"} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(before[path][:len(before[path])/2]), 0o600); err != nil {
			t.Fatal(err)
		}
		var open *OpenError
		if _, err := Inspect(dir); !errors.As(err, &open) || open.Path != path || open.Remedy == "" {
			t.Errorf("%s is cut off: %v", name, err)
		}
		if err := os.WriteFile(path, []byte(before[path]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(filepath.Join(dir, "votes")); err != nil {
		t.Fatal(err)
	}
	if _, err := Inspect(dir); !errors.Is(err, errLost) {
		t.Errorf("a file is gone: %v", err)
	}
}

// proposeFirst stores a pool as revision 1, once the node leads.
func proposeFirst(t *testing.T, node *Node) {
	t.Helper()
	pool, _ := state.Wrap("web", &lbdv1.Pool{Name: "hello", Backends: []*lbdv1.Backend{{Address: "192.0.2.1:80"}}})
	change := &raftv1.ChangeCommand{Owner: "web", Author: "test", RequestId: "first", Upserts: []*raftv1.StoredResource{{Resource: pool}}}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		_, err := node.Propose(t.Context(), change)
		if err == nil {
			return
		}
		if !errors.Is(err, ErrNoLeader) || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}
