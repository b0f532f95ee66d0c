package cluster

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

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

// many is a change of many pools; the first has so many backends.
func many(pools, first int) *raftv1.ChangeCommand {
	change := &raftv1.ChangeCommand{Owner: "web"}
	for i := range pools {
		change.Upserts = append(change.Upserts, pool(fmt.Sprint("p", i), 100).GetUpserts()...)
	}
	change.Upserts[0] = pool("p0", first).GetUpserts()[0]
	return change
}

// TestLargeChangeSendsWhatDiffers: what is stored already does not travel again.
func TestLargeChangeSendsWhatDiffers(t *testing.T) {
	dir := t.TempDir()
	c := config(dir)
	c.MaxPartBytes = 20_000
	n := start(t, c)
	propose(t, n, pool("first", 1)) // behind it are the entries with which a term begins
	change := many(200, 1)
	var entries [3]uint64
	for i, first := range []int{1, 2, 2} {
		before, _ := n.log.LastIndex()
		change = many(200, first)
		change.RequestId = fmt.Sprint("r", i)
		res := propose(t, n, change)
		if changed := []int{200, 1, 0}[i]; len(res.Changes) != changed {
			t.Fatalf("%d changes, want %d", len(res.Changes), changed)
		}
		after, _ := n.log.LastIndex()
		entries[i] = after - before
	}
	if entries[0] < 10 || entries[1] != 1 || entries[2] != 1 {
		t.Errorf("%d entries for all, for one and for none of it; want one for one and for none", entries)
	}
	want := snapshotBytes(t, n.State())
	stop(t, n)
	n = start(t, c)
	if !bytes.Equal(snapshotBytes(t, n.State()), want) {
		t.Fatal("state differs after restart")
	}
	if res := propose(t, n, change); !res.Replayed {
		t.Fatal("the request is not known again")
	}
}

// TestLargeChangeLosesNoRace: what was left out of a change and has been changed by somebody else on the way is set all the same.
func TestLargeChangeLosesNoRace(t *testing.T) {
	c := config(t.TempDir())
	c.MaxPartBytes = 20_000
	n := start(t, c)
	propose(t, n, many(200, 1))
	done := make(chan struct{})
	var other sync.WaitGroup
	other.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			default:
			}
			if _, err := n.Propose(context.Background(), pool("p7", 1+i%50)); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for i := range 20 {
		res := propose(t, n, many(200, 2+i))
		at, err := n.State().At(res.Revision)
		if err != nil {
			t.Fatal(err)
		}
		seven, _ := at.Get(state.Pools, "p7")
		zero, _ := at.Get(state.Pools, "p0")
		if len(seven.GetResource().GetPool().GetBackends()) != 100 || len(zero.GetResource().GetPool().GetBackends()) != 2+i {
			t.Errorf("revision %d is not what was asked for", res.Revision)
		}
	}
	close(done)
	other.Wait()
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

// TestNewerCommandStopsTheMachine: what a newer build wrote is neither applied as far as it is understood nor skipped. The
// state before it is served on, nothing is acknowledged, and the newer build finds everything.
func TestNewerCommandStopsTheMachine(t *testing.T) {
	known := &raftv1.Command{Kind: &raftv1.Command_Change{Change: pool("newer", 1)}}
	field := func(number protowire.Number) []byte {
		return protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), 1)
	}
	kind := protowire.AppendBytes(protowire.AppendTag(nil, 4000, protowire.BytesType), []byte("news"))
	inside := proto.CloneOf(known)
	inside.GetChange().ProtoReflect().SetUnknown(field(4000))
	value := proto.CloneOf(known)
	value.GetChange().Upserts[0].GetResource().GetPool().Balance = 4000
	whole, err := proto.Marshal(inside.GetChange())
	if err != nil {
		t.Fatal(err)
	}
	digest := sha256.Sum256(whole)
	for name, entries := range map[string][][]byte{
		"kind":  {kind},
		"field": {encoded(t, inside)},
		"value": {encoded(t, value)},
		"in parts": {
			encoded(t, &raftv1.Command{Kind: &raftv1.Command_Part{Part: &raftv1.PartCommand{Digest: digest[:], Data: whole}}}),
			encoded(t, &raftv1.Command{Kind: &raftv1.Command_Commit{Commit: &raftv1.CommitCommand{Digest: digest[:], Parts: 1}}}),
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			n := start(t, config(dir))
			propose(t, n, pool("shop", 1))
			var res state.Result
			for _, entry := range entries {
				f := n.raft.Apply(entry, time.Second)
				if err := f.Error(); err != nil {
					t.Fatal(err)
				}
				res = f.Response().(state.Result)
			}
			if !errors.Is(res.Err, ErrOutcomeUnknown) || !errors.Is(res.Err, state.ErrFormat) {
				t.Fatalf("answered %v", res.Err)
			}
			last, _ := n.log.LastIndex()
			if _, err := n.Propose(t.Context(), pool("shop", 2)); !errors.Is(err, ErrNoLeader) || !strings.Contains(err.Error(), "start a newer lbd") {
				t.Errorf("a change after it: %v", err)
			}
			if now, _ := n.log.LastIndex(); now != last {
				t.Error("a change that was refused is in the log: the newer build would make it")
			}
			if p := n.Problems(); len(p) != 1 || !strings.Contains(p[0], "start a newer lbd") || n.State().Revision() != 1 {
				t.Errorf("problems %q, revision %d", p, n.State().Revision())
			}
			if err := n.raft.Snapshot().Error(); err == nil {
				t.Error("a snapshot without the entry would drop it from the log")
			}
			stop(t, n)
			again := start(t, config(dir))
			until(t, "the node stops there again", func() bool { return len(again.Problems()) == 1 })
			if again.State().Revision() != 1 {
				t.Errorf("revision %d after a restart", again.State().Revision())
			}
		})
	}
}

func encoded(t *testing.T, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestWhatNoNodeKnowsIsNotProposed: a field that this build does not know enters no log.
func TestWhatNoNodeKnowsIsNotProposed(t *testing.T) {
	n := start(t, config(t.TempDir()))
	change := pool("shop", 1)
	change.GetUpserts()[0].GetResource().ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 4000, protowire.VarintType), 1))
	if _, err := n.Propose(t.Context(), change); !errors.Is(err, state.ErrUnknownCommand) {
		t.Fatalf("got %v", err)
	}
	if res := propose(t, n, pool("shop", 1)); res.Revision != 1 {
		t.Fatalf("revision %d", res.Revision)
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
