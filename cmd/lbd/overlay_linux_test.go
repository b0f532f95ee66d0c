package main

import (
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	lbdv1 "lbd/proto/lbd/v1"
)

// TestOverlayStalledDisk: a disk that does not answer keeps nothing from being in force.
func TestOverlayStalledDisk(t *testing.T) {
	dir := t.TempDir()
	o := openOverlay(dir, slog.New(slog.DiscardHandler))
	pipe := filepath.Join(dir, overlayFile+".new") // its writer waits until somebody reads
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	said := make(chan struct{})
	go func() {
		defer close(said)
		o.Say(hereFor("10.0.0.1:80", lbdv1.BackendState_BACKEND_STATE_DRAIN))
	}()
	select {
	case <-o.wake():
	case <-time.After(10 * time.Second):
		t.Fatal("nobody is told before the disk answers")
	}
	if got := len(o.all()) + len(o.problems()); got != 2 {
		t.Errorf("%q, %q while the disk stalls", o.all(), o.problems())
	}
	select {
	case <-said:
		t.Error("the file is written although the disk stalls")
	default:
	}
	disk, err := os.Open(pipe)
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	if _, err := io.Copy(io.Discard, disk); err != nil {
		t.Fatal(err)
	}
	<-said
}
