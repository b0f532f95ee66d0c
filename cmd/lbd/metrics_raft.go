package main

import "github.com/prometheus/client_golang/prometheus"

var (
	descRaftKnown     = desc("raft_leader_known", "Whether this node knows who leads.")
	descRaftElections = desc("raft_elections_total", "Leaders that this node has heard of since its start, one after the other.")
	descRaftNodes     = desc("raft_nodes", "Nodes of the cluster (members), and those that vote (voters); on the leader also those in contact with it (live, live_voters), itself included.", "kind")
)

// collectRaft is this node's part in the cluster.
func (c collector) collectRaft(out chan<- prometheus.Metric) {
	r := c.a.node.RaftStats()
	gauge(out, descRaftLeader, truth(r.Leads))
	gauge(out, descRaftKnown, truth(c.a.node.Leader() != ""))
	gauge(out, descRaftTerm, float64(r.Term))
	counter(out, descRaftElections, c.a.fellows.elections.Load())
	gauge(out, descRaftIndex, float64(r.Last), "last")
	gauge(out, descRaftIndex, float64(r.Committed), "committed")
	gauge(out, descRaftIndex, float64(r.Applied), "applied")
	count := map[string]int{}
	for _, m := range c.a.node.Members() {
		count["members"]++
		if m.Voter {
			count["voters"]++
		}
		if m.Live {
			count["live"]++
		}
		if m.Live && m.Voter {
			count["live_voters"]++
		}
	}
	gauge(out, descRaftNodes, float64(count["members"]), "members")
	gauge(out, descRaftNodes, float64(count["voters"]), "voters")
	if r.Leads {
		gauge(out, descRaftNodes, float64(count["live"]), "live")
		gauge(out, descRaftNodes, float64(count["live_voters"]), "live_voters")
	}
}

func truth(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
