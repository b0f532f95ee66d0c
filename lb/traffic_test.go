package lb

import (
	"io"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"lbd/lb/lbtest"
)

// traffic returns the counters of a route on the listener "main"; the zero value if it has none.
func (n *node) traffic(route string) TrafficStats {
	for _, tr := range n.Traffic() {
		if tr.Listener == "main" && tr.Route == route {
			slices.SortFunc(tr.Lines, func(a, b TrafficLine) int { return slices.Compare(a.Requests[:], b.Requests[:]) })
			return tr
		}
	}
	return TrafficStats{}
}

func (h Histogram) count() int64 {
	sum := int64(0)
	for _, n := range h.Buckets {
		sum += n
	}
	return sum
}

// requests checks the lines of a route, in the order of their counts.
func (n *node) requests(route string, want ...TrafficLine) {
	n.t.Helper()
	tr := n.traffic(route)
	if !slices.Equal(tr.Lines, want) {
		n.t.Errorf("route %q: %v, want %v", route, tr.Lines, want)
	}
	total := int64(0)
	for _, l := range want {
		for _, k := range l.Requests {
			total += k
		}
	}
	if got := tr.Seconds.count(); got != total {
		n.t.Errorf("route %q: %d in the histogram, %d requests", route, got, total)
	}
}

func forwardAll(name string) RouteConfig {
	return RouteConfig{Name: name, Listeners: []string{"main", "other"}, Forward: &Forward{Pools: []WeightedPool{{Pool: "p", Weight: 1}}}}
}

func TestTraffic(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		a, b := lbtest.New(t, lbtest.OK("a")), lbtest.New(t, lbtest.Answer("HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n"))
		nameA, nameB := a.Addr().String(), b.Addr().String()
		routes := []RouteConfig{
			{Name: "fixed", Listeners: []string{"main"}, Matches: []Match{{Exact: "/fixed"}}, Respond: &Respond{Status: 301}},
			forwardAll("all"),
		}
		n := start(t, setup{kind: kind, backends: addrs(a, b), routes: routes})
		c := n.dial()
		ask := func(path string) {
			c.say(get(path))
			c.answer("GET")
			n.record()
		}
		for range 3 {
			ask("/fixed")
		}
		for range 6 {
			ask("/")
		}
		n.requests("fixed", TrafficLine{"", "", [6]int64{3: 3}})
		three := []TrafficLine{{"p", nameB, [6]int64{5: 3}}, {"p", nameA, [6]int64{2: 3}}}
		n.requests("all", three...)

		// Neither another table nor another health check is a reason to begin again.
		cfg := setup{backends: addrs(a, b), routes: routes}
		n.serve(cfg)
		n.requests("all", three...)

		// A backend that is gone is forgotten, the rest is not.
		cfg.backends = addrs(a)
		n.serve(cfg)
		ask("/")
		if got, want := n.traffic("all").Lines, []TrafficLine{{"p", nameA, [6]int64{2: 4}}}; !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
		if got := n.traffic("all").Seconds.count(); got != 7 {
			t.Errorf("%d in the histogram, want all 7: it is the route's", got)
		}

		// So is a route, also if it comes back under the same name.
		cfg.routes = routes[:1]
		n.serve(cfg)
		n.requests("all")
		c.say(get("/"))
		c.expectStatus(404)
		n.want(404, NoRoute)
		n.requests("", TrafficLine{"", "", [6]int64{4: 1}})
		cfg.routes = routes
		n.serve(cfg)
		n.requests("all")
	})
}

// TestTrafficSameName: two backends of one name, as between two health checks, are one line.
func TestTrafficSameName(t *testing.T) {
	b := lbtest.New(t, lbtest.OK("b"))
	n := start(t, setup{pool: PoolConfig{Backends: []BackendConfig{
		{Key: "with check", Name: "b.test:80", Address: b.Addr(), Weight: 1},
		{Key: "without", Name: "b.test:80", Address: b.Addr(), Weight: 1},
	}}})
	c := n.dial()
	for range 4 {
		c.say(get("/"))
		c.expect("GET", 200, "b")
		n.want(200, OK)
	}
	n.requests("all", TrafficLine{"p", "b.test:80", [6]int64{2: 4}})
}

// TestTrafficTunnel: a tunnel takes as long as its 101, not as long as it is open.
func TestTrafficTunnel(t *testing.T) {
	b := lbtest.New(t, func(c *lbtest.Conn) {
		c.ReadHead()
		c.Say(switched)
		io.Copy(io.Discard, c)
	})
	n := start(t, setup{backends: addrs(b)})
	c := n.dial()
	c.say(upgrade)
	c.expectText("HTTP/1.1 101")
	const open = 300 * time.Millisecond
	time.AfterFunc(open, func() { c.Close() })
	r := n.want(101, OK)
	if sum := n.traffic("all").Seconds.Sum; sum > r.Total-open/2 {
		t.Errorf("counted %v of %v, open for %v", sum, r.Total, open)
	}
}

// TestTrafficFromManyLoops: whoever counts, each request is one.
func TestTrafficFromManyLoops(t *testing.T) {
	const loops, each = trafficShardsMax + 3, 1000
	s := &Server{trafficShards: trafficShardsMax}
	tr, backend := &traffic{listener: "main", route: "all"}, &Backend{name: "b"}
	var wg sync.WaitGroup
	for loop := range loops {
		wg.Go(func() {
			for i := range each {
				tr.count(s, loop, 2, nil, backend, time.Duration(i%16)*time.Millisecond)
			}
		})
	}
	wg.Wait()
	st := tr.stats()
	if want := []TrafficLine{{"", "b", [6]int64{2: loops * each}}}; !slices.Equal(st.Lines, want) {
		t.Errorf("%v, want %v", st.Lines, want)
	}
	if n := st.Seconds.count(); n != loops*each {
		t.Errorf("%d in the histogram", n)
	}
}

func TestLatencyBuckets(t *testing.T) {
	s, tr := &Server{trafficShards: 1}, &traffic{}
	for _, took := range []time.Duration{-1, 0, time.Millisecond, time.Millisecond + 1, 30 * time.Second, time.Hour} {
		tr.count(s, 0, 0, nil, nil, took)
	}
	h := tr.stats().Seconds
	last := len(h.Bounds)
	if h.Buckets[0] != 3 || h.Buckets[1] != 1 || h.Buckets[last-1] != 1 || h.Buckets[last] != 1 || h.count() != 6 {
		t.Errorf("%v", h.Buckets)
	}
	if !slices.IsSorted(h.Bounds) {
		t.Errorf("bounds %v", h.Bounds)
	}
}

// TestTrafficOfAPoolThatMoves: a route that leads to another pool begins its lines anew, and keeps its histogram.
func TestTrafficOfAPoolThatMoves(t *testing.T) {
	s, tr := &Server{trafficShards: 1}, &traffic{}
	b := &Backend{name: "b"}
	b.address.Store(&netip.AddrPort{})
	first, second := NewOfflinePool("first"), NewOfflinePool("second")
	first.members, second.members = []*member{{backend: b, weight: 1}}, []*member{{backend: b, weight: 1}}
	tr.follow([]*Pool{first})
	tr.count(s, 0, 2, first, b, 0)
	tr.follow([]*Pool{second})
	tr.count(s, 0, 2, second, b, 0)
	st := tr.stats()
	if want := []TrafficLine{{"second", "b", [6]int64{2: 1}}}; !slices.Equal(st.Lines, want) || st.Seconds.count() != 2 {
		t.Errorf("%+v", st)
	}
}
