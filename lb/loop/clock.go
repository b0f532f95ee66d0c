package loop

import "time"

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

func (i instant) time() time.Time {
	if i == 0 {
		return time.Time{}
	}
	return epoch.Add(time.Duration(i - 1))
}

// passed reports whether a deadline lies at or before the moment n.
func (i instant) passed(n instant) bool { return i != 0 && i <= n }
