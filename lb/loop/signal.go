package loop

import "sync/atomic"

// A Signal wakes its task from another loop, or from a goroutine. It is a level
// and no count: once raised it stays so until the task lowers it. Whoever lowers
// it before looking at what it stands for, and then waits, misses nothing.
type Signal struct {
	raised atomic.Bool
	wake   func()
}

// Raise ends the task's Wait for the signal, the current or the next one. Any
// goroutine may call it, also after the task has ended.
func (s *Signal) Raise() {
	if !s.raised.Swap(true) {
		s.wake()
	}
}

// Lower takes it back.
func (s *Signal) Lower() { s.raised.Store(false) }
