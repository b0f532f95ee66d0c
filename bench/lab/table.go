//go:build linux

package main

import (
	"fmt"
	"slices"
	"strings"

	"lbd/bench/load"
	"lbd/bench/stats"
)

// view is a kind of table: which figures of a run are shown, and which one proxies are compared by.
type view int

const (
	viewCost view = iota
	viewRate
	viewOverload
	viewStorm
	viewIdle
	viewStart
	viewChanges
	viewLoops
)

// column is one figure of a run.
type column struct {
	title  string
	format string
	value  func(*record) float64
	// main: shown with its spread, and compared. At most one in a view.
	main           bool
	higherIsBetter bool
	// optional: zero says that there is no figure.
	optional bool
}

var costColumns = []column{
	{title: "CPU µs/unit", format: "%.1f", value: (*record).cost, main: true},
	{title: "user", format: "%.1f", value: func(r *record) float64 { return r.side(r.CPU.User) }},
	{title: "system", format: "%.1f", value: func(r *record) float64 { return r.side(r.CPU.System) }},
	{title: "units/s", format: "%.0f", value: (*record).throughput},
}

var latencyColumns = []column{
	{title: "p50 ms", format: "%.2f", value: func(r *record) float64 { return r.latency(0).P50 * 1e3 }},
	{title: "p99", format: "%.2f", value: func(r *record) float64 { return r.latency(0).P99 * 1e3 }},
	{title: "p99.9", format: "%.2f", value: func(r *record) float64 { return r.latency(0).P999 * 1e3 }},
}

var healthColumns = []column{
	{title: "failed", format: "%.0f", value: (*record).failures},
	{title: "on reused backend connections", format: "%.1f %%", value: (*record).reusedPercent},
	{title: "proxy busy", format: "%.0f %%", value: func(r *record) float64 { return r.busy() * 100 }},
	{title: "load core busy", format: "%.0f %%", value: func(r *record) float64 { return r.LoadCore * 100 }},
	{title: "MB", format: "%.0f", value: func(r *record) float64 { return float64(r.MemoryAfter) / 1e6 }},
}

var resumedColumn = column{title: "resumed", format: "%.0f %%", value: (*record).resumedPercent}

var views = map[view][]column{
	viewCost: slices.Concat(costColumns, latencyColumns, []column{resumedColumn}, healthColumns),
	viewRate: slices.Concat(costColumns, latencyColumns, []column{{title: "max", format: "%.1f", value: func(r *record) float64 { return r.latency(0).Max * 1e3 }}}, healthColumns),
	viewOverload: {
		{title: "peak/s", format: "%.0f", value: func(r *record) float64 { return r.Peak }},
		{title: "offered/s", format: "%.0f", value: func(r *record) float64 { return r.offered(0) }},
		{title: "answered within 1 s, of peak", format: "%.2f", value: (*record).answeredOfPeak, main: true, higherIsBetter: true},
		{title: "p50 ms", format: "%.0f", value: func(r *record) float64 { return r.latency(0).P50 * 1e3 }},
		{title: "p99", format: "%.0f", value: func(r *record) float64 { return r.latency(0).P99 * 1e3 }},
		{title: "MB before", format: "%.0f", value: func(r *record) float64 { return float64(r.MemoryBefore) / 1e6 }},
		{title: "MB", format: "%.0f", value: func(r *record) float64 { return float64(r.MemoryAfter) / 1e6 }},
	},
	viewStorm: {
		{title: "established p50 ms", format: "%.2f", value: func(r *record) float64 { return r.latency(0).P50 * 1e3 }},
		{title: "p99 ms", format: "%.2f", value: func(r *record) float64 { return r.latency(0).P99 * 1e3 }, main: true},
		{title: "failed", format: "%.0f", value: func(r *record) float64 { return r.failed(0) }},
		{title: "new offered/s", format: "%.0f", value: func(r *record) float64 { return r.offered(1) }},
		{title: "new completed/s", format: "%.0f", value: (*record).newCompleted},
		{title: "new p50 ms", format: "%.0f", value: func(r *record) float64 { return r.latency(1).P50 * 1e3 }},
		{title: "proxy busy", format: "%.0f %%", value: func(r *record) float64 { return r.busy() * 100 }},
	},
	viewStart: slices.Concat([]column{
		{title: "serves after s", format: "%.2f", value: func(r *record) float64 { return r.Start }},
		{title: "a change after ms", format: "%.0f", value: func(r *record) float64 { return r.Change * 1e3 }, optional: true},
		{title: "MB at start", format: "%.0f", value: func(r *record) float64 { return float64(r.MemoryBefore) / 1e6 }},
	}, costColumns, healthColumns),
	viewChanges: slices.Concat(
		[]column{
			{title: "changes", format: "%.0f", value: func(r *record) float64 { return float64(r.Changes) }, optional: true},
			{title: "served after ms", format: "%.0f", value: func(r *record) float64 { return r.ChangeTime.Median * 1e3 }, optional: true},
			{title: "most", format: "%.0f", value: func(r *record) float64 { return r.ChangeTime.Max * 1e3 }, optional: true},
			{title: "p99 ms when quiet", format: "%.2f", value: func(r *record) float64 { return r.quiet().Median * 1e3 }},
			{title: "at most", format: "%.2f", value: func(r *record) float64 { return r.quiet().Max * 1e3 }},
			{title: "memory, end to second quarter", format: "%.2f", value: (*record).growth, optional: true},
		},
		costColumns, latencyColumns, []column{{title: "new p99 ms", format: "%.2f", value: func(r *record) float64 { return r.latency(1).P99 * 1e3 }}}, healthColumns),
	viewLoops: slices.Concat([]column{{title: "busiest loop, in means", format: "%.2f", value: (*record).busiest, optional: true}}, costColumns, latencyColumns, healthColumns),
	viewIdle: {
		{title: "held", format: "%.0f", value: (*record).holding},
		{title: "bytes/connection", format: "%.0f", value: (*record).idleBytes, main: true},
		{title: "MB before", format: "%.0f", value: func(r *record) float64 { return float64(r.MemoryBefore) / 1e6 }},
		{title: "MB", format: "%.0f", value: func(r *record) float64 { return float64(r.MemoryAfter) / 1e6 }},
	},
}

