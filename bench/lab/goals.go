//go:build linux

package main

import (
	"fmt"
	"slices"
	"strings"

	"lbd/bench/stats"
)

// goal is one thing that lbd is to reach.
type goal struct {
	scenario string
	text     string
	limit    float64
	least    bool   // the limit is the least that is allowed; else the most
	format   string // of figure and limit
	// figure comes from the records of one scenario, by proxy. N is 0 where there is none.
	figure func(rows map[string][]record, main column) stats.Spread
}

// own is a figure of lbd alone.
func own(value func(*record) float64) func(map[string][]record, column) stats.Spread {
	return func(rows map[string][]record, _ column) stats.Spread {
		var values []float64
		for _, r := range rows["lbd"] {
			if r.Verdict != failed {
				values = append(values, value(&r))
			}
		}
		return stats.Of(values)
	}
}

// seen is a figure of lbd alone that may be missing in a run: zero says so.
func seen(value func(*record) float64) func(map[string][]record, column) stats.Spread {
	return func(rows map[string][]record, main column) stats.Spread {
		there := slices.DeleteFunc(slices.Clone(rows["lbd"]), func(r record) bool { return value(&r) == 0 })
		return own(value)(map[string][]record{"lbd": there}, main)
	}
}

// toBetter is the ratio to the better of the Debian peers.
func toBetter(rows map[string][]record, main column) stats.Spread {
	reference := pickReference(rows, "", "", main)
	return stats.Paired(comparable(rows["lbd"], main), comparable(rows[reference], main))
}

// toGoPeers is the ratio to the cheaper of Caddy and Traefik.
func toGoPeers(rows map[string][]record, main column) stats.Spread {
	var least stats.Spread
	for _, name := range []string{"caddy", "traefik"} {
		if s := stats.Paired(comparable(rows["lbd"], main), comparable(rows[name], main)); s.N > 0 && (least.N == 0 || s.Median > least.Median) {
			least = s
		}
	}
	return least
}

// toBetterCompleted is the ratio of completed new connections in the storm to the peer that completes more.
func toBetterCompleted(rows map[string][]record, _ column) stats.Spread {
	completed := column{higherIsBetter: true, main: true, value: (*record).newCompleted}
	return toBetter(rows, completed)
}

// goals are those of the scenarios, then those that are not a ratio of the main figure.
func goals() []goal {
	var all []goal
	for _, sc := range scenarios {
		if sc.goal > 0 {
			all = append(all, goal{sc.name, mainColumn(views[sc.view]).goalTitle(sc) + ", to the better of nginx and haproxy", sc.goal, false, "%.2f", toBetter})
		}
	}
	for _, name := range []string{"single", "lb", "routes"} {
		all = append(all, goal{name, "user CPU µs a request", 4, false, "%.1f", own(func(r *record) float64 { return r.side(r.CPU.User) })})
	}
	all = append(all,
		goal{"slow", "failed requests", 0, false, "%.0f", own((*record).failures)},
		goal{"overload", "answered within 1 s, of peak", 0.9, true, "%.2f", seen((*record).answeredOfPeak)},
		goal{"storm", "new connections completed, to the better of nginx and haproxy", 0.8, true, "%.2f", toBetterCompleted},
		goal{"many-backends", "% of requests on reused connections", 95, true, "%.1f", own((*record).reusedPercent)},
		goal{"long-lived", "connections of the busiest loop, to the mean", 1.5, false, "%.2f", seen((*record).busiest)},
		goal{"many-certificates", "seconds from start to serving", 3, false, "%.2f", own(func(r *record) float64 { return r.Start })},
		goal{"many-certificates", "ms until a change is served", 200, false, "%.0f", seen(func(r *record) float64 { return r.Change * 1e3 })},
		goal{"changes", "failed requests", 0, false, "%.0f", own((*record).failures)},
		goal{"changes", "memory at the end, to the second quarter", 1.05, false, "%.2f", seen((*record).growth)},
		goal{"changes", "p99, to the largest of the quiet windows before", 1, false, "%.2f", seen((*record).p99ToQuiet)},
	)
	for _, sc := range scenarios {
		if sc.wide && sc.closed {
			all = append(all, goal{sc.name, mainColumn(views[sc.view]).goalTitle(sc) + ", to the better of caddy and traefik", 0.35, false, "%.2f", toGoPeers})
		}
	}
	return all
}

func (c column) goalTitle(sc *scenario) string {
	title := sc.unit.in(c.title)
	title, _ = strings.CutPrefix(title, "CPU µs/")
	if title != sc.unit.in(c.title) {
		return "CPU a " + title
	}
	return title
}

// met says how the figure stands to the limit: the median decides, and the spread is told where it lies on both sides.
func (g goal) met(s stats.Spread) string {
	ok, within := s.Median <= g.limit, s.Min <= g.limit && g.limit < s.Max
	if g.least {
		ok, within = s.Median >= g.limit, s.Min < g.limit && g.limit <= s.Max
	}
	switch {
	case ok && within:
		return "yes, not in every repeat"
	case ok:
		return "yes"
	case within:
		return "**no**, within the spread"
	default:
		return "**no**"
	}
}

// goalTable has a line for each goal that the records say something about.
func goalTable(f facts, records []record) string {
	var b strings.Builder
	for _, g := range goals() {
		ofScenario := slices.DeleteFunc(slices.Clone(records), func(r record) bool { return r.Scenario != g.scenario })
		if len(ofScenario) == 0 {
			continue
		}
		sc, err := pickScenarios(options{scenarios: []string{g.scenario}})
		if err != nil {
			continue
		}
		s := g.figure(group(ofScenario), mainColumn(views[sc[0].view]))
		figure, met := "–", "not measured"
		if s.N > 0 {
			figure, met = fmt.Sprintf(g.format, s.Median), g.met(s)
		}
		if s.N > 1 {
			figure += fmt.Sprintf(" ("+g.format+"–"+g.format+")", s.Min, s.Max)
		}
		limit := "≤ "
		if g.least {
			limit = "≥ "
		}
		writeRow(&b, []string{"`" + g.scenario + "`", g.text, limit + fmt.Sprintf(g.format, g.limit), figure, met})
	}
	for _, row := range lookupRows(f.Lookup) {
		writeRow(&b, row)
	}
	if b.Len() == 0 {
		return ""
	}
	return "| scenario | goal for lbd | limit | reached | met |\n| --- | --- | --- | --- | --- |\n" + b.String()
}
