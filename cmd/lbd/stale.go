package main

import (
	"fmt"
	"time"

	lbdv1 "lbd/proto/lbd/v1"
)

// staleAfter is when a node without contact to a leader takes only who calls by its own socket, and says that it is stale.
const staleAfter = time.Minute

// staleMs is how long ago a node was sure to have what the cluster has, in milliseconds; -1: never since its start.
func staleMs(age time.Duration, ever bool) int64 {
	if !ever {
		return -1
	}
	return age.Milliseconds()
}

// contactProblems are those of a node that is out of contact: with a leader, and for long.
func (a *appliance) contactProblems() (out []string) {
	if a.node.Leader() == "" {
		out = append(out, noLeaderText(a.voters()))
	}
	age, ever := a.node.Fresh()
	if text := staleText(age, ever, time.Since(a.started)); text != "" {
		out = append(out, text)
	}
	return out
}

// staleText says that a node has been out of contact for too long; empty: it has not. up is how long it runs.
func staleText(age time.Duration, ever bool, up time.Duration) string {
	how := "no contact with a leader for " + age.Truncate(time.Second).String()
	if !ever {
		age, how = up, "no contact with a leader since the start, "+up.Truncate(time.Second).String()+" ago"
	}
	if age <= staleAfter {
		return ""
	}
	return "stale: " + how + "; tokens and client certificates are refused meanwhile, the control socket is taken"
}

// voters counts the nodes whose votes shall count.
func (a *appliance) voters() (n int) {
	for m := range a.node.State().Nodes() {
		if m.GetRole() == lbdv1.NodeRole_NODE_ROLE_VOTER {
			n++
		}
	}
	return n
}

// noLeaderText says that changes are refused, and the most likely cause.
func noLeaderText(voters int) string {
	if voters < 2 {
		return "no leader: traffic is served, changes are refused"
	}
	return fmt.Sprintf("no leader, most likely as no quorum (%d of %d voters) is in contact with this node: traffic is served, changes are refused", voters/2+1, voters)
}
