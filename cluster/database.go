package cluster

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"lbd/cluster/state"
)

// database is a bbolt file whose faults are errors. Its pages are verified before it is opened; should bbolt panic all the
// same, or the file shrink under its memory map, that stays within the call that met it. A database that panicked
// may hold its locks for ever, so it is not asked again, not even to close: the process's end does that.
type database struct {
	path   string
	swap   sync.RWMutex // held while bolt is in use; compact replaces it
	bolt   *bbolt.DB
	file   *os.File // bolt's; to be looked at only
	broken atomic.Pointer[error]
	disk   func(path string) error // Config.Disk; nil: the real one
}

// openDatabase opens or makes a file. Its errors are *OpenError.
func openDatabase(path string, buckets ...[]byte) (*database, error) {
	d := &database{path: path}
	err := removeCut(path)
	if err == nil {
		err = verifyPages(path)
	}
	if err == nil {
		err = d.open()
	}
	if err == nil {
		err = d.makeBuckets(buckets)
	}
	if err != nil {
		d.close()
		return nil, openError(path, err)
	}
	return d, nil
}

func (d *database) open() error {
	return d.contain(func() (err error) {
		d.bolt, err = bbolt.Open(d.path, 0o600, d.boltOptions())
		return err
	})
}

// boltOptions are those of the database itself: it knows its file.
func (d *database) boltOptions() *bbolt.Options {
	options := boltOptions()
	options.OpenFile = func(path string, flag int, mode os.FileMode) (*os.File, error) {
		file, err := os.OpenFile(path, flag, mode)
		d.file = file
		return file, err
	}
	return options
}

func boltOptions() *bbolt.Options {
	return &bbolt.Options{Timeout: lockWait, FreelistType: bbolt.FreelistMapType}
}

// makeBuckets writes only where a bucket is missing: a full disk is no reason not to open.
func (d *database) makeBuckets(buckets [][]byte) error {
	missing := false
	err := d.view(func(tx *bbolt.Tx) error {
		for _, name := range buckets {
			missing = missing || tx.Bucket(name) == nil
		}
		return nil
	})
	if err != nil || !missing {
		return err
	}
	return d.update(func(tx *bbolt.Tx) error {
		for _, name := range buckets {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		return nil
	})
}

func openError(path string, err error) *OpenError {
	var open *OpenError
	var system *fs.PathError
	var number syscall.Errno
	switch {
	case errors.As(err, &open):
		return open
	case errors.Is(err, bolterrors.ErrTimeout):
		return &OpenError{path, errLocked, remedyLocked}
	case errors.Is(err, bolterrors.ErrVersionMismatch), errors.Is(err, state.ErrFormat):
		return &OpenError{path, err, remedyVersion}
	case errors.As(err, &system), errors.As(err, &number):
		return &OpenError{path, err, remedyAccess}
	default: // what bbolt says of a file that it cannot make sense of
		return &OpenError{path, err, remedyDamaged}
	}
}

func (d *database) view(fn func(*bbolt.Tx) error) error {
	d.swap.RLock()
	defer d.swap.RUnlock()
	return d.contain(func() error { return d.bolt.View(fn) })
}

// update has reached the disk when it returns nil. After an error it may have, too.
func (d *database) update(fn func(*bbolt.Tx) error) error {
	d.swap.RLock()
	defer d.swap.RUnlock()
	return d.contain(func() error {
		err := d.bolt.Update(func(tx *bbolt.Tx) error {
			if d.disk != nil {
				if err := d.disk(d.path); err != nil {
					return err
				}
			}
			if err := whole(d.path, d.file, tx.Size()); err != nil {
				return err
			}
			return fn(tx)
		})
		if err != nil {
			return err
		}
		return whole(d.path, d.file, 0)
	})
}

var (
	errGone = errors.New("the file was removed or replaced while lbd runs: put it back, or restart lbd on a copy of the data directory")
	errCut  = errors.New("the file was cut off while lbd runs: restart lbd on a copy of the data directory")
)

// whole refuses to take for stored what is in a file that nobody will find again, or of which a part is missing.
func whole(path string, file *os.File, bytesMin int64) error {
	held, err := file.Stat()
	if err != nil {
		return err
	}
	named, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && !os.SameFile(held, named):
		return errGone
	case err == nil && held.Size() < bytesMin:
		return errCut
	}
	return err
}

func (d *database) close() error {
	if d.bolt == nil || d.broken.Load() != nil {
		return nil
	}
	return d.contain(d.bolt.Close)
}

// contain turns a panic or a memory fault of fn into an error, this time and from then on.
func (d *database) contain(fn func() error) error {
	if broken := d.broken.Load(); broken != nil {
		return *broken
	}
	err := contain(fn)
	if errors.Is(err, errPanicked) {
		d.broken.Store(&err)
	}
	return err
}

var errPanicked = fmt.Errorf("%w: its reader panicked", state.ErrDamaged)

// contain turns a panic or a memory fault of fn into an error.
func contain(fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%w: %v", errPanicked, v)
		}
	}()
	return fn()
}

// Values carry a checksum (CRC-32C, big endian, in front) over key and value, so that neither a flipped bit nor a value
// under another's key passes for what was written.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(key, value []byte) uint32 {
	return crc32.Update(crc32.Update(0, castagnoli, key), castagnoli, value)
}

func frame(key, value []byte) []byte {
	framed := make([]byte, 4, 4+len(value))
	binary.BigEndian.PutUint32(framed, checksum(key, value))
	return append(framed, value...)
}

// unframe is the value within what was stored, which it shares. A value that is not there is nil.
func unframe(key, framed []byte) ([]byte, error) {
	if framed == nil {
		return nil, nil
	}
	if len(framed) < 4 || binary.BigEndian.Uint32(framed) != checksum(key, framed[4:]) {
		return nil, fmt.Errorf("%w %q: checksum differs", state.ErrDamaged, key)
	}
	return framed[4:], nil
}
