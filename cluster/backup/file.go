// Package backup is the form of a backup: what a cluster is meant to be, in one file that can be taken to another.
//
// A file is
//
//	12 bytes  "lbd backup\n" and the format, 1
//	          what it says of itself: a BackupInfo behind its length (uvarint)
//	          the sealing keys: an age file behind its length (uvarint), empty where they are not in it
//	          resources and credentials: a zstd frame of SnapshotRecords, each behind its length (uvarint)
//	32 bytes  SHA-256 of all before it
//
// Private keys in it are sealed as they are in the cluster, and open only with the sealing keys. The checksum finds damage. It does
// not say who made the file: whoever can write it can make it say anything but a private key.
package backup

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"iter"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
	"google.golang.org/protobuf/proto"

	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

const (
	magic  = "lbd backup\n"
	format = 1

	// headBytesMax bounds what a file says of itself, and its sealing keys: a few kilobytes.
	headBytesMax = 256 << 10
	// recordBytesMax bounds one record: a resource has at most one megabyte, and a certificate its content beside.
	recordBytesMax = 4 << 20
	// windowBytesMax is what zstd may look back at most, which bounds the reader's memory.
	windowBytesMax = 8 << 20
)

// Errors of Read; match with errors.Is.
var (
	ErrNotBackup = errors.New("not a backup of lbd")
	ErrFormat    = errors.New("a backup of another format")
	ErrDamaged   = errors.New("the backup is damaged")
)

// Write writes a file. What info says of format and size is not looked at.
func Write(w io.Writer, info *lbdv1.BackupInfo, keys []byte, records iter.Seq[*raftv1.SnapshotRecord]) error {
	sum := sha256.New()
	out := io.MultiWriter(w, sum)
	if err := writeHead(out, info, keys); err != nil {
		return err
	}
	z, err := zstd.NewWriter(out, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(windowBytesMax))
	if err != nil {
		return err
	}
	for record := range records {
		if err := writeMessage(z, record); err != nil {
			return errors.Join(err, z.Close())
		}
	}
	if err := z.Close(); err != nil {
		return err
	}
	_, err = w.Write(sum.Sum(nil))
	return err
}

func writeHead(w io.Writer, info *lbdv1.BackupInfo, keys []byte) error {
	info = proto.CloneOf(info)
	info.Format, info.Bytes = format, 0
	if _, err := w.Write(append([]byte(magic), format)); err != nil {
		return err
	}
	if err := writeMessage(w, info); err != nil {
		return err
	}
	_, err := w.Write(append(binary.AppendUvarint(nil, uint64(len(keys))), keys...))
	return err
}

func writeMessage(w io.Writer, m proto.Message) error {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return err
	}
	_, err = w.Write(append(binary.AppendUvarint(nil, uint64(len(b))), b...))
	return err
}

// Read reads a file to its end and hands out its records as they come; visit may be nil. What was handed out counts only once
// Read has returned nil: the checksum is last. The info has the file's size; keys are those that Write was given.
func Read(r io.Reader, visit func(*raftv1.SnapshotRecord) error) (info *lbdv1.BackupInfo, keys []byte, err error) {
	body := &body{source: r, sum: sha256.New()}
	in := bufio.NewReader(body)
	if err := readMagic(in); err != nil {
		return nil, nil, body.cause(err)
	}
	info = new(lbdv1.BackupInfo)
	if err = readMessage(in, info, headBytesMax); err == nil {
		keys, err = readBytes(in, headBytesMax)
	}
	if err == nil {
		err = readRecords(in, visit)
	}
	if err == nil {
		err = body.verify()
	}
	if err != nil {
		return nil, nil, body.cause(err)
	}
	info.Format, info.Bytes = format, body.bytes
	return info, keys, nil
}

