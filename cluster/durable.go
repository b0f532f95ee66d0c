package cluster

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"

	"go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
)

var (
	recordBucket = []byte("records")

	headerKey  = []byte("header")
	appliedKey = []byte("applied")
)

// durable keeps the applied state in state.db: every record of the state under its key, the header, and the index of
// the last entry of the log that is in it. One transaction takes it from one index to a later one, so it is always
// some applied state, whole. Serving starts from it.
type durable struct {
	*database
}

// applied is what state.db says besides the state.
type applied struct {
	index   uint64 // of the last entry of the log within the state; 0 for none
	records uint64 // number of records, so that a lost page is noticed
}

// openDurable verifies every record. A new file holds no state: nil.
func openDurable(path string) (*durable, *state.State, applied, error) {
	db, err := openDatabase(path, recordBucket, metaBucket)
	if err != nil {
		return nil, nil, applied{}, err
	}
	d := &durable{db}
	st, at, err := d.read()
	if errors.Is(err, state.ErrFormat) { // a newer build wrote it: say which, if it can be found out
		gate, nodes := d.storedGate()
		if refused := checkGate(path, gate, nodes); refused != nil {
			err = refused
		}
	}
	if err != nil {
		defer d.close()
		if errors.Is(err, state.ErrFormat) { // of a newer build, most likely: then it says more than that
			gate, nodes := d.storedGate()
			if err := checkGate(path, gate, nodes); err != nil {
				return nil, nil, applied{}, err
			}
		}
		return nil, nil, applied{}, openError(path, err)
	}
	return d, st, at, nil
}

func (d *durable) read() (st *state.State, at applied, err error) {
	err = d.view(func(tx *bbolt.Tx) error {
		meta := tx.Bucket(metaBucket)
		header, err := unframe(headerKey, meta.Get(headerKey))
		if err != nil || header == nil {
			return err
		}
		if at, err = decodeApplied(meta.Get(appliedKey)); err != nil {
			return err
		}
		st, err = readState(tx, header, at.records)
		return err
	})
	return st, at, err
}

func readState(tx *bbolt.Tx, header []byte, records uint64) (*state.State, error) {
	head := new(raftv1.SnapshotHeader)
	if err := state.Parse(header, head); err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	var damage error
	var n uint64
	st, err := state.Load(head, func(yield func(string, *raftv1.SnapshotRecord) bool) {
		damage = tx.Bucket(recordBucket).ForEach(func(k, framed []byte) error {
			value, err := unframe(k, framed)
			if err != nil {
				return err
			}
			record := new(raftv1.SnapshotRecord)
			if err := state.Parse(value, record); err != nil {
				return fmt.Errorf("record %q: %w", k, err)
			}
			if n++; !yield(string(k), record) {
				return errStop
			}
			return nil
		})
	})
	switch {
	case err != nil:
		return nil, err
	case damage != nil:
		return nil, damage
	case n != records:
		return nil, fmt.Errorf("%w: %d records where there were %d", state.ErrDamaged, n, records)
	}
	return st, nil
}

// errStop ends a walk early; the reason is elsewhere.
var errStop = errors.New("stop")

func encodeApplied(at applied) []byte {
	return binary.BigEndian.AppendUint64(indexKey(at.index), at.records)
}

func decodeApplied(framed []byte) (applied, error) {
	v, err := unframe(appliedKey, framed)
	if err != nil {
		return applied{}, err
	}
	if len(v) != 16 {
		return applied{}, fmt.Errorf("%w %q", state.ErrDamaged, appliedKey)
	}
	return applied{binary.BigEndian.Uint64(v), binary.BigEndian.Uint64(v[8:])}, nil
}

// advance takes the file to a later state, of which only the touched records differ from what it holds.
func (d *durable) advance(st *state.State, touched map[string]struct{}, index uint64) error {
	return d.update(func(tx *bbolt.Tx) error {
		at, err := decodeApplied(tx.Bucket(metaBucket).Get(appliedKey))
		if err != nil {
			return err
		}
		bucket := tx.Bucket(recordBucket)
		for _, key := range slices.Sorted(maps.Keys(touched)) {
			k := []byte(key)
			had := bucket.Get(k) != nil
			record, has := st.Record(key)
			if had {
				at.records--
			}
			if has {
				at.records++
				if err := putRecord(bucket, k, record); err != nil {
					return err
				}
			} else if err := bucket.Delete(k); err != nil {
				return err
			}
		}
		at.index = index
		return putMeta(tx, st, at)
	})
}

// replace puts a whole state in place of what the file holds.
func (d *durable) replace(st *state.State, index uint64) error {
	return d.update(func(tx *bbolt.Tx) error {
		if err := tx.DeleteBucket(recordBucket); err != nil {
			return err
		}
		bucket, err := tx.CreateBucket(recordBucket)
		if err != nil {
			return err
		}
		bucket.FillPercent = 0.9 // records come in order
		at := applied{index: index}
		for key, record := range st.Records() {
			at.records++
			if err := putRecord(bucket, []byte(key), record); err != nil {
				return err
			}
		}
		return putMeta(tx, st, at)
	})
}

func putRecord(bucket *bbolt.Bucket, key []byte, record *raftv1.SnapshotRecord) error {
	value, err := proto.Marshal(record)
	if err != nil {
		return err
	}
	return bucket.Put(key, frame(key, value))
}

func putMeta(tx *bbolt.Tx, st *state.State, at applied) error {
	header, err := proto.Marshal(st.Header())
	if err != nil {
		return err
	}
	meta := tx.Bucket(metaBucket)
	if err := meta.Put(headerKey, frame(headerKey, header)); err != nil {
		return err
	}
	return meta.Put(appliedKey, frame(appliedKey, encodeApplied(at)))
}
