package cluster

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/hashicorp/raft"
	"github.com/klauspost/compress/zstd"
	"google.golang.org/protobuf/proto"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
)

// A snapshot is one zstd frame, whose checksum covers all of it: the index of the last entry in the state (8 bytes, big
// endian), then the header and each record, every one behind its length (uvarint).

// writeSnapshot writes a state that holds the log up to index.
func writeSnapshot(w io.Writer, st *state.State, index uint64) error {
	z, err := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(true))
	if err != nil {
		return err
	}
	if _, err := z.Write(indexKey(index)); err != nil {
		return errors.Join(err, z.Close())
	}
	err = writeMessage(z, st.Header())
	if err == nil {
		err = st.Encode(func(r *raftv1.SnapshotRecord) error { return writeMessage(z, r) })
	}
	return errors.Join(err, z.Close())
}

func writeMessage(w io.Writer, m proto.Message) error {
	b, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(make([]byte, binary.MaxVarintLen64), m)
	if err != nil {
		return err
	}
	// The length goes into the room in front of the message.
	size := binary.AppendUvarint(nil, uint64(len(b)-binary.MaxVarintLen64))
	b = b[binary.MaxVarintLen64-len(size):]
	copy(b, size)
	_, err = w.Write(b)
	return err
}

// readSnapshot reads what writeSnapshot wrote; anything else is an error.
func readSnapshot(r io.Reader) (*state.State, uint64, error) {
	z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(1<<30))
	if err != nil {
		return nil, 0, err
	}
	defer z.Close()
	in := bufio.NewReaderSize(z, 64<<10)
	index, err := readIndex(in)
	if err != nil {
		return nil, 0, err
	}
	header := new(raftv1.SnapshotHeader)
	if err := readMessage(in, header); err != nil {
		return nil, 0, fmt.Errorf("%w: header: %w", state.ErrDamaged, err)
	}
	st, err := state.Decode(header, func() (*raftv1.SnapshotRecord, error) {
		record := new(raftv1.SnapshotRecord)
		return record, readMessage(in, record)
	})
	return st, index, err
}

func readIndex(r io.Reader) (uint64, error) {
	var b [8]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return 0, fmt.Errorf("%w: %v", state.ErrDamaged, err)
	}
	return binary.BigEndian.Uint64(b[:]), nil
}

// readMessage answers io.EOF at the end, and only there.
func readMessage(r *bufio.Reader, m proto.Message) error {
	if _, err := r.Peek(1); err != nil {
		return err
	}
	size, err := binary.ReadUvarint(r)
	if err != nil {
		return fmt.Errorf("%w: %v", state.ErrDamaged, err)
	}
	if size > snapshotRecordBytesMax {
		return fmt.Errorf("%w: record of %d bytes", state.ErrDamaged, size)
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(r, b); err != nil {
		return fmt.Errorf("%w: cut off: %v", state.ErrDamaged, err)
	}
	return state.Parse(b, m)
}

// newestSnapshot reads the state of the newest snapshot if it holds more of the log than index; else nil.
func newestSnapshot(store raft.SnapshotStore, index uint64) (*state.State, uint64, error) {
	metas, err := store.List()
	if err != nil || len(metas) == 0 || metas[0].Index <= index {
		return nil, 0, err
	}
	_, r, err := store.Open(metas[0].ID)
	if err != nil {
		return nil, 0, err
	}
	defer r.Close()
	st, at, err := readSnapshot(r)
	if err != nil || at <= index {
		return nil, 0, err
	}
	return st, at, nil
}