func (r *record) latency(flow int) stats.Latency {
	if flow >= len(r.Flows) {
		return stats.Latency{}
	}
	return r.Flows[flow].Latency
}

func (r *record) perSecond(flow int, of func(i int) uint64) float64 {
	if flow >= len(r.Flows) || r.Flows[flow].Seconds == 0 {
		return 0
	}
	return float64(of(flow)) / r.Flows[flow].Seconds
}

func (r *record) offered(flow int) float64 {
	return r.perSecond(flow, func(i int) uint64 { return r.Flows[i].Offered })
}

func (r *record) answered(flow int) float64 {
	return r.perSecond(flow, func(i int) uint64 { return r.Flows[i].Answered })
}

func (r *record) failed(flow int) float64 {
	if flow >= len(r.Flows) {
		return 0
	}
	return float64(r.Flows[flow].Failed)
}

func (r *record) failures() float64 {
	n := 0.0
	for i := range r.Flows {
		n += r.failed(i)
	}
	return n
}

// newCompleted is how many of a storm's new connections came through each second.
func (r *record) newCompleted() float64 {
	return r.perSecond(1, func(i int) uint64 { return r.Flows[i].Completed })
}

// p99ToQuiet is latency while changes are made, to the largest of the windows before.
func (r *record) p99ToQuiet() float64 {
	if r.quiet().Max == 0 {
		return 0
	}
	return r.latency(0).P99 / r.quiet().Max
}

func (r *record) answeredOfPeak() float64 {
	if r.Peak == 0 {
		return 0
	}
	return r.answered(0) / r.Peak
}

func (r *record) resumedPercent() float64 {
	handshakes, resumed := 0.0, 0.0
	for _, f := range r.Flows {
		handshakes += float64(f.Handshakes)
		resumed += float64(f.Resumed)
	}
	if handshakes == 0 {
		return 0
	}
	return 100 * resumed / handshakes
}

func (r *record) holding() float64 {
	if len(r.Flows) == 0 {
		return 0
	}
	return float64(r.Flows[0].Holding)
}

func (r *record) idleBytes() float64 {
	if r.holding() == 0 {
		return 0
	}
	return float64(r.MemoryAfter-r.MemoryBefore) / r.holding()
}

// table writes one scenario's table: a row for each proxy, its medians, and how it compares with the reference, repeat by repeat.
func table(sc *scenario, records []record, reference string) string {
	rows := group(records)
	columns := shown(views[sc.view], records)
	main := mainColumn(columns)
	names := order(records)
	reference = pickReference(rows, reference, names[0], main)
	base := comparable(rows[reference], main)

	var b strings.Builder
	titles := []string{"proxy"}
	for _, c := range columns {
		titles = append(titles, sc.unit.in(c.title))
	}
	titles = append(titles, strings.TrimSuffix("ratio to "+reference, " to "), "runs")
	writeRow(&b, titles)
	writeRow(&b, slices.Repeat([]string{"---"}, len(titles)))
	for _, name := range names {
		cells := []string{name}
		for _, c := range columns {
			cells = append(cells, cell(c, rows[name]))
		}
		cells = append(cells, ratio(comparable(rows[name], main), base), verdicts(rows[name]))
		writeRow(&b, cells)
	}
	return b.String()
}

