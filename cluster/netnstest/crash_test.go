//go:build linux

package netnstest_test

import (
	"sync"
	"syscall"
	"testing"
	"time"
)

// frozenFor is how long a leader is stopped: many elections long.
const frozenFor = 10 * time.Second

func TestCrashes(t *testing.T) {
	t.Parallel()
	newCluster(t, 3, 0).run(
		faultCase{"leader killed", func(c *cluster, t *testing.T) { c.killAndRestart(t, c.leader(t)) }},
		faultCase{"follower killed", func(c *cluster, t *testing.T) { c.killAndRestart(t, c.follower(t)) }},
		faultCase{"all killed", func(c *cluster, t *testing.T) {
			for _, host := range c.members() {
				c.node(host).kill()
			}
			c.startAll(t)
		}},
		faultCase{"all stopped and started", func(c *cluster, t *testing.T) {
			for _, host := range c.members() {
				c.node(host).stop(t)
			}
			c.startAll(t)
		}},
		faultCase{"leader frozen", func(c *cluster, t *testing.T) {
			thaw := c.leader(t).freeze()
			begin := time.Now()
			t.Logf("writes resumed after %v", c.writer.resumed(t, begin))
			c.during(t, time.Until(begin.Add(frozenFor)))
			thaw()
		}},
	)
}

// killAndRestart kills a node and starts it once the others have written.
func (c *cluster) killAndRestart(t *testing.T, n *node) {
	t.Helper()
	n.kill()
	killed := time.Now()
	t.Logf("writes resumed after %v", c.writer.resumed(t, killed))
	c.during(t, time.Second)
	n.start(t, "run")
}

// startAll starts all nodes at the same time and waits for a write.
func (c *cluster) startAll(t *testing.T) {
	t.Helper()
	begin := time.Now()
	var starts sync.WaitGroup
	for _, host := range c.members() {
		starts.Go(func() {
			if err := c.node(host).startOrError("run"); err != nil {
				t.Error(err)
			}
		})
	}
	starts.Wait()
	t.Logf("all serve after %v, writes resumed after %v", time.Since(begin).Round(time.Millisecond), c.writer.resumed(t, begin))
}

// stop ends the node as an operator does: what it has accepted is answered, and it ends well.
func (n *node) stop(t *testing.T) {
	t.Helper()
	n.c.load.leaves(n.host)
	n.proc.Signal(syscall.SIGTERM)
	if err := n.proc.Wait(patience); err != nil {
		t.Errorf("%s: SIGTERM: %v", n.name, err)
	}
	n.excuse = n.c.Excuse(n.host)
	n.c.load.returns(n.host)
}

// during lets a fault last, and looks that the nodes that are in reach answer all the while.
func (c *cluster) during(t *testing.T, d time.Duration) {
	t.Helper()
	begin, before := time.Now(), map[int]int{}
	for _, host := range c.members() {
		before[host] = c.load.answered(host)
	}
	time.Sleep(d) // the fault itself
	for host, answered := range before {
		if got := c.load.answered(host) - answered; got == 0 && d >= time.Second && !c.Excused(host, begin, time.Now()) {
			t.Errorf("n%d is in reach and answered nothing in %v", host, d)
		}
	}
}
