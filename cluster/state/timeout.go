package state

import (
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	lbdv1 "lbd/proto/lbd/v1"
)

// checkWait checks a length of time, if one is given.
func (c *checker) checkWait(path string, d *durationpb.Duration) {
	c.checkSpan(path, d, timeoutMin, timeoutMax)
}

// checkSpan is checkWait with a range of its own.
func (c *checker) checkSpan(path string, d *durationpb.Duration, shortest, longest time.Duration) {
	if d == nil {
		return
	}
	if v := duration(d); v < shortest || v > longest {
		c.errorf(path, "must be %s to %s", spell(shortest), spell(longest))
	}
}

// spell writes a length of time as documents do: 10ms, 5s, 1h.
func spell(d time.Duration) string {
	text := d.String()
	for _, nothing := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, nothing) {
			text = text[:len(text)-2]
		}
	}
	return text
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
