//go:build linux

package netnstest_test

import (
	"flag"
	"slices"
	"testing"
	"time"
)

var nodesFlag = flag.Int("nodes", 3, "nodes of the clusters that are partitioned")

// cutFor is how long the net stays broken, beyond the first write.
const cutFor = 3 * time.Second

func TestCuts(t *testing.T) {
	t.Parallel()
	newCluster(t, *nodesFlag, 0).run(
		faultCase{"leader isolated", func(c *cluster, t *testing.T) {
			leader := c.leader(t)
			c.cut(t, func() { c.Isolate(leader.host) })
		}},
		faultCase{"follower isolated", func(c *cluster, t *testing.T) {
			follower := c.follower(t)
			c.cut(t, func() { c.Isolate(follower.host) })
		}},
		faultCase{"split, the leader with the few", func(c *cluster, t *testing.T) {
			few, many := c.sides(t, c.leader(t))
			c.cut(t, func() { c.Partition(few, many) })
		}},
		faultCase{"split, the leader with the many", func(c *cluster, t *testing.T) {
			few, many := c.sides(t, c.follower(t))
			c.cut(t, func() { c.Partition(few, many) })
		}},
		faultCase{"one way, from the leader to a follower", func(c *cluster, t *testing.T) {
			leader, follower := c.leader(t), c.follower(t)
			c.cut(t, func() { c.OneWay(leader.host, follower.host) })
		}},
		faultCase{"one way, from a follower to the leader", func(c *cluster, t *testing.T) {
			leader, follower := c.leader(t), c.follower(t)
			c.cut(t, func() { c.OneWay(follower.host, leader.host) })
		}},
		faultCase{"one way, from the leader to all", func(c *cluster, t *testing.T) {
			leader := c.leader(t)
			c.cut(t, func() {
				for _, host := range c.others(leader) {
					c.OneWay(leader.host, host)
				}
			})
		}},
	)
}

func TestBadLinks(t *testing.T) {
	t.Parallel()
	newCluster(t, 3, 0).run(
		faultCase{"flapping link of a follower", func(c *cluster, t *testing.T) { c.flap(t, c.follower(t)) }},
		faultCase{"flapping link of the leader", func(c *cluster, t *testing.T) { c.flap(t, c.leader(t)) }},
		faultCase{"30 % loss between the nodes", func(c *cluster, t *testing.T) {
			c.cut(t, func() { c.LossBetween(c.members(), c.members(), 30) })
		}},
		faultCase{"30 % loss at the leader", func(c *cluster, t *testing.T) {
			leader := c.leader(t)
			c.cut(t, func() { c.LossBetween([]int{leader.host}, c.others(leader), 30) })
		}},
		faultCase{"10 % loss everywhere, clients too", func(c *cluster, t *testing.T) {
			c.cut(t, func() {
				for _, host := range c.members() {
					c.Loss(host, 10)
				}
			})
		}},
		faultCase{"delay at the leader", func(c *cluster, t *testing.T) {
			leader := c.leader(t)
			c.cut(t, func() { c.Delay(leader.host, 100*time.Millisecond, 30*time.Millisecond) })
		}},
		faultCase{"delay everywhere", func(c *cluster, t *testing.T) {
			c.cut(t, func() {
				for _, host := range c.members() {
					c.Delay(host, 40*time.Millisecond, 10*time.Millisecond)
				}
			})
		}},
	)
}

// cut breaks the net for a while, in which writes go on somewhere.
func (c *cluster) cut(t *testing.T, breaks func()) {
	t.Helper()
	breaks()
	begin := time.Now()
	t.Logf("writes resumed after %v", c.writer.resumed(t, begin))
	c.during(t, cutFor)
}

// sides parts the nodes: a minority with this one, and the others, with the leader if that is another one. Clients reach both.
func (c *cluster) sides(t *testing.T, with *node) (few, many []int) {
	t.Helper()
	leader := c.leader(t).host
	others := c.others(with)
	slices.SortFunc(others, func(a, b int) int { return sideOf(a, leader) - sideOf(b, leader) })
	more := len(others)/2 - 1 // beside it: a minority of 3 is 1, of 5 is 2
	return append([]int{with.host}, others[:more]...), others[more:]
}

// sideOf sorts the leader last.
func sideOf(host, leader int) int {
	if host == leader {
		return 1
	}
	return 0
}

// flap pulls a node's cable again and again, for about as long as an election takes.
func (c *cluster) flap(t *testing.T, n *node) {
	t.Helper()
	for _, ms := range []time.Duration{300, 700, 1000, 1500, 800, 500} {
		c.Link(n.host, false)
		time.Sleep(ms * time.Millisecond) // the fault itself
		c.Link(n.host, true)
		time.Sleep((1800 - ms) * time.Millisecond / 2)
	}
	c.writer.resumed(t, time.Now())
}
