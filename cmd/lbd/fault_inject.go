//go:build lbdfault

package main

import (
	"os"
	"strings"

	"lbd/cluster/state"
)

// A test build panics in compile for a resource whose name begins with "panic-", as long as the file that LBD_FAULT names is there.
func init() {
	compileFault = func(k state.Key) {
		if _, err := os.Stat(os.Getenv("LBD_FAULT")); err == nil && strings.HasPrefix(k.Name, "panic-") {
			panic("fault injected")
		}
	}
}
