package state

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	lbdv1 "lbd/proto/lbd/v1"
)

// checkLength checks a length of time, if one is given.
func (c *checker) checkLength(path string, d *durationpb.Duration) {
	if d == nil {
		return
	}
	if v := duration(d); v < timeoutMin || v > timeoutMax {
		c.errorf(path, "must be 10ms to 24h")
	}
}

// checkTimeout checks a length of time that may be switched off, if it is given.
func (c *checker) checkTimeout(path string, t *lbdv1.Timeout) {
	if t == nil || t.GetDisabled() {
		return
	}
	if v := duration(t.GetDuration()); v < timeoutMin || v > timeoutMax {
		c.errorf(path, "must be 10ms to 24h, or `disabled`")
	}
}

// checkRange checks a number, if one is given (not 0).
func (c *checker) checkRange(path string, n, lowest, highest int64) {
	if n != 0 && (n < lowest || n > highest) {
		c.errorf(path, "must be %d to %d, not %d", lowest, highest, n)
	}
}

// duration is -1 for what is none.
func duration(d *durationpb.Duration) time.Duration {
	if d.CheckValid() != nil {
		return -1
	}
	return d.AsDuration()
}
