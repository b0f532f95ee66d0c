package main

import (
	"testing"
	"time"
)

func TestStaleText(t *testing.T) {
	for _, c := range []struct {
		age  time.Duration
		ever bool
		up   time.Duration
		want string
		ms   int64
	}{
		{0, true, time.Hour, "", 0},
		{time.Minute, true, time.Hour, "", 60_000},
		{72300 * time.Millisecond, true, time.Hour, "stale: no contact with a leader for 1m12s; tokens and client certificates are refused meanwhile, the control socket is taken", 72_300},
		{0, false, time.Minute, "", -1},
		{0, false, 61 * time.Second, "stale: no contact with a leader since the start, 1m1s ago; tokens and client certificates are refused meanwhile, the control socket is taken", -1},
	} {
		if got := staleText(c.age, c.ever, c.up); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
		if got := staleMs(c.age, c.ever); got != c.ms {
			t.Errorf("%+v: %d ms", c, got)
		}
	}
	if got := noLeaderText(5); got != "no leader, most likely as no quorum (3 of 5 voters) is in contact with this node: traffic is served, changes are refused" {
		t.Error(got)
	}
}
