package loop

import (
	"iter"
	"runtime"
)

// A coroutine runs one task after another. Switching to it and back costs some
// 65 ns and no allocation.
type coroutine struct {
	next  func() (struct{}, bool)
	stop  func()
	yield func(struct{}) bool
	task  *pollTask
	dead  bool // the task called runtime.Goexit; the coroutine ends when resumed
}

// newCoroutine makes one. Stacks lie at multiples of their size, so all that wait at the same call would have what they need next
// in the same few places of the processor's caches: each has its tasks at another depth, in turn.
func newCoroutine(turn int) *coroutine {
	co := &coroutine{}
	co.next, co.stop = iter.Pull(func(yield func(struct{}) bool) {
		co.yield = yield
		co.main(turn % stackDepths)
	})
	return co
}

// main runs tasks, that many frames of its own deeper.
func (co *coroutine) main(depth int) {
	if depth > 0 {
		var frame [2 * cacheLine]byte
		co.main(depth - 1)
		runtime.KeepAlive(&frame)
		return
	}
	for {
		co.serve(co.task)
		if !co.yield(struct{}{}) {
			return
		}
	}
}

// serve runs a task and outlives its panics. A Goexit cannot be stopped, and
// iter.Pull would pass it on to whoever called next: the loop. So the dying
// coroutine yields once more from its last defer, and the loop has it resumed
// by a goroutine that may die.
func (co *coroutine) serve(t *pollTask) {
	returned := false
	defer func() {
		t.state = stateDone
		if returned {
			return
		}
		r := recover()
		t.loop.died(t.loop.engine.log, t.loop.index, r)
		if r == nil {
			co.dead = true
			co.yield(struct{}{})
		}
	}()
	t.call()
	returned = true
}
