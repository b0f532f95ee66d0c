//go:build linux

package netnstest_test

import (
	"flag"
	"testing"
	"time"
)

var (
	killsFlag    = flag.Int("kills", 4, "how many leaders are killed to see how soon writes resume")
	isolatesFlag = flag.Int("isolates", 3, "how many leaders are isolated for that")
)

const (
	// killResumeMax is the median from a leader's death to a write, isolateResumeMax that from its isolation.
	killResumeMax    = 2 * time.Second
	isolateResumeMax = 3 * time.Second
)

// TestWritesResume measures how soon somebody can write again once the leader is gone, at the nodes that are left.
func TestWritesResume(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, 0)
	c.resume(t, "killed", *killsFlag, killResumeMax, func(leader *node) (back func()) {
		leader.kill()
		return func() { leader.start(t, "run") }
	})
	c.resume(t, "isolated", *isolatesFlag, isolateResumeMax, func(leader *node) (back func()) {
		c.Isolate(leader.host)
		return c.Heal
	})
	c.finish(t)
}

// resume takes the leader away so many times, and tells how long writes took to resume.
func (c *cluster) resume(t *testing.T, what string, times int, limit time.Duration, away func(leader *node) (back func())) {
	t.Helper()
	var took []time.Duration
	for range times {
		leader := c.leader(t)
		c.writer.only(c.others(leader)...)
		c.writer.resumed(t, time.Now()) // no attempt by the leader is under way any more
		back := away(leader)
		begin := time.Now()
		took = append(took, c.writer.resumed(t, begin))
		back()
		c.settle(t)
	}
	if times == 0 {
		return
	}
	t.Logf("leader %s %d times: writes resume after %v at the median, %v at the 99th percentile, %v at most",
		what, times, median(took).Round(time.Millisecond), quantile(took, 0.99).Round(time.Millisecond), quantile(took, 1).Round(time.Millisecond))
	if median(took) > limit {
		t.Errorf("the median is %v, want at most %v: %v", median(took), limit, took)
	}
}
