//go:build lbdfault

package main

import (
	"os"
	"strings"
	"time"

	"lbd/cluster/state"
)

// A test build panics in compile for a resource whose name begins with "panic-", and hangs for one that begins with "hang-", as long as
// the file that LBD_FAULT names is there.
func init() {
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
