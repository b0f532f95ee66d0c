//go:build linux

package main

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strconv"

	"lbd/bench/stats"
)

// lookup is what finding a route takes among so many hosts: a benchmark of package lb, not a run of a proxy. Through a socket the
// difference would drown in the rest of a request.
type lookup struct {
	Hosts int
	Nanos stats.Spread
}

const lookupRepeats = 5

// measureLookup runs the benchmark on the proxy's core, the fewest hosts first.
func (l *lab) measureLookup(ctx context.Context) ([]lookup, error) {
	arguments := place{core: l.proxyCore}.arguments("go", "test", "-run", "^$", "-bench", "^BenchmarkLookup$", "-benchtime", "200ms", "-count", strconv.Itoa(lookupRepeats), "./lb")
	cmd := exec.CommandContext(ctx, l.self, arguments...)
	cmd.Dir = l.root
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("measure lookups: %w\n%s", err, lastLines(string(out), 10))
	}
	return parseLookups(string(out)), nil
}

var lookupLine = regexp.MustCompile(`(?m)^BenchmarkLookup/(\d+)(?:-\d+)?\s+\d+\s+([0-9.]+) ns/op`)

func parseLookups(text string) []lookup {
	nanos := map[int][]float64{}
	for _, m := range lookupLine.FindAllStringSubmatch(text, -1) {
		hosts, _ := strconv.Atoi(m[1])
		value, _ := strconv.ParseFloat(m[2], 64)
		nanos[hosts] = append(nanos[hosts], value)
	}
	var all []lookup
	for hosts, values := range nanos {
		all = append(all, lookup{hosts, stats.Of(values)})
	}
	slices.SortFunc(all, func(a, b lookup) int { return a.Hosts - b.Hosts })
	return all
}

// lookupFewest is the least number of hosts that counts: one alone is no table.
const lookupFewest = 10

// lookupRow is the goal that a lookup takes hardly longer among many hosts than among few; nil where it was not measured.
func lookupRow(all []lookup) []string {
	all = slices.DeleteFunc(slices.Clone(all), func(l lookup) bool { return l.Hosts < lookupFewest })
	if len(all) < 2 {
		return nil
	}
	few, many := all[0], all[len(all)-1]
	g := goal{limit: 1.5}
	ratio := many.Nanos.Median / few.Nanos.Median
	text := fmt.Sprintf("time to find a route among %d hosts (%.0f ns), to %d hosts (%.0f ns)", many.Hosts, many.Nanos.Median, few.Hosts, few.Nanos.Median)
	return []string{"(lookup)", text, "≤ 1.50", fmt.Sprintf("%.2f", ratio), g.met(stats.Of([]float64{ratio}))}
}
