package cluster

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"lbd/cluster/state"
)

// termKey names the one value whose loss raft answers with a panic.
var termKey = []byte("CurrentTerm")

const (
	votesFormat = 1
	// slotBytes is a block of the usual file systems: a slot is written whole or, when the power fails, torn alone.
	slotBytes = 4096
)

// votes keeps raft's term and vote in a file of its own: two slots, both of which hold all of it. One is written after
// the other has reached the disk, so that one torn or damaged slot loses nothing. They are written in place: a disk
// that is full stops the log, not the election. It is raft's StableStore.
//
// A slot is the length of what follows (2 bytes, big endian), a checksum, the format, a number that grows with each
// write, and strings behind their length: the node's id, then keys and values.
type votes struct {
	path    string
	file    *os.File
	faults  *faults
	closing <-chan struct{}
	disk    func(path string) error // Config.Disk; nil: the real one
	// running: raft's own goroutines call now, and what they cannot bear is retried.
	running atomic.Bool

	mu       sync.Mutex
	node     string
	sequence uint64 // of the last attempt to write
	values   map[string][]byte
}

var _ raft.StableStore = (*votes)(nil)

// openVotes opens or makes the file; a new one has no node. Its errors are *OpenError.
func openVotes(path string, faults *faults, closing <-chan struct{}) (*votes, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, openError(path, err)
	}
	v := &votes{path: path, file: file, faults: faults, closing: closing, values: make(map[string][]byte)}
	if err := v.read(); err != nil {
		return nil, errors.Join(openError(path, err), file.Close())
	}
	return v, nil
}

// read takes the newer of the slots that are whole.
func (v *votes) read() error {
	b := make([]byte, 2*slotBytes)
	n, err := io.ReadFull(v.file, b)
	if n == 0 {
		return nil
	}
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	first, second := v.decode(b[:slotBytes]), v.decode(b[slotBytes:])
	if first != nil && second != nil {
		return fmt.Errorf("both of its blocks: %w", first)
	}
	return nil
}

// encode is a slot's content.
func (v *votes) encode(sequence uint64, values map[string][]byte) ([]byte, error) {
	b := binary.BigEndian.AppendUint64([]byte{votesFormat}, sequence)
	add := func(s []byte) { b = append(binary.AppendUvarint(b, uint64(len(s))), s...) }
	add([]byte(v.node))
	for _, key := range slices.Sorted(maps.Keys(values)) {
		add([]byte(key))
		add(values[key])
	}
	framed := frame(nil, b)
	if len(framed) > slotBytes-2 {
		return nil, fmt.Errorf("store vote: %d bytes do not fit", len(framed))
	}
	slot := append(binary.BigEndian.AppendUint16(nil, uint16(len(framed))), framed...)
	return append(slot, make([]byte, slotBytes-len(slot))...), nil
}

// decode takes a slot's content if it is newer than what is there.
func (v *votes) decode(slot []byte) error {
	size := int(binary.BigEndian.Uint16(slot))
	if size < 4 || size > slotBytes-2 {
		return fmt.Errorf("%w: vote", state.ErrDamaged)
	}
	b, err := unframe(nil, slot[2:2+size])
	if err != nil {
		return err
	}
	if len(b) < 9 || b[0] != votesFormat {
		return fmt.Errorf("vote of another format than %d: %w", votesFormat, state.ErrFormat)
	}
	sequence := binary.BigEndian.Uint64(b[1:])
	if sequence <= v.sequence {
		return nil
	}
	var texts [][]byte
	for b = b[9:]; len(b) > 0; {
		size, n := binary.Uvarint(b)
		if n <= 0 || size > uint64(len(b)-n) {
			return fmt.Errorf("%w: vote", state.ErrDamaged)
		}
		texts = append(texts, bytes.Clone(b[n:n+int(size)]))
		b = b[n+int(size):]
	}
	if len(texts)%2 != 1 {
		return fmt.Errorf("%w: vote", state.ErrDamaged)
	}
	v.sequence, v.node, v.values = sequence, string(texts[0]), make(map[string][]byte)
	for i := 1; i < len(texts); i += 2 {
		v.values[string(texts[i])] = texts[i+1]
	}
	return nil
}

// found gives a new file its node and its full size.
func (v *votes) found(node string) error {
	v.node = node
	return v.write(nil, nil)
}

// write puts a value into both slots. After an error it may be in one of them: a vote that was not cast, or a term
// that was not entered, which raft bears.
func (v *votes) write(key, value []byte) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	values := maps.Clone(v.values)
	if key != nil {
		values[string(key)] = bytes.Clone(value)
	}
	v.sequence++ // also after an error: two contents never share a number
	slot, err := v.encode(v.sequence, values)
	if err != nil {
		return err
	}
	if err := v.faults.watch(v.path, func() error { return v.writeSlots(slot) }); err != nil {
		return err
	}
	v.values = values
	return nil
}

// writeSlots writes the second only when the first has reached the disk.
func (v *votes) writeSlots(slot []byte) error {
	if v.disk != nil {
		if err := v.disk(v.path); err != nil {
			return err
		}
	}
	for i := range int64(2) {
		if _, err := v.file.WriteAt(slot, i*slotBytes); err != nil {
			return err
		}
		if err := v.file.Sync(); err != nil {
			return err
		}
	}
	return whole(v.path, v.file, 0)
}

// Set stores one of raft's values.
func (v *votes) Set(key, value []byte) error {
	return v.write(key, value)
}

// Get reads one of raft's values; nil when it was never set.
func (v *votes) Get(key []byte) ([]byte, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.values[string(key)], nil
}

// SetUint64 stores a number; one that is there already is not written again, so that a start writes nothing.
func (v *votes) SetUint64(key []byte, value uint64) error {
	if now, err := v.GetUint64(key); err == nil && now == value {
		return nil
	}
	set := func() error { return v.write(key, indexKey(value)) }
	if v.running.Load() && bytes.Equal(key, termKey) {
		v.faults.insist(v.path, v.closing, set)
		return nil
	}
	return set()
}

// GetUint64 reads a number; 0 when it was never set.
func (v *votes) GetUint64(key []byte) (uint64, error) {
	value, err := v.Get(key)
	if err != nil || value == nil {
		return 0, err
	}
	if len(value) != 8 {
		return 0, fmt.Errorf("%w %q: %d bytes", state.ErrDamaged, key, len(value))
	}
	return binary.BigEndian.Uint64(value), nil
}

func (v *votes) close() error { return v.file.Close() }
