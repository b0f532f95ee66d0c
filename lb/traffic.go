package lb

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// trafficShardsMax bounds how many loops count in places of their own: what it costs is memory for each route and backend.
const trafficShardsMax = 8

// traffic counts what one listener's requests did on one route. It belongs to the server by both names, so it outlives every
// change of the table that keeps them; an exchange reaches it through its compiled route. Nothing is allocated for a route
// or a backend before its first request.
type traffic struct {
	listener, route string
	pools           []*Pool                        // where it led when the table was set; the publisher's
	lines           atomic.Pointer[[]*poolLines]   // of each pool that has had a request; never written to
	latency         atomic.Pointer[[]latencyShard] // nil: no request yet
}

// poolLines are the lines of one of a route's pools, or of what came to none.
type poolLines struct {
	pool  string
	lines sync.Map // *Backend -> *trafficLine; read once for each request, without a lock
}

// trafficLine counts the requests whose last try went to one backend, or that came to none.
type trafficLine struct {
	pool, backend string
	shards        []lineShard
}

// lineShard is one loop's, or a few loops': a cache line.
type lineShard struct {
	requests [6]atomic.Int64 // by class of the status; 0: no answer
	_        [64 - 6*8]byte
}

// latencyShard is a part of a histogram: two cache lines.
type latencyShard struct {
	buckets [len(latencyBounds) + 1]atomic.Int64
	nanos   atomic.Int64 // the sum
}

// latencyBounds are the upper ends of the histogram's buckets: a backend in memory answers within the first, and what takes
// longer than the last runs into a time-out.
var latencyBounds = [...]time.Duration{
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond,
	50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond, time.Second,
	2500 * time.Millisecond, 5 * time.Second, 10 * time.Second, 30 * time.Second,
}

// count counts one exchange. pool and b are nil if it did not come so far.
func (tr *traffic) count(s *Server, loop, class int, pool *Pool, b *Backend, took time.Duration) {
	shard := loop % s.trafficShards
	tr.line(s, pool, b).shards[shard].requests[class].Add(1)
	latency := tr.latency.Load()
	if latency == nil {
		made := make([]latencyShard, s.trafficShards)
		tr.latency.CompareAndSwap(nil, &made)
		latency = tr.latency.Load()
	}
	l := &(*latency)[shard]
	bucket := 0
	for bucket < len(latencyBounds) && took > latencyBounds[bucket] {
		bucket++
	}
	l.buckets[bucket].Add(1)
	l.nanos.Add(int64(took))
}

func (tr *traffic) line(s *Server, pool *Pool, b *Backend) *trafficLine {
	of := tr.of(pool)
	line, ok := of.lines.Load(b)
	if !ok {
		made := &trafficLine{pool: of.pool, shards: make([]lineShard, s.trafficShards)}
		if b != nil {
			made.backend = b.name
		}
		line, _ = of.lines.LoadOrStore(b, made)
	}
	return line.(*trafficLine)
}

// of returns the lines of a pool, made with its first request.
func (tr *traffic) of(pool *Pool) *poolLines {
	name := ""
	if pool != nil {
		name = pool.name
	}
	for {
		before, all := tr.lines.Load(), tr.pooled()
		for _, l := range all {
			if l.pool == name {
				return l
			}
		}
		l := &poolLines{pool: name}
		next := append(slices.Clip(all), l)
		if tr.lines.CompareAndSwap(before, &next) {
			return l
		}
	}
}

// follow forgets the pools and backends that the route no longer leads to. Requests that are still with one of them may count it
// once more; the next change forgets that.
func (tr *traffic) follow(pools []*Pool) {
	if slices.Equal(tr.pools, pools) {
		return
	}
	before := tr.pools
	tr.pools = pools
	for {
		lines := tr.lines.Load()
		if lines == nil {
			return
		}
		var next []*poolLines
		for _, l := range *lines {
			now := poolNamed(pools, l.pool)
			if l.pool != "" && (now == nil || poolNamed(before, l.pool) == nil) {
				continue
			}
			if next = append(next, l); now != nil {
				l.follow(now)
			}
		}
		if tr.lines.CompareAndSwap(lines, &next) {
			return
		}
	}
}

