package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("LBD_TEST_WRITER"); dir != "" {
		os.Exit(writeUntilKilled(dir))
	}
	goleak.VerifyTestMain(m)
}

func discard() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func config(dir string) Config { return Config{Dir: dir, Node: "a", Logger: discard()} }

func open(t *testing.T, config Config) *Node {
	t.Helper()
	n, err := Open(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	return n
}

func start(t *testing.T, config Config) *Node {
	t.Helper()
	n := open(t, config)
	if err := n.Start(); err != nil {
		t.Fatal(err)
	}
	return n
}

func stop(t *testing.T, n *Node) {
	t.Helper()
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
}

func pool(name string, backends int) *raftv1.ChangeCommand {
	p := &lbdv1.Pool{Name: name}
	for i := range backends {
		p.Backends = append(p.Backends, &lbdv1.Backend{Address: fmt.Sprintf("10.0.%d.%d:80", i/256, i%256)})
	}
	return &raftv1.ChangeCommand{Owner: "web", Upserts: []*raftv1.StoredResource{
		{Resource: &lbdv1.Resource{Spec: &lbdv1.Resource_Pool{Pool: p}}},
	}}
}

func propose(t *testing.T, n *Node, change *raftv1.ChangeCommand) state.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	res, err := n.Propose(ctx, change)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// snapshotBytes is the whole state, to compare.
func snapshotBytes(t *testing.T, st *state.State) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := writeSnapshot(&b, st, 0); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestStateOutlivesTheProcess(t *testing.T) {
	dir := t.TempDir()
	n := start(t, config(dir))
	id, cluster := n.ID(), n.State().ClusterID()
	if res := propose(t, n, pool("shop", 1)); res.Revision != 1 {
		t.Fatalf("revision %d, want 1", res.Revision)
	}
	select {
	case <-n.Changed():
	default:
		t.Error("nobody was told of the change")
	}
	if n.Role() != "leader" || n.Leader() != id {
		t.Errorf("role %s, leader %q", n.Role(), n.Leader())
	}
	want := snapshotBytes(t, n.State())
	stop(t, n)
	if n.Role() != "none" || n.State().Revision() != 1 {
		t.Errorf("after close: role %s, revision %d", n.Role(), n.State().Revision())
	}

	n = open(t, config(dir))
	if !bytes.Equal(snapshotBytes(t, n.State()), want) {
		t.Fatal("the state is not there before raft starts")
	}
	if n.ID() != id || n.State().ClusterID() != cluster || n.Role() != "none" {
		t.Fatalf("id %s, cluster %s, role %s", n.ID(), n.State().ClusterID(), n.Role())
	}
	if err := n.Start(); err != nil {
		t.Fatal(err)
	}
	if res := propose(t, n, pool("shop", 2)); res.Revision != 2 {
		t.Fatalf("revision %d, want 2", res.Revision)
	}
}

func TestRefusals(t *testing.T) {
	n := open(t, config(t.TempDir()))
	if _, err := n.Propose(t.Context(), pool("shop", 1)); !errors.Is(err, ErrClosed) {
		t.Errorf("before start: %v", err)
	}
	if err := n.Start(); err != nil {
		t.Fatal(err)
	}
	if err := n.Start(); !errors.Is(err, ErrClosed) {
		t.Errorf("second start: %v", err)
	}
	propose(t, n, pool("shop", 1))
	last, err := n.log.LastIndex()
	if err != nil {
		t.Fatal(err)
	}
	var invalid *InvalidError
	if _, err := n.Propose(t.Context(), pool("none", 0)); !errors.As(err, &invalid) || len(invalid.Violations) != 1 {
		t.Errorf("invalid change: %v", err)
	}
	other := pool("shop", 2)
	other.Owner = "api"
	var conflict *ConflictError
	if _, err := n.Propose(t.Context(), other); !errors.As(err, &conflict) || conflict.Conflicts[0].Owner != "web" {
		t.Errorf("conflict: %v", err)
	}
	if now, err := n.log.LastIndex(); err != nil || now != last {
		t.Errorf("refused changes entered the log: %d entries after %d", now, last)
	}
	stop(t, n)
	if _, err := n.Propose(t.Context(), pool("shop", 2)); !errors.Is(err, ErrClosed) {
		t.Errorf("after close: %v", err)
	}
}

func TestRevisionIsDatedByTheClock(t *testing.T) {
	c := config(t.TempDir())
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	c.Now = func() time.Time { return at }
	n := start(t, c)
	change := pool("shop", 1)
	propose(t, n, change)
	r, _ := n.State().RevisionAt(1)
	if !r.GetTime().AsTime().Equal(at) || change.GetTime() != nil {
		t.Fatalf("dated %v; the caller's change has %v", r.GetTime().AsTime(), change.GetTime())
	}
}

func TestRequestIsAnsweredOnce(t *testing.T) {
	dir := t.TempDir()
	n := start(t, config(dir))
	change := pool("shop", 1)
	change.RequestId = "r1"
	first := propose(t, n, change)
	stop(t, n)
	n = start(t, config(dir))
	again := propose(t, n, change)
	if !again.Replayed || again.Revision != first.Revision || len(again.Changes) != 1 {
		t.Fatalf("answered %+v, first %+v", again, first)
	}
}

func TestLargeChangeTravelsInParts(t *testing.T) {
	dir := t.TempDir()
	c := config(dir)
	c.MaxPartBytes = 1000
	n := start(t, c)
	propose(t, n, pool("first", 1)) // behind it are the entries with which a term begins
	var entries int
	for _, backends := range []int{1, 900} {
		before, _ := n.log.LastIndex()
		propose(t, n, pool("shop", backends))
		after, _ := n.log.LastIndex()
		entries = int(after - before)
		if backends == 1 && entries != 1 {
			t.Fatalf("%d entries for a small change", entries)
		}
	}
	if entries < 10 {
		t.Fatalf("%d entries for a large change", entries)
	}
	if n.State().Revision() != 3 {
		t.Fatalf("revision %d", n.State().Revision())
	}
	want := snapshotBytes(t, n.State())
	stop(t, n)
	if !bytes.Equal(snapshotBytes(t, open(t, config(dir)).State()), want) {
		t.Fatal("state differs after restart")
	}
}

func TestProposalsAtTheSameTime(t *testing.T) {
	dir := t.TempDir()
	n := start(t, config(dir))
	const writers, each = 8, 10
	var wg sync.WaitGroup
	revisions := make(chan int64, writers*each)
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				res, err := n.Propose(t.Context(), pool(fmt.Sprintf("p%d", w), i+1))
				if err != nil {
					t.Error(err)
					return
				}
				revisions <- res.Revision
			}
		})
	}
	wg.Wait()
	close(revisions)
	seen := map[int64]bool{}
	for r := range revisions {
		seen[r] = true
	}
	if len(seen) != writers*each || n.State().Revision() != writers*each {
		t.Fatalf("%d revisions answered, %d made", len(seen), n.State().Revision())
	}
	want := snapshotBytes(t, n.State())
	stop(t, n)
	if !bytes.Equal(snapshotBytes(t, open(t, config(dir)).State()), want) {
		t.Fatal("state differs after restart")
	}
}