func readMagic(in *bufio.Reader) error {
	head := make([]byte, len(magic)+1)
	if n, err := io.ReadFull(in, head); err != nil && !bytes.HasPrefix([]byte(magic), head[:n]) || n == 0 {
		return ErrNotBackup
	} else if err != nil {
		return errCut
	}
	switch {
	case string(head[:len(magic)]) != magic:
		return ErrNotBackup
	case head[len(magic)] != format:
		return fmt.Errorf("%w: %d, this build knows %d", ErrFormat, head[len(magic)], format)
	}
	return nil
}

var errCut = fmt.Errorf("%w: it is cut off", ErrDamaged)

func readBytes(in *bufio.Reader, most uint64) ([]byte, error) {
	size, err := binary.ReadUvarint(in)
	if err != nil {
		return nil, errCut
	}
	if size > most {
		return nil, fmt.Errorf("%w: a part of %d bytes", ErrDamaged, size)
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(in, b); err != nil {
		return nil, errCut
	}
	return b, nil
}

func readMessage(in *bufio.Reader, m proto.Message, most uint64) error {
	b, err := readBytes(in, most)
	if err != nil {
		return err
	}
	if err := proto.Unmarshal(b, m); err != nil {
		return fmt.Errorf("%w: %v", ErrDamaged, err)
	}
	return nil
}

// readRecords reads the compressed rest.
func readRecords(in *bufio.Reader, visit func(*raftv1.SnapshotRecord) error) error {
	z, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(windowBytesMax), zstd.WithDecoderMaxMemory(1<<40))
	if err != nil {
		return err
	}
	defer z.Close()
	plain := bufio.NewReaderSize(z, 64<<10)
	for {
		switch _, err := plain.Peek(1); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("%w: %v", ErrDamaged, err)
		}
		record := new(raftv1.SnapshotRecord)
		if err := readMessage(plain, record, recordBytesMax); err != nil {
			return err
		}
		if visit != nil {
			if err := visit(record); err != nil {
				return err
			}
		}
	}
}

// body is a file without its last bytes, the checksum, which it holds back.
type body struct {
	source io.Reader
	sum    hash.Hash
	bytes  int64
	held   []byte
	ended  error // io.EOF, or why the source ended
}

func (b *body) Read(p []byte) (int, error) {
	for len(b.held) <= sha256.Size && b.ended == nil {
		chunk := make([]byte, 64<<10)
		var n int
		n, b.ended = b.source.Read(chunk)
		b.bytes += int64(n)
		b.held = append(b.held, chunk[:n]...)
	}
	if len(b.held) <= sha256.Size {
		return 0, b.ended
	}
	n := copy(p, b.held[:len(b.held)-sha256.Size])
	b.sum.Write(p[:n])
	b.held = b.held[n:]
	return n, nil
}

// verify compares the checksum once all has been read.
func (b *body) verify() error {
	switch {
	case !errors.Is(b.ended, io.EOF):
		return b.ended
	case len(b.held) < sha256.Size:
		return errCut
	case !bytes.Equal(b.held, b.sum.Sum(nil)):
		return fmt.Errorf("%w: its checksum differs", ErrDamaged)
	}
	return nil
}

// cause prefers why the source failed to what came of it.
func (b *body) cause(err error) error {
	if b.ended != nil && !errors.Is(b.ended, io.EOF) {
		return b.ended
	}
	return err
}

// FileName is what a backup is called unless somebody names it: after its cluster and its time, so that names sort as backups do.
func FileName(info *lbdv1.BackupInfo) string {
	return "lbd-" + info.GetClusterId() + "-" + info.GetCreateTime().AsTime().UTC().Format(timeForm) + suffix
}

// TimeOf is the time in a name that FileName made for this cluster.
func TimeOf(name, clusterID string) (time.Time, bool) {
	rest, ok := strings.CutPrefix(name, "lbd-"+clusterID+"-")
	if !ok {
		return time.Time{}, false
	}
	if rest, ok = strings.CutSuffix(rest, suffix); !ok {
		return time.Time{}, false
	}
	t, err := time.Parse(timeForm, rest)
	return t, err == nil
}

const (
	timeForm = "20060102T150405Z"
	suffix   = ".backup"
)
