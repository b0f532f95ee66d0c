//go:build linux

package main

import (
	"path/filepath"
	"slices"
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
	f := facts{Lookup: []lookup{{"exact", 10, stats.Of([]float64{40})}, {"exact", 1000, stats.Of([]float64{90})}, {"exact", 100_000, stats.Of([]float64{50})}, {"miss", 10, stats.Of([]float64{30})}, {"miss", 100_000, stats.Of([]float64{60})}}}
	got := goalTable(f, records)
	for _, want := range []string{
		"| `storm` | p99 ms, to the better of nginx and haproxy | ≤ 1.00 | 0.50 (0.50–0.50) | yes |",
		"| `storm` | new connections completed, to the better of nginx and haproxy | ≥ 0.80 | 0.20 (0.20–0.20) | **no** |",
		"| `long-lived` | connections of the busiest loop, to the mean | ≤ 1.50 | 1.50 (1.50–1.50) | yes |",
		"| (lookup) | time to find any of the hosts among 100000 hosts (50 ns), to 10 hosts (40 ns) | ≤ 1.50 | 1.25 | yes |",
		"| (lookup) | time to find a host that is not there among 100000 hosts (60 ns), to 10 hosts (30 ns) | ≤ 1.50 | 2.00 | **no** |",
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
	got := parseLookups("goos: linux\nBenchmarkLookup/miss/10-2 \t 90\t 30 ns/op\nBenchmarkLookup/exact/100000-2 \t 90\t 60 ns/op\nBenchmarkLookup/exact/10-2   \t 100\t 40.5 ns/op\t 0 B/op\nBenchmarkLookup/exact/10 \t 100\t 41.5 ns/op\nPASS\n")
	want := []lookup{{"exact", 10, stats.Of([]float64{40.5, 41.5})}, {"exact", 100_000, stats.Of([]float64{60})}, {"miss", 10, stats.Of([]float64{30})}}
	if !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
}

// TestLookupsAreMeasured: the names in package lb are those that are looked for, and each makes a line of the table.
func TestLookupsAreMeasured(t *testing.T) {
	l := testLab(t)
	l.root = filepath.Join("..", "..")
	all, err := l.measureLookup(t.Context(), "1x", 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range lookupKinds {
		own := ofKind(all, kind.name)
		if len(own) != 3 || own[0].Hosts != 10 || own[2].Hosts != 100_000 || own[2].Nanos.N != 1 || own[2].Nanos.Median <= 0 {
			t.Errorf("%s: %+v", kind.name, own)
		}
	}
	table := lookupTable(all)
	if !strings.Contains(table, "| 10 hosts | 1000 hosts | 100000 hosts |\n") || strings.Count(table, "\n| ") != 1+len(lookupKinds) {
		t.Errorf("got\n%s", table)
	}
	if lookupTable(nil) != "" || lookupRows(nil) != nil {
		t.Error("lookups where there are none")
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