func TestCallerThatGivesUp(t *testing.T) {
	n := start(t, config(t.TempDir()))
	propose(t, n, pool("shop", 1))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	change := pool("shop", 2)
	change.RequestId = "r"
	if _, err := n.Propose(ctx, change); err != nil && !errors.Is(err, ErrOutcomeUnknown) {
		t.Fatalf("got %v", err)
	}
	if res := propose(t, n, change); res.Revision != 2 {
		t.Fatalf("revision %d: the change was made twice or not at all", res.Revision)
	}
}

func TestUnreadableEntryIsRefused(t *testing.T) {
	n := start(t, config(t.TempDir()))
	propose(t, n, pool("shop", 1))
	f := n.raft.Apply([]byte("\xff no command"), time.Second)
	if err := f.Error(); err != nil {
		t.Fatal(err)
	}
	if res := f.Response().(state.Result); !errors.Is(res.Err, state.ErrUnknownCommand) {
		t.Fatalf("got %v", res.Err)
	}
	if res := propose(t, n, pool("shop", 2)); res.Revision != 2 {
		t.Fatal("the node does not go on")
	}
}

func TestSnapshotsKeepTheLogShort(t *testing.T) {
	dir := t.TempDir()
	n := start(t, config(dir))
	for i := range 20 {
		propose(t, n, pool("shop", i+1))
	}
	if err := n.raft.Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
	propose(t, n, pool("shop", 50))
	want := snapshotBytes(t, n.State())
	stop(t, n)
	n = start(t, config(dir))
	if !bytes.Equal(snapshotBytes(t, n.State()), want) {
		t.Fatal("state differs after restart from a snapshot")
	}
	if res := propose(t, n, pool("shop", 51)); res.Revision != 22 {
		t.Fatalf("revision %d, want 22", res.Revision)
	}
}
