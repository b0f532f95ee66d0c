//go:build linux

package main

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"lbd/bench/stats"
)

// lookup is what finding a route takes among so many hosts: a benchmark of package lb, not a run of a proxy. Through a socket the
// difference would drown in the rest of a request.
type lookup struct {
	Kind  string
	Hosts int
	Nanos stats.Spread
}

// lookupKinds are asked of hosts at random, all but the first.
var lookupKinds = []struct{ name, about string }{
	{"again", "the same host each time"},
	{"exact", "any of the hosts"},
	{"wildcard", "any of as many wildcards"},
	{"miss", "a host that is not there"},
}

const (
	lookupRepeats = 5
	lookupTime    = "100ms"
)

// measureLookup runs the benchmark on the proxy's core, for so long (as go test's -benchtime has it) and so often.
func (l *lab) measureLookup(ctx context.Context, long string, repeats int) ([]lookup, error) {
	arguments := place{core: l.proxyCore}.arguments("go", "test", "-run", "^$", "-bench", "^BenchmarkLookup$", "-benchtime", long, "-count", strconv.Itoa(repeats), "./lb")
	cmd := exec.CommandContext(ctx, l.self, arguments...)
	cmd.Dir = l.root
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("measure lookups: %w\n%s", err, lastLines(string(out), 10))
	}
	return parseLookups(string(out)), nil
}

var lookupLine = regexp.MustCompile(`(?m)^BenchmarkLookup/(\w+)/(\d+)(?:-\d+)?\s+\d+\s+([0-9.]+) ns/op`)

// parseLookups reads what the benchmark prints: by kind in their order, the fewest hosts first.
func parseLookups(text string) []lookup {
	nanos := map[string]map[int][]float64{}
	for _, m := range lookupLine.FindAllStringSubmatch(text, -1) {
		hosts, _ := strconv.Atoi(m[2])
		value, _ := strconv.ParseFloat(m[3], 64)
		if nanos[m[1]] == nil {
			nanos[m[1]] = map[int][]float64{}
		}
		nanos[m[1]][hosts] = append(nanos[m[1]][hosts], value)
	}
	var all []lookup
	for _, kind := range lookupKinds {
		var own []lookup
		for hosts, values := range nanos[kind.name] {
			own = append(own, lookup{kind.name, hosts, stats.Of(values)})
		}
		slices.SortFunc(own, func(a, b lookup) int { return a.Hosts - b.Hosts })
		all = append(all, own...)
	}
	return all
}

// lookupGoal is how much longer a lookup may take among the most hosts than among the fewest.
const lookupGoal = 1.5

func ofKind(all []lookup, kind string) []lookup {
	return slices.DeleteFunc(slices.Clone(all), func(l lookup) bool { return l.Kind != kind })
}

// lookupRows are the goals that lookups take hardly longer among many hosts than among few; none where they were not measured.
func lookupRows(all []lookup) (rows [][]string) {
	g := goal{limit: lookupGoal}
	for _, kind := range lookupKinds {
		own := ofKind(all, kind.name)
		if len(own) < 2 {
			continue
		}
		few, many := own[0], own[len(own)-1]
		ratio := many.Nanos.Median / few.Nanos.Median
		text := fmt.Sprintf("time to find %s among %d hosts (%.0f ns), to %d hosts (%.0f ns)", kind.about, many.Hosts, many.Nanos.Median, few.Hosts, few.Nanos.Median)
		rows = append(rows, []string{"(lookup)", text, fmt.Sprintf("≤ %.2f", lookupGoal), fmt.Sprintf("%.2f", ratio), g.met(stats.Of([]float64{ratio}))})
	}
	return rows
}

// lookupTable has a line for each kind, with what it takes among how many hosts. Empty where they were not measured.
func lookupTable(all []lookup) string {
	if len(all) == 0 {
		return ""
	}
	var b strings.Builder
	title := []string{"ns to find the route of"}
	for _, l := range ofKind(all, all[0].Kind) {
		title = append(title, fmt.Sprintf("%d hosts", l.Hosts))
	}
	writeRow(&b, title)
	writeRow(&b, slices.Repeat([]string{"---"}, len(title)))
	for _, kind := range lookupKinds {
		row := []string{kind.about}
		for _, l := range ofKind(all, kind.name) {
			row = append(row, fmt.Sprintf("%.0f (%.0f–%.0f)", l.Nanos.Median, l.Nanos.Min, l.Nanos.Max))
		}
		writeRow(&b, row)
	}
	b.WriteString("\nHosts are asked for at random: among many, most of what a lookup reads has to come from memory, and that is the difference to the same host each time. A wildcard is found after the exact host was not, and a miss reads no host's routes.\n")
	return b.String()
}
