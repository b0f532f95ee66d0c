package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Lengths of time, as people write and read them.

const day = 24 * time.Hour

// parseSpan reads a length of time above zero: Go's way, or whole days as "30d".
func parseSpan(text string) (time.Duration, bool) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 31)
		return time.Duration(n) * day, err == nil && n > 0 && n <= uint64(math.MaxInt64/day)
	}
	d, err := time.ParseDuration(text)
	return d, err == nil && d > 0
}

// ago is how long ago something was, in its largest unit; a clock that is ahead of this one's makes it now.
func ago(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Minute:
		return fmt.Sprintf("%ds ago", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm ago", d/time.Minute)
	case d < 2*day:
		return fmt.Sprintf("%dh ago", d/time.Hour)
	}
	return fmt.Sprintf("%dd ago", d/day)
}
