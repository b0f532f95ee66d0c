//go:build lbdfault

package main

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"time"

	"lbd/cluster/state"
)

// A test build panics in compile for a resource whose name begins with "panic-", and hangs for one that begins with "hang-", as long as
// the file that LBD_FAULT names is there. It kills itself in an upgrade at the step that LBD_FAULT_UPGRADE names, or ends there with an error
// where "fail:" is before the name.
func init() {
	upgradeFault = func(step string) error {
		switch os.Getenv("LBD_FAULT_UPGRADE") {
		case step:
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		case "fail:" + step:
			return errors.New("fault injected")
		}
		return nil
	}
	faulty := func() bool {
		_, err := os.Stat(os.Getenv("LBD_FAULT"))
		return err == nil
	}
	compileFault = func(k state.Key) {
		if strings.HasPrefix(k.Name, "panic-") && faulty() {
			panic("fault injected")
		}
		for strings.HasPrefix(k.Name, "hang-") && faulty() {
			time.Sleep(10 * time.Millisecond)
		}
	}
}
