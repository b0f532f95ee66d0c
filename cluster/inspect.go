package cluster

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"go.etcd.io/bbolt"

	"lbd/cluster/state"
)

// Inspection is what Inspect finds in a data directory.
type Inspection struct {
	// Running is whether another process has the directory open; its databases were not read then.
	Running bool
	// State is what the directory holds; nil where that was not read, or where a first start has yet to make it.
	State *state.State
}

// Inspect reads a data directory as Open does, and changes nothing in it. A node that starts meanwhile waits for it as for another
// node. It does not look at snapshots: a state that Open would rebuild from one is shown as it was. Its errors are *OpenError.
func Inspect(dir string) (Inspection, error) {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return Inspection{}, nil
	}
	lock, err := tryLock(filepath.Join(dir, "lock"))
	if errors.Is(err, errLocked) {
		return Inspection{Running: true}, nil
	}
	if err != nil {
		return Inspection{}, err
	}
	defer lock.Close() // nil is no error here: a directory without a lock was never opened
	n := newNode(Config{Dir: dir})
	id, err := n.expect()
	if err != nil || id == "" {
		return Inspection{}, err
	}
	st, err := inspectState(n.path("state.db"))
	if err != nil {
		return Inspection{}, err
	}
	if err := inspectLog(n.path("raft.db")); err != nil {
		return Inspection{}, err
	}
	return Inspection{State: st}, nil
}

// tryLock holds a lock that lockFile would wait for. No file: no lock, nil.
func tryLock(path string) (*os.File, error) {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, openError(path, err)
	}
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = &OpenError{path, errLocked, remedyLocked}
	}
	if err != nil {
		return nil, errors.Join(openError(path, err), file.Close())
	}
	return file, nil
}

func inspectState(path string) (st *state.State, err error) {
	err = inspect(path, func(d *database) error {
		var err error
		st, _, err = (&durable{d}).read()
		return err
	})
	return st, err
}

func inspectLog(path string) error {
	return inspect(path, func(d *database) error { return d.view(verifyLog) })
}

// inspect opens a database as openDatabase does, for reading alone.
func inspect(path string, look func(*database) error) error {
	d := &database{path: path}
	err := verifyPages(path)
	if err == nil {
		err = d.contain(func() (err error) {
			options := boltOptions()
			options.ReadOnly = true
			d.bolt, err = bbolt.Open(path, 0o600, options)
			return err
		})
	}
	if err == nil {
		err = look(d)
	}
	if err != nil {
		_ = d.close()
		return openError(path, err)
	}
	return d.close()
}
