//go:build !linux

package loop

import "testing"

const namesOwner = false

var kinds = []string{KindGoroutine}

// holdBack does nothing where there is no portable way.
func holdBack(uintptr) {}

// stealPatiently has nothing to do: the twin waits as long as it takes.
func stealPatiently(testing.TB, *Engine) {}