func mainColumn(columns []column) column {
	return columns[slices.IndexFunc(columns, func(c column) bool { return c.main })]
}

// in puts the unit's name into a column's title.
func (u unit) in(title string) string {
	plural := string(u) + "s"
	if u == perMebibyte {
		plural = string(u)
	}
	return strings.ReplaceAll(strings.ReplaceAll(title, "units", plural), "unit", string(u))
}

func writeRow(b *strings.Builder, cells []string) {
	fmt.Fprintf(b, "| %s |\n", strings.Join(cells, " | "))
}

// shown leaves out the resumed share where nothing was encrypted.
func shown(columns []column, records []record) []column {
	encrypted := slices.ContainsFunc(records, func(r record) bool {
		return slices.ContainsFunc(r.Flows, func(f load.Result) bool { return f.Handshakes > 0 })
	})
	return slices.DeleteFunc(slices.Clone(columns), func(c column) bool { return c.title == resumedColumn.title && !encrypted })
}

// cell is the median over the runs that worked; the main figure with its spread.
func cell(c column, rows []record) string {
	var values []float64
	for _, r := range rows {
		if r.Verdict != failed {
			values = append(values, c.value(&r))
		}
	}
	s := stats.Of(values)
	switch {
	case s.N == 0 || c.optional && s.Max == 0:
		return "–"
	case c.main && s.N > 1:
		return fmt.Sprintf(c.format+" ("+c.format+"–"+c.format+")", s.Median, s.Min, s.Max)
	default:
		return fmt.Sprintf(c.format, s.Median)
	}
}

// comparable are the main figures, by repeat, of the runs that may be compared.
func comparable(rows []record, main column) map[int]float64 {
	figures := map[int]float64{}
	for _, r := range rows {
		if r.Verdict == saturated || r.Verdict == onSchedule {
			figures[r.Repeat] = main.value(&r)
		}
	}
	return figures
}

// ratio in bold is a result; one that is not is marked as such.
func ratio(figures, base map[int]float64) string {
	s := stats.Paired(figures, base)
	switch {
	case s.N == 0:
		return "–"
	case s.Min == 1 && s.Max == 1:
		return "1"
	case s.Decided():
		return fmt.Sprintf("**%.2f** (%.2f–%.2f)", s.Median, s.Min, s.Max)
	default:
		return fmt.Sprintf("%.2f (%.2f–%.2f), no result", s.Median, s.Min, s.Max)
	}
}

// verdicts counts the runs by what they are worth.
func verdicts(rows []record) string {
	var names []string
	counts := map[verdict]int{}
	for _, r := range rows {
		if counts[r.Verdict]++; counts[r.Verdict] == 1 {
			names = append(names, string(r.Verdict))
		}
	}
	for i, name := range names {
		names[i] = fmt.Sprintf("%d %s", counts[verdict(name)], name)
	}
	return strings.Join(names, ", ")
}

// debian are the peers that people install.
var debian = []string{"nginx", "haproxy"}

// pickReference is the proxy asked for, else the better of the Debian peers by the main figure's median, else the first. Nobody, where
// these peers were run but nothing about them can be compared.
func pickReference(rows map[string][]record, asked, first string, main column) string {
	if asked != "" {
		return asked
	}
	best, bestFigure := "", 0.0
	for _, name := range debian {
		figures := comparable(rows[name], main)
		var values []float64
		for _, v := range figures {
			values = append(values, v)
		}
		s := stats.Of(values)
		better := s.Median < bestFigure
		if main.higherIsBetter {
			better = s.Median > bestFigure
		}
		if s.N > 0 && (best == "" || better) {
			best, bestFigure = name, s.Median
		}
	}
	if best != "" || rows[debian[0]] != nil || rows[debian[1]] != nil {
		return best
	}
	return first
}

// order is the proxies' names, in the order of their first run.
func order(records []record) []string {
	var names []string
	for _, r := range records {
		if !slices.Contains(names, r.Proxy) {
			names = append(names, r.Proxy)
		}
	}
	return names
}

func group(records []record) map[string][]record {
	rows := map[string][]record{}
	for _, r := range records {
		rows[r.Proxy] = append(rows[r.Proxy], r)
	}
	return rows
}
