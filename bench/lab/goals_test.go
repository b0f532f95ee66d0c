//go:build linux

package main

import (
	"strings"
	"testing"

	"lbd/bench/load"
	"lbd/bench/stats"
)

func TestGoalsAreMetOrNot(t *testing.T) {
	most, least := goal{limit: 1}, goal{limit: 1, least: true}
	for _, c := range []struct {
		g      goal
		values []float64
		want   string
	}{
		{most, []float64{0.8, 0.9, 1}, "yes"},
		{most, []float64{0.8, 0.9, 1.1}, "yes, not in every repeat"},
		{most, []float64{0.9, 1.1, 1.2}, "**no**, within the spread"},
		{most, []float64{1.1, 1.2}, "**no**"},
		{least, []float64{1, 1.1}, "yes"},
		{least, []float64{0.9, 1.1, 1.2}, "yes, not in every repeat"},
		{least, []float64{0.8, 0.9, 1}, "**no**, within the spread"},
		{least, []float64{0.8}, "**no**"},
	} {
		if got := c.g.met(stats.Of(c.values)); got != c.want {
			t.Errorf("%+v, %v: %q, want %q", c.g, c.values, got, c.want)
		}
	}
}

func TestGoalTable(t *testing.T) {
	var records []record
	for repeat := 1; repeat <= 3; repeat++ {
		for proxy, p99 := range map[string]float64{"lbd": 0.002, "nginx": 0.010, "haproxy": 0.004} {
			r := made("storm", proxy, repeat, 10, onSchedule)
			r.Flows[0].Latency.P99 = p99
			r.Flows = append(r.Flows, load.Result{Completed: uint64(1000 * p99 * 1e3), Seconds: 4})
			records = append(records, r)
		}
		r := made("long-lived", "lbd", repeat, 10, onSchedule)
		r.LoopConnections = []float64{1, 2, 3, 2}
		records = append(records, r)
	}
	f := facts{Lookup: []lookup{{1, stats.Of([]float64{5})}, {10, stats.Of([]float64{40})}, {100_000, stats.Of([]float64{50})}}}
	got := goalTable(f, records)
	for _, want := range []string{
		"| `storm` | p99 ms, to the better of nginx and haproxy | ≤ 1.00 | 0.50 (0.50–0.50) | yes |",
		"| `storm` | new connections completed, to the better of nginx and haproxy | ≥ 0.80 | 0.20 (0.20–0.20) | **no** |",
		"| `long-lived` | connections of the busiest loop, to the mean | ≤ 1.50 | 1.50 (1.50–1.50) | yes |",
		"| (lookup) | time to find a route among 100000 hosts (50 ns), to 10 hosts (40 ns) | ≤ 1.50 | 1.25 | yes |",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no line %s in\n%s", want, got)
		}
	}
	if goalTable(facts{}, madeSeries("heads")) != "" {
		t.Error("goals where there are none")
	}
}

func TestParseLookups(t *testing.T) {
	got := parseLookups("goos: linux\nBenchmarkLookup/10-2   \t 100\t 40.5 ns/op\t 0 B/op\nBenchmarkLookup/100000-2 \t 90\t 60 ns/op\nBenchmarkLookup/10-2 \t 100\t 41.5 ns/op\nPASS\n")
	if len(got) != 2 || got[0].Hosts != 10 || got[0].Nanos.Median != 41 || got[1].Hosts != 100_000 || got[1].Nanos.N != 1 {
		t.Errorf("%+v", got)
	}
}

func TestGrowth(t *testing.T) {
	r := record{MemoryTrail: []int64{50, 60, 100, 90, 95, 90, 110, 105}}
	if got := r.growth(); got != 1.1 {
		t.Errorf("%v, want 110 to 100", got)
	}
	if got := (&record{MemoryTrail: []int64{1, 2}}).growth(); got != 0 {
		t.Errorf("%v from too few", got)
	}
}
