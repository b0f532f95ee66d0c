package loop

import (
	"testing"
	"time"
)

// TestWallClockIsFollowed: the wall clock is looked at again after a second, and deadlines do not depend on it.
func TestWallClockIsFollowed(t *testing.T) {
	real := newAnchor()
	t.Cleanup(func() { newAnchor() })
	for _, i := range []instant{real.at, real.at + anchorAge/2, real.at + anchorAge*3600} {
		if got := at(i.time()); got != i {
			t.Errorf("a deadline moved: %v became %v", i, got)
		}
	}
	anchored.Store(&anchor{at: real.at, wall: real.wall.Add(-time.Hour)}) // as if it had been set since
	late := real.at + 2*anchorAge
	want := real.wall.Round(0).Add(2 * time.Second)
	if got := late.time().Round(0).Sub(want).Abs(); got > time.Second {
		t.Errorf("%v from the wall clock", got)
	}
}
