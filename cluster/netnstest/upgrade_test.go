//go:build linux

package netnstest_test

import (
	"fmt"
	"strings"
	"testing"
)

// TestRollingUpgrade goes from one build to the next, half back, and on. Each node's new process takes the sockets of the old one, so
// no client may notice anything at any time.
func TestRollingUpgrade(t *testing.T) {
	t.Parallel()
	newCluster(t, 3, 0).run(
		faultCase{"two of three go to the next build", func(c *cluster, t *testing.T) {
			c.upgrade(t, 1, "lbd-next")
			c.upgrade(t, 2, "lbd-next")
			c.gate(t, 1)
		}},
		faultCase{"and back", func(c *cluster, t *testing.T) {
			c.upgrade(t, 1, "lbd")
			c.upgrade(t, 2, "lbd")
			c.gate(t, 1)
		}},
		faultCase{"all go to the next build", func(c *cluster, t *testing.T) {
			for _, host := range c.members() {
				c.upgrade(t, host, "lbd-next")
			}
			c.gate(t, 2)
		}},
		faultCase{"no way back", func(c *cluster, t *testing.T) {
			n := c.follower(t)
			n.kill()
			n.binary = "lbd"
			n.begin("run")
			if err := n.proc.Wait(patience); err == nil || !strings.Contains(n.proc.Log(), "gate") {
				t.Errorf("the older build ended with %v\n%s", err, n.proc.Tail(10))
			}
			n.binary = "lbd-next"
			n.start(t, "run")
		}},
	)
}

// upgrade starts another build on a node's data directory, beside the one that runs.
func (c *cluster) upgrade(t *testing.T, host int, binary string) {
	t.Helper()
	n := c.node(host)
	old := n.proc
	n.binary = binary
	n.start(t, "run")
	if err := old.Wait(patience); err != nil {
		t.Errorf("%s: the process before %s: %v\n%s", n.name, binary, err, old.Tail(20))
	}
	c.healthy(t, len(c.members()))
}

// gate waits until all nodes know what may be written.
func (c *cluster) gate(t *testing.T, want int32) {
	t.Helper()
	eventually(t, fmt.Sprintf("the gate is %d", want), func() (bool, string) {
		for _, host := range c.members() {
			if s, err := c.node(host).clusterStatus(); err != nil || s.GetGate() != want {
				return false, fmt.Sprintf("n%d: %d %v", host, s.GetGate(), err)
			}
		}
		return true, ""
	})
}
