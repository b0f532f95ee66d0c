package cluster

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"pgregory.net/rapid"

	"lbd/cluster/state"
)

func openLog(t *testing.T, path string) *raftLog {
	t.Helper()
	l, err := openRaftLog(path, &faults{logger: discard()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.close() })
	return l
}

func TestLogKeepsEntries(t *testing.T) {
	path := filepath.Join(t.TempDir(), "raft.db")
	l := openLog(t, path)
	if first, err := l.FirstIndex(); err != nil || first != 0 {
		t.Fatalf("empty log begins at %d, %v", first, err)
	}
	at := time.Unix(1, 2)
	var want []*raft.Log
	for i := range uint64(9) {
		want = append(want, &raft.Log{Index: i + 1, Term: 300, Type: raft.LogCommand, Data: []byte{byte(i)}, AppendedAt: at})
	}
	want[3].Extensions, want[3].Type, want[3].AppendedAt = []byte("more"), raft.LogNoop, time.Time{}
	if err := l.StoreLogs(want); err != nil {
		t.Fatal(err)
	}
	if err := l.DeleteRange(1, 2); err != nil {
		t.Fatal(err)
	}
	if err := l.DeleteRange(8, 20); err != nil {
		t.Fatal(err)
	}
	if err := l.close(); err != nil {
		t.Fatal(err)
	}
	l = openLog(t, path)
	first, err := l.FirstIndex()
	last, err2 := l.LastIndex()
	if first != 3 || last != 7 || err != nil || err2 != nil {
		t.Fatalf("log from %d to %d, %v, %v", first, last, err, err2)
	}
	for index := uint64(1); index <= 9; index++ {
		var got raft.Log
		err := l.GetLog(index, &got)
		if index < 3 || index > 7 {
			if !errors.Is(err, raft.ErrLogNotFound) {
				t.Errorf("deleted entry %d: %v", index, err)
			}
			continue
		}
		if w := want[index-1]; err != nil || !reflect.DeepEqual(&got, w) {
			t.Errorf("entry %d: %+v, %v; want %+v", index, got, err, w)
		}
	}
}

func TestGapInTheLogIsDamage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "raft.db")
	l := openLog(t, path)
	if err := l.StoreLogs([]*raft.Log{{Index: 1}, {Index: 2}, {Index: 3}}); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(l.DeleteRange(2, 2), l.close()); err != nil {
		t.Fatal(err)
	}
	if _, err := openRaftLog(path, nil, nil); !errors.Is(err, state.ErrDamaged) {
		t.Fatalf("got %v", err)
	}
}

func TestDecodeEntryNeverPanics(t *testing.T) {
	key := indexKey(1)
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "entry")
		if len(b) > 0 && rapid.Bool().Draw(t, "format") {
			b[0] = logFormat
		}
		var entry raft.Log
		if err := decodeEntry(key, frame(key, b), &entry); err == nil && entry.Index != 1 {
			t.Fatalf("entry %d under key 1", entry.Index)
		}
	})
}

func TestSnapshotIsReadWholeOrNotAtAll(t *testing.T) {
	n := start(t, config(t.TempDir()))
	propose(t, n, pool("shop", 3))
	propose(t, n, pool("shop", 4))
	var b bytes.Buffer
	if err := writeSnapshot(&b, n.State(), 42); err != nil {
		t.Fatal(err)
	}
	st, index, err := readSnapshot(bytes.NewReader(b.Bytes()))
	if err != nil || index != 42 || !bytes.Equal(snapshotBytes(t, st), snapshotBytes(t, n.State())) {
		t.Fatalf("index %d, %v", index, err)
	}
	for i := range b.Bytes() {
		if _, _, err := readSnapshot(bytes.NewReader(b.Bytes()[:i])); err == nil {
			t.Fatalf("read a snapshot cut off at %d of %d bytes", i, b.Len())
		}
		bad := bytes.Clone(b.Bytes())
		bad[i] ^= 0x10
		if st, _, err := readSnapshot(bytes.NewReader(bad)); err == nil && !bytes.Equal(snapshotBytes(t, st), snapshotBytes(t, n.State())) {
			t.Fatalf("read another state with byte %d changed", i)
		}
	}
}

func TestRestorePutsASnapshotInPlace(t *testing.T) {
	n := start(t, config(t.TempDir()))
	propose(t, n, pool("shop", 3))
	var b bytes.Buffer
	if err := writeSnapshot(&b, n.State(), 42); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	other := open(t, config(dir))
	if err := other.machine.Restore(io.NopCloser(bytes.NewReader(b.Bytes()[:10]))); err == nil {
		t.Fatal("restored half a snapshot")
	}
	if err := other.machine.Restore(io.NopCloser(&b)); err != nil {
		t.Fatal(err)
	}
	select {
	case <-other.Changed():
	default:
		t.Error("nobody was told of the change")
	}
	stop(t, other)
	d, st, at, err := openDurable(filepath.Join(dir, "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	if at.index != 42 || !bytes.Equal(snapshotBytes(t, st), snapshotBytes(t, n.State())) {
		t.Fatalf("durable index %d, or another state", at.index)
	}
}

func TestLogOfRaftGoesToSlog(t *testing.T) {
	var b bytes.Buffer
	l := raftLogger(slog.New(slog.NewTextHandler(&b, nil)))
	l.Info("inner life")
	l.Warn("election", "term", 7)
	l.Named("x").Error("broken")
	got := b.String()
	if strings.Contains(got, "inner life") || !strings.Contains(got, "level=INFO msg=election component=raft term=7") ||
		!strings.Contains(got, "level=ERROR msg=broken") {
		t.Fatalf("logged\n%s", got)
	}
}
