package cluster

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"go.etcd.io/bbolt"

	"lbd/cluster/state"
)

var (
	logBucket  = []byte("log")
	metaBucket = []byte("meta")

	nodeKey = []byte("node")
)

// logFormat opens every entry.
const logFormat = 1

// raftLog keeps raft's log in raft.db; it is raft's LogStore.
type raftLog struct {
	*database
	faults  *faults
	closing <-chan struct{}
	// running: raft's own goroutines call now, and what they cannot bear is retried.
	running atomic.Bool
}

// openRaftLog verifies every record.
func openRaftLog(path string, faults *faults, closing <-chan struct{}) (*raftLog, error) {
	db, err := openDatabase(path, logBucket, metaBucket)
	if err != nil {
		return nil, err
	}
	l := &raftLog{database: db, faults: faults, closing: closing}
	if err := l.view(verifyLog); err != nil {
		l.close()
		return nil, openError(path, err)
	}
	return l, nil
}

// verifyLog checks each entry's checksum and form, and that no index is missing.
func verifyLog(tx *bbolt.Tx) error {
	var before uint64
	return tx.Bucket(logBucket).ForEach(func(k, v []byte) error {
		var entry raft.Log
		if err := decodeEntry(k, v, &entry); err != nil {
			return err
		}
		if before != 0 && entry.Index != before+1 {
			return fmt.Errorf("%w: no entry between %d and %d", state.ErrDamaged, before, entry.Index)
		}
		before = entry.Index
		return nil
	})
}

func indexKey(index uint64) []byte { return binary.BigEndian.AppendUint64(nil, index) }

// encodeEntry is the format, type, term, time (ns), the length of the data, the data and the extensions.
func encodeEntry(entry *raft.Log) []byte {
	b := make([]byte, 0, 48+len(entry.Data)+len(entry.Extensions))
	b = append(b, logFormat, byte(entry.Type))
	b = binary.AppendUvarint(b, entry.Term)
	var at int64
	if !entry.AppendedAt.IsZero() {
		at = entry.AppendedAt.UnixNano()
	}
	b = binary.AppendVarint(b, at)
	b = binary.AppendUvarint(b, uint64(len(entry.Data)))
	b = append(b, entry.Data...)
	return append(b, entry.Extensions...)
}

// decodeEntry copies what it keeps: bbolt's memory is gone after the transaction.
func decodeEntry(key, framed []byte, entry *raft.Log) error {
	b, err := unframe(key, framed)
	if err != nil {
		return err
	}
	if len(key) != 8 || len(b) < 2 {
		return fmt.Errorf("%w: entry %x", state.ErrDamaged, key)
	}
	if b[0] != logFormat {
		return fmt.Errorf("entry %x of format %d, this build knows %d: %w", key, b[0], logFormat, state.ErrFormat)
	}
	*entry = raft.Log{Index: binary.BigEndian.Uint64(key), Type: raft.LogType(b[1])}
	b = b[2:]
	term, n := binary.Uvarint(b)
	at, m := binary.Varint(b[max(n, 0):])
	size, o := binary.Uvarint(b[max(n, 0)+max(m, 0):])
	if n <= 0 || m <= 0 || o <= 0 || size > uint64(len(b)-n-m-o) {
		return fmt.Errorf("%w: entry %d", state.ErrDamaged, entry.Index)
	}
	b = b[n+m+o:]
	entry.Term = term
	if at != 0 {
		entry.AppendedAt = time.Unix(0, at)
	}
	entry.Data = bytes.Clone(b[:size])
	if uint64(len(b)) > size {
		entry.Extensions = bytes.Clone(b[size:])
	}
	return nil
}

// FirstIndex is the index of the oldest entry; 0 when there is none.
func (l *raftLog) FirstIndex() (uint64, error) {
	return l.edge((*bbolt.Cursor).First)
}

// LastIndex is the index of the newest entry; 0 when there is none.
func (l *raftLog) LastIndex() (uint64, error) {
	return l.edge((*bbolt.Cursor).Last)
}

func (l *raftLog) edge(seek func(*bbolt.Cursor) (k, v []byte)) (index uint64, err error) {
	err = l.view(func(tx *bbolt.Tx) error {
		if k, _ := seek(tx.Bucket(logBucket).Cursor()); len(k) == 8 {
			index = binary.BigEndian.Uint64(k)
		}
		return nil
	})
	return index, err
}

// GetLog reads an entry. raft panics when a committed one cannot be read, so while it runs only raft.ErrLogNotFound is
// returned and the rest retried.
func (l *raftLog) GetLog(index uint64, entry *raft.Log) (err error) {
	read := func() error {
		err = l.view(func(tx *bbolt.Tx) error {
			framed := tx.Bucket(logBucket).Get(indexKey(index))
			if framed == nil {
				return raft.ErrLogNotFound
			}
			return decodeEntry(indexKey(index), framed, entry)
		})
		if errors.Is(err, raft.ErrLogNotFound) {
			return nil
		}
		return err
	}
	if !l.running.Load() {
		_ = read()
		return err
	}
	l.faults.insist(l.path+" (read)", l.closing, read)
	return err
}

// StoreLog is StoreLogs of one.
func (l *raftLog) StoreLog(entry *raft.Log) error { return l.StoreLogs([]*raft.Log{entry}) }

// StoreLogs has reached the disk when it returns nil. raft bears its errors: a leader steps down. It is told so after a
// pause, because a sole voter stands for election again at once, and again, as long as the disk is full.
func (l *raftLog) StoreLogs(entries []*raft.Log) error {
	err := l.faults.watch(l.path+" (log)", func() error { return l.append(entries) })
	l.faults.note(l.path+" (log)", err)
	if err != nil && l.running.Load() {
		pause(stepDownPause, l.closing)
	}
	return err
}

func (l *raftLog) append(entries []*raft.Log) error {
	return l.update(func(tx *bbolt.Tx) error {
		bucket := tx.Bucket(logBucket)
		bucket.FillPercent = 0.9 // entries come in order
		for _, entry := range entries {
			key := indexKey(entry.Index)
			if err := bucket.Put(key, frame(key, encodeEntry(entry))); err != nil {
				return err
			}
		}
		return nil
	})
}

// DeleteRange drops the entries from first to last, both included.
func (l *raftLog) DeleteRange(first, last uint64) error {
	return l.update(func(tx *bbolt.Tx) error {
		cursor := tx.Bucket(logBucket).Cursor()
		for k, _ := cursor.Seek(indexKey(first)); len(k) == 8 && binary.BigEndian.Uint64(k) <= last; k, _ = cursor.Seek(indexKey(first)) {
			if err := cursor.Delete(); err != nil {
				return err
			}
		}
		return nil
	})
}

// readNode is the node that a file belongs to, as its meta bucket has it; empty in a new file.
func (d *database) readNode() (id string, err error) {
	err = d.view(func(tx *bbolt.Tx) error {
		v, err := unframe(nodeKey, tx.Bucket(metaBucket).Get(nodeKey))
		id = string(v)
		return err
	})
	return id, err
}

func (d *database) writeNode(id string) error {
	return d.update(func(tx *bbolt.Tx) error {
		return tx.Bucket(metaBucket).Put(nodeKey, frame(nodeKey, []byte(id)))
	})
}
