package cluster

import (
	"errors"
	"os"
	"syscall"
	"time"
)

var errLocked = errors.New("another process uses it")

// lockFile holds a lock on a file until the file is closed. The lock is the directory's: what is in it is read before
// bbolt takes its own. It waits lockWait for a process that ends just now.
func lockFile(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, openError(path, err)
	}
	for deadline := time.Now().Add(lockWait); ; time.Sleep(lockPoll) {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return file, nil
		}
		if time.Now().After(deadline) || !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			if errors.Is(err, syscall.EWOULDBLOCK) {
				err = &OpenError{path, errLocked, remedyLocked}
			}
			return nil, errors.Join(openError(path, err), file.Close())
		}
	}
}
