package lb

import (
	"container/list"
	"sync"
	"sync/atomic"

	"lbd/lb/loop"
)

// line is who waits for something, in order. Who makes it available tells the first, by its signal, and only after the thing is
// there to be seen; who waits looks only after lowering the signal; and who leaves the first place, served or not, has the next one
// told, for there may be more. So no wake-up is lost.
type line struct {
	length atomic.Int32

	mu      sync.Mutex // never held while a task waits
	signals list.List  // of *loop.Signal
}

// join takes a place at the end.
func (l *line) join(signal *loop.Signal) *list.Element {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.length.Add(1)
	return l.signals.PushBack(signal)
}

// first reports whether it is the turn of that place.
func (l *line) first(place *list.Element) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.signals.Front() == place
}

// leave gives up a place, and reports whether it was the first.
func (l *line) leave(place *list.Element) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	first := l.signals.Front() == place
	l.signals.Remove(place)
	l.length.Add(-1)
	return first
}

// tell tells the first.
func (l *line) tell() {
	if l.length.Load() == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if first := l.signals.Front(); first != nil {
		first.Value.(*loop.Signal).Raise()
	}
}

// tellAll tells all: whether they may wait here, or what for, has changed.
func (l *line) tellAll() {
	if l.length.Load() == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for e := l.signals.Front(); e != nil; e = e.Next() {
		e.Value.(*loop.Signal).Raise()
	}
}
