package cluster

import (
	"bytes"
	"errors"
	"path/filepath"
	"testing"

	"go.etcd.io/bbolt"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
)

// newer adds to a message what this build does not know.
func newer(m proto.Message) {
	m.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 4000, protowire.VarintType), 1))
}

// TestNewerStateIsRefused: what a newer build has stored is not opened as far as it is understood, and the remedy is a newer
// build, not a copy.
func TestNewerStateIsRefused(t *testing.T) {
	for name, change := range map[string]func(record *raftv1.SnapshotRecord) bool{
		"kind of record": func(record *raftv1.SnapshotRecord) bool {
			record.Record = nil
			newer(record)
			return true
		},
		"field": func(record *raftv1.SnapshotRecord) bool {
			pool := record.GetResource().GetResource().GetPool()
			if pool == nil {
				return false
			}
			newer(pool.GetBackends()[0])
			return true
		},
		"value": func(record *raftv1.SnapshotRecord) bool {
			pool := record.GetResource().GetResource().GetPool()
			if pool == nil {
				return false
			}
			pool.Balance = 4000
			return true
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := written(t)
			d, _, _, err := openDurable(filepath.Join(dir, "state.db"))
			if err != nil {
				t.Fatal(err)
			}
			changed := false
			err = d.update(func(tx *bbolt.Tx) error {
				cursor := tx.Bucket(recordBucket).Cursor()
				for k, framed := cursor.First(); k != nil; k, framed = cursor.Next() {
					value, err := unframe(k, framed)
					record := new(raftv1.SnapshotRecord)
					if err = errors.Join(err, proto.Unmarshal(value, record)); err != nil {
						return err
					}
					if changed = change(record); changed {
						return putRecord(tx.Bucket(recordBucket), bytes.Clone(k), record)
					}
				}
				return nil
			})
			if err = errors.Join(err, d.close()); err != nil || !changed {
				t.Fatal(err)
			}
			wantOpenError(t, dir, "state.db", state.ErrFormat)
			_, err = Open(config(dir))
			var open *OpenError
			if !errors.As(err, &open) || open.Remedy != remedyVersion {
				t.Errorf("the remedy of %v is not a newer build", err)
			}
		})
	}
}

// TestNewerSnapshotIsRefused: nor is a snapshot of a newer build.
func TestNewerSnapshotIsRefused(t *testing.T) {
	n := start(t, config(t.TempDir()))
	propose(t, n, pool("shop", 1))
	for record := range n.State().All(state.Pools) {
		newer(record) // of this test's state alone
	}
	var b bytes.Buffer
	if err := writeSnapshot(&b, n.State(), 42); err != nil {
		t.Fatal(err)
	}
	if _, _, err := readSnapshot(&b); !errors.Is(err, state.ErrFormat) {
		t.Fatalf("got %v", err)
	}
}
