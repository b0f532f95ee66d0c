package journal

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	lbdv1 "lbd/proto/lbd/v1"
)

// A file of the chain is lines. The first is "lbd-audit 1 <digest>", where the digest is that of the last line of the file before,
// or zeros. Each further one is "<digest> <entry as JSON>", where the digest is SHA-256, in hex, of the digest before and the
// entry: whoever changes a line has to write all that follow anew, in both files.
const (
	magic      = "lbd-audit 1 "
	oldSuffix  = ".1"
	evidence   = ".broken"
	digestSize = 2 * sha256.Size
)

var zeros = string(bytes.Repeat([]byte("0"), digestSize))

// chain is the file that entries go to, and the one before it.
type chain struct {
	path     string
	bytesMax int64

	faults []error               // found when it was opened
	failed atomic.Pointer[error] // of the last attempt to write; read without waiting for the disk

	mu     sync.Mutex
	file   *os.File // nil where it could not be opened, or is closed
	size   int64
	digest string
}

// openChain verifies both files and goes on with the newer one. What does not hold is put aside as PATH.broken.
func openChain(path string, bytesMax int64) (*chain, error) {
	c := &chain{path: path, bytesMax: bytesMax, digest: zeros}
	if before, err := verify(path+oldSuffix, ""); err == nil && before.size > 0 {
		c.digest = before.digest
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.faults = append(c.faults, fmt.Errorf("%s: %w", path+oldSuffix, err))
	}
	expected := c.digest
	if len(c.faults) > 0 || expected == zeros {
		expected = "" // nothing to compare with
	}
	now, err := verify(path, expected)
	switch {
	case err == nil && now.size == 0: // begun and no more
	case err == nil:
		c.digest, c.size = now.digest, now.size
	case errors.Is(err, fs.ErrNotExist):
	default:
		c.faults = append(c.faults, fmt.Errorf("%s: %w: it is kept as %s", path, err, path+evidence))
		if err := os.Rename(path, path+evidence); err != nil {
			return nil, err
		}
	}
	return c, c.open()
}

// open opens the file, without what a crash left of its last line, or begins it.
func (c *chain) open() error {
	f, err := os.OpenFile(c.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	if err := f.Truncate(c.size); err != nil {
		return errors.Join(err, f.Close())
	}
	c.file = f
	return nil
}

// verified is what a file holds as it should be.
type verified struct {
	digest string
	size   int64 // of whole lines
}

// verify walks a file's chain. before, if not empty, is the digest that it has to begin with.
func verify(path, before string) (verified, error) {
	v := verified{digest: before}
	err := walk(path, func(line int, digest, entry string, size int64) error {
		switch {
		case line == 1 && before != "" && digest != before:
			return fmt.Errorf("line 1: does not follow the file before")
		case line == 1:
			v.digest = digest
		case digest != next(v.digest, entry):
			return fmt.Errorf("line %d: its digest is not that of what it says and of the line before", line)
		default:
			v.digest = digest
		}
		v.size += size
		return nil
	})
	return v, err
}

// next is the digest of a line.
func next(before, entry string) string {
	sum := sha256.Sum256([]byte(before + entry))
	return hex.EncodeToString(sum[:])
}

// walk reads a file's whole lines; the first has no entry. A last line without its end was cut off by a crash: it is left out.
func walk(path string, visit func(line int, digest, entry string, size int64) error) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	in := bufio.NewReaderSize(f, lineBytesMax)
	for n := 1; ; n++ {
		line, err := in.ReadSlice('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
		digest, entry, ok := bytes.Cut(line[:len(line)-1], []byte(" "))
		if n == 1 {
			digest, ok = bytes.CutPrefix(line[:len(line)-1], []byte(magic))
			entry = nil
		}
		if !ok || len(digest) != digestSize {
			return fmt.Errorf("line %d: is none of this log", n)
		}
		if err := visit(n, string(digest), string(entry), int64(len(line))); err != nil {
			return err
		}
	}
}

// append writes entries, and says how many are in the file. Where it fails the file is cut back to what it held before.
func (c *chain) append(entries []*lbdv1.ListAuditResponse) (written int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer func() {
		failed := &err
		if err == nil {
			failed = nil
		}
		c.failed.Store(failed)
	}()
	for _, entry := range entries {
		text, err := protojson.MarshalOptions{}.Marshal(entry)
		if err != nil {
			return written, err
		}
		if err := c.appendLocked(string(text)); err != nil {
			return written, err
		}
		written++
	}
	if written > 0 {
		return written, c.file.Sync()
	}
	return 0, nil
}

func (c *chain) appendLocked(entry string) error {
	if c.file == nil { // the time before it failed half-way
		if err := c.open(); err != nil {
			return err
		}
	}
	if c.size >= c.bytesMax {
		if err := c.rotateLocked(); err != nil {
			return err
		}
	}
	head := ""
	if c.size == 0 {
		head = magic + c.digest + "\n"
	}
	digest := next(c.digest, entry)
	line := head + digest + " " + entry + "\n"
	if _, err := c.file.WriteString(line); err != nil {
		if cut := c.file.Truncate(c.size); cut != nil { // half a line stays: it is cut off when the file is opened again
			err = errors.Join(err, cut, c.file.Close())
			c.file = nil
		}
		return err
	}
	c.size += int64(len(line))
	c.digest = digest
	return nil
}

// rotateLocked makes the file the one before, and begins a new one.
func (c *chain) rotateLocked() error {
	if err := os.Rename(c.path, c.path+oldSuffix); err != nil {
		return err
	}
	_ = c.file.Close()
	c.file, c.size = nil, 0
	return c.open()
}

// read reads the entries of both files that are later than a time. What cannot be read is left out.
func (c *chain) read(since time.Time) ([]*lbdv1.ListAuditResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []*lbdv1.ListAuditResponse
	var errs []error
	for _, path := range []string{c.path + oldSuffix, c.path} {
		err := walk(path, func(line int, _, text string, _ int64) error {
			entry := new(lbdv1.ListAuditResponse)
			if line > 1 && (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal([]byte(text), entry) == nil && entry.GetTime().AsTime().After(since) {
				all = append(all, entry)
			}
			return nil
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("%s: %w", path, err))
		}
	}
	return all, errors.Join(errs...)
}

func (c *chain) problems() []string {
	var out []string
	for _, fault := range c.faults {
		out = append(out, "the log of refusals was changed by somebody else: "+fault.Error())
	}
	if failed := c.failed.Load(); failed != nil {
		out = append(out, "the log of refusals cannot be written: "+(*failed).Error())
	}
	return out
}

func (c *chain) close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.file == nil {
		return nil
	}
	err := c.file.Close()
	c.file = nil
	return err
}
