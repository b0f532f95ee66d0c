package loop

import (
	"sync/atomic"
	"time"
)

// An instant is a moment in nanoseconds since the process started, on the
// monotonic clock. 0 stands for "never": no deadline.
type instant int64

var epoch = time.Now()

func now() instant { return instant(time.Since(epoch)) + 1 }

// at converts a deadline; the zero time is never, a moment before the process
// started is the earliest instant.
func at(t time.Time) instant {
	if t.IsZero() {
		return 0
	}
	return max(1, instant(t.Sub(epoch))+1)
}

// An anchor ties an instant to the wall clock, which may be set while the
// process runs. It is renewed every second by whoever asks, so that logs and
// Date headers follow; the monotonic part of the times made from it does not
// move, so deadlines do not either.
type anchor struct {
	at   instant
	wall time.Time
}

const anchorAge = instant(time.Second)

var anchored atomic.Pointer[anchor]

func init() { newAnchor() }

func newAnchor() *anchor {
	wall := time.Now()
	a := &anchor{at: instant(wall.Sub(epoch)) + 1, wall: wall}
	anchored.Store(a)
	return a
}

func (i instant) time() time.Time {
	if i == 0 {
		return time.Time{}
	}
	a := anchored.Load()
	if i-a.at > anchorAge {
		a = newAnchor()
	}
	return a.wall.Add(time.Duration(i - a.at))
}

// passed reports whether a deadline lies at or before the moment n.
func (i instant) passed(n instant) bool { return i != 0 && i <= n }
