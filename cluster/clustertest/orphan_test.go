package clustertest

import (
	"testing"
	"time"

	"lbd/cluster"
)

// A leader whose process ends is followed long before its followers would have missed it.
func TestLeaderProcessEnds(t *testing.T) {
	patient := cluster.Timing{Election: 20 * time.Second, Lease: 500 * time.Millisecond, Keeper: 200 * time.Millisecond, Live: 2 * time.Second}
	c := New(t, 3, Options{Timing: patient})
	for range 2 {
		c.Await("every node knows all voters, and the leader that they are live", func() bool {
			for _, h := range c.Hosts {
				for _, m := range h.Node.Members() {
					if !m.Voter || !m.Live && h.Node.Role() == "leader" {
						return false
					}
				}
			}
			return true
		})
		leader := c.Leader()
		leader.Crash()
		began := time.Now()
		next := c.Leader()
		if took := time.Since(began); took >= 10*time.Second {
			t.Fatalf("%s follows %s after %s", next.Name, leader.Name, took)
		}
		leader.Start()
	}
}
