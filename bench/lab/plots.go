//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"lbd/bench/plot"
	"lbd/bench/stats"
)

// colors are told apart by the colour-blind too. A revision or a variant of lbd takes the next free one.
var colors = map[string]string{"lbd": "#d55e00", "nginx": "#009e73", "haproxy": "#0072b2", "caddy": "#cc79a7", "traefik": "#e69f00"}

var spareColors = []string{"#56b4e9", "#444444", "#8c564b", "#b5a800"}

func colorOf(names []string, name string) string {
	if c, ok := colors[name]; ok {
		return c
	}
	spare := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return colors[n] != "" })
	return spareColors[slices.Index(spare, name)%len(spareColors)]
}

// writePlots draws what the records have points for: everybody beside lbd, three charts against the rate, and latency percentiles of each open loop.
func writePlots(dir string, records []record) error {
	byRate := slices.DeleteFunc(slices.Clone(records), func(r record) bool {
		return !strings.HasPrefix(r.Scenario, "rate-") || r.Verdict == failed
	})
	var errs []error
	if len(byRate) > 0 {
		errs = append(errs,
			writeChart(dir, "cost", againstRate("CPU time per request", "µs", false, byRate, (*record).cost)),
			writeChart(dir, "throughput", againstRate("Answered while the load was offered", "answered/s", false, byRate, (*record).throughput)),
			writeChart(dir, "latency", againstRate("99th percentile of latency", "ms", true, byRate, func(r *record) float64 { return r.latency(0).P99 * 1e3 })),
		)
	}
	if d := besidePeers(records); len(d.Rows) > 0 {
		svg, err := d.SVG()
		errs = append(errs, err)
		if err == nil {
			errs = append(errs, os.WriteFile(filepath.Join(dir, "ratios.svg"), svg, 0o644))
		}
	}
	for _, sc := range inRecords(records) {
		own := slices.DeleteFunc(slices.Clone(records), func(r record) bool { return r.Scenario != sc.name || r.Verdict == failed })
		if (sc.view == viewRate || sc.view == viewStorm) && len(own) > 0 {
			errs = append(errs, writeChart(dir, "percentiles-"+sc.name, percentiles(sc, own)))
		}
	}
	return errors.Join(errs...)
}

func writeChart(dir, name string, c plot.Chart) error {
	svg, err := c.SVG()
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, name+".svg"), svg, 0o644)
}

// besidePeers has a row for each scenario that compares CPU time, and in it a dot for everybody, in multiples of lbd's. Pairs of runs,
// as in the tables.
func besidePeers(records []record) plot.Dots {
	d := plot.Dots{Title: "CPU time beside lbd", Axis: "CPU time, lbd = 1 (to the right: more than lbd)", Mark: 1}
	names := order(records)
	for _, sc := range inRecords(records) {
		main := mainColumn(views[sc.view])
		if sc.view != viewCost && sc.view != viewRate && sc.view != viewIdle || main.higherIsBetter {
			continue
		}
		rows := group(slices.DeleteFunc(slices.Clone(records), func(r record) bool { return r.Scenario != sc.name }))
		base := comparable(rows["lbd"], main)
		row := plot.Row{Label: sc.name}
		if sc.view == viewIdle {
			row.Label += " (memory)"
		}
		for _, name := range names {
			if s := stats.Paired(comparable(rows[name], main), base); s.N > 0 && s.Min > 0 {
				row.Dots = append(row.Dots, plot.Dot{Name: name, Color: colorOf(names, name), At: s.Median, Low: s.Min, High: s.Max})
			}
		}
		if len(row.Dots) > 1 {
			d.Rows = append(d.Rows, row)
		}
	}
	return d
}

// againstRate has a line for each proxy and a point for each rate: the median of its repeats, and their spread.
func againstRate(title, unit string, logarithmic bool, records []record, figure func(*record) float64) plot.Chart {
	c := plot.Chart{Title: title, X: plot.Axis{Label: "requests/s offered, 64 connections", Log: true}, Y: plot.Axis{Label: unit, Log: logarithmic}}
	var offered []int
	for _, r := range records {
		if rate := rateOf(r.Scenario); !slices.Contains(offered, rate) {
			offered = append(offered, rate)
		}
	}
	slices.Sort(offered)
	if len(offered) > 1 {
		for _, rate := range offered {
			c.X.Ticks = append(c.X.Ticks, plot.Tick{At: float64(rate), Label: fmt.Sprint(rate)})
		}
	}
	names := order(records)
	for _, name := range names {
		line := plot.Line{Name: name, Color: colorOf(names, name)}
		for _, rate := range offered {
			s := stats.Of(figures(records, name, rate, figure))
			if s.N > 0 {
				line.Points = append(line.Points, plot.Point{X: float64(rate), Y: s.Median, Low: s.Min, High: s.Max})
			}
		}
		c.Lines = append(c.Lines, line)
	}
	return c
}

func figures(records []record, proxy string, rate int, figure func(*record) float64) []float64 {
	var values []float64
	for _, r := range records {
		if r.Proxy == proxy && rateOf(r.Scenario) == rate {
			values = append(values, figure(&r))
		}
	}
	return values
}

func rateOf(scenario string) int {
	rate := 0
	_, _ = fmt.Sscanf(scenario, "rate-%d", &rate)
	return rate
}

// percentiles spreads its axis by nines: each step to the right is a tenth of the requests that are slower.
func percentiles(sc *scenario, records []record) plot.Chart {
	steps := []struct {
		label string
		of    func(stats.Latency) float64
	}{
		{"50 %", func(l stats.Latency) float64 { return l.P50 }},
		{"90 %", func(l stats.Latency) float64 { return l.P90 }},
		{"99 %", func(l stats.Latency) float64 { return l.P99 }},
		{"99.9 %", func(l stats.Latency) float64 { return l.P999 }},
		{"99.99 %", func(l stats.Latency) float64 { return l.P9999 }},
		{"most", func(l stats.Latency) float64 { return l.Max }},
	}
	c := plot.Chart{Title: "Latency, scenario " + sc.name, X: plot.Axis{Label: "share of requests that were no slower"}, Y: plot.Axis{Label: "ms", Log: true}}
	for i, step := range steps {
		c.X.Ticks = append(c.X.Ticks, plot.Tick{At: float64(i), Label: step.label})
	}
	names := order(records)
	for _, name := range names {
		line := plot.Line{Name: name, Color: colorOf(names, name)}
		for i, step := range steps {
			var values []float64
			for _, r := range records {
				if r.Proxy == name {
					values = append(values, step.of(r.latency(0))*1e3)
				}
			}
			s := stats.Of(values)
			line.Points = append(line.Points, plot.Point{X: float64(i), Y: s.Median, Low: s.Min, High: s.Max})
		}
		c.Lines = append(c.Lines, line)
	}
	return c
}
