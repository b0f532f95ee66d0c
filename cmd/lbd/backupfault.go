package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// backupFaultWait is what a directory has to take a file.
const backupFaultWait = 2 * time.Second

// backupFaultTurn is held while a directory is tried: one that hangs holds one goroutine, however often it is asked for.
var backupFaultTurn = make(chan struct{}, 1)

// backupFault says why no backup can be written to a directory, or to where it would be made. A file is made there and removed.
func backupFault(directory string) error {
	errLate := fmt.Errorf("it does not answer within %s", backupFaultWait)
	late := time.NewTimer(backupFaultWait)
	defer late.Stop()
	select {
	case backupFaultTurn <- struct{}{}:
	case <-late.C:
		return errLate
	}
	found := make(chan error, 1)
	go func() {
		err := tryDirectory(directory)
		<-backupFaultTurn
		found <- err
	}()
	select {
	case err := <-found:
		return err
	case <-late.C:
		return errLate
	}
}

func tryDirectory(directory string) error {
	at := directory
	for {
		info, err := os.Stat(at)
		if err == nil && !info.IsDir() {
			return &fs.PathError{Op: "open", Path: at, Err: syscall.ENOTDIR}
		}
		if err == nil {
			break
		}
		above := filepath.Dir(at)
		if !errors.Is(err, fs.ErrNotExist) || above == at {
			return err
		}
		at = above
	}
	f, err := os.CreateTemp(at, ".lbd-try-*")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}
