package lb

import (
	"cmp"
	"slices"
)

// Stats is a snapshot of the data plane's counters. Counters only grow; the words "now" mark those that do not.
type Stats struct {
	Connections int64 // clients, now
	Retries     int64 // tries after the first, without those in a stale connection's place
	Listeners   []ListenerStats
	Pools       []PoolStats // of the served table
}

// ListenerStats are the counters of one listener.
type ListenerStats struct {
	Name        string
	Connections int64    // now
	Accepted    int64    // connections
	Requests    [6]int64 // by class of the status sent; 0: no answer was
	Ended       []int64  // exchanges, and connections that came to none, by Reason
}

// Stats reads all counters. The counters themselves are read without a lock, so they may be an instant apart.
func (s *Server) Stats() Stats {
	stats := Stats{Connections: s.connections.Load(), Retries: s.retries.Load()}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.listeners {
		stats.Listeners = append(stats.Listeners, l.stats())
	}
	slices.SortFunc(stats.Listeners, func(a, b ListenerStats) int { return cmp.Compare(a.Name, b.Name) })
	for _, p := range s.table.Load().pools {
		stats.Pools = append(stats.Pools, p.stats())
	}
	return stats
}

func (l *listener) stats() ListenerStats {
	s := ListenerStats{
		Name: l.name, Connections: l.connections.Load(), Accepted: l.accepted.Load(), Ended: make([]int64, reasonCount),
	}
	for i := range l.requests {
		s.Requests[i] = l.requests[i].Load()
	}
	for i := range l.ended {
		s.Ended[i] = l.ended[i].Load()
	}
	return s
}