func poolNamed(pools []*Pool, name string) *Pool {
	for _, p := range pools {
		if p.name == name {
			return p
		}
	}
	return nil
}

// follow forgets the backends that the pool no longer has.
func (l *poolLines) follow(pool *Pool) {
	kept := map[*Backend]bool{nil: true}
	for _, m := range pool.members {
		kept[m.backend] = true
	}
	l.lines.Range(func(b, _ any) bool {
		if !kept[b.(*Backend)] {
			l.lines.Delete(b)
		}
		return true
	})
}

// trafficKey names a traffic in the server's register.
type trafficKey struct{ listener, route string }

// adopt gives every route of a table its counters, before the table is served, and forgets those of routes that are gone.
// The caller holds mu.
func (s *Server) adopt(t *Table) {
	next := make(map[trafficKey]*traffic, len(t.routes))
	for i := range t.routes {
		r := &t.routes[i]
		key := trafficKey{r.listener, r.name}
		tr := next[key]
		if tr == nil {
			tr = s.traffic[key]
		}
		if tr == nil {
			tr = &traffic{listener: r.listener, route: r.name, pools: r.pools}
		}
		tr.follow(r.pools)
		next[key], r.traffic = tr, tr
	}
	s.traffic = next
}

// TrafficStats are the counters of one route on one listener. Route is empty for requests that no route took, or that could
// not be read.
type TrafficStats struct {
	Listener, Route string
	Lines           []TrafficLine
	Seconds         Histogram
}

// TrafficLine counts the requests that ended with one backend; Pool and Backend are empty for those that came to none.
type TrafficLine struct {
	Pool, Backend string
	Requests      [6]int64 // by class of the status sent; 0: no answer was
}

// Histogram of durations. Buckets[i] counts those of at most Bounds[i] that are above the bound before; the last has no bound.
type Histogram struct {
	Bounds  []time.Duration
	Buckets []int64
	Sum     time.Duration
}

// Traffic reads the counters of all routes that have had a request, in no order. Each listener's and route's pair comes once,
// and in it each backend's name.
func (s *Server) Traffic() []TrafficStats {
	s.mu.Lock()
	all := make([]*traffic, 0, len(s.traffic)+len(s.listeners))
	for _, tr := range s.traffic {
		all = append(all, tr)
	}
	for _, l := range s.listeners {
		all = append(all, &l.unrouted)
	}
	s.mu.Unlock()
	var stats []TrafficStats
	for _, tr := range all {
		if tr.latency.Load() != nil {
			stats = append(stats, tr.stats())
		}
	}
	return stats
}

func (tr *traffic) stats() TrafficStats {
	st := TrafficStats{Listener: tr.listener, Route: tr.route}
	places := map[[2]string]int{}
	for _, l := range tr.pooled() {
		l.lines.Range(func(_, value any) bool {
			line := value.(*trafficLine)
			names := [2]string{line.pool, line.backend}
			at, ok := places[names] // a backend whose check has just changed is there as two
			if !ok {
				at = len(st.Lines)
				places[names] = at
				st.Lines = append(st.Lines, TrafficLine{Pool: line.pool, Backend: line.backend})
			}
			line.addTo(&st.Lines[at])
			return true
		})
	}
	st.Seconds = Histogram{Bounds: latencyBounds[:], Buckets: make([]int64, len(latencyBounds)+1)}
	shards := *tr.latency.Load()
	for i := range shards {
		for b := range st.Seconds.Buckets {
			st.Seconds.Buckets[b] += shards[i].buckets[b].Load()
		}
		st.Seconds.Sum += time.Duration(shards[i].nanos.Load())
	}
	return st
}

func (tr *traffic) pooled() []*poolLines {
	if all := tr.lines.Load(); all != nil {
		return *all
	}
	return nil
}

func (line *trafficLine) addTo(l *TrafficLine) {
	for i := range line.shards {
		for class := range l.Requests {
			l.Requests[class] += line.shards[i].requests[class].Load()
		}
	}
}
