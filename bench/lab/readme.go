//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Where a README holds what a run says. What lies between the two is replaced.
const (
	markBegin = "<!-- from here: go run ./bench/lab -readme -->"
	markEnd   = "<!-- to here -->"
)

// writeReadmes puts a run's tables and plots into the lab's README, and its headlines into the repository's. The plots must lie inside
// the repository.
func writeReadmes(root, dir, reference string) error {
	records, err := loadRecords(dir)
	if err != nil {
		return err
	}
	f, err := loadFacts(dir)
	if err != nil {
		return err
	}
	absolute, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	bench := filepath.Join(root, "bench")
	from, err := filepath.Rel(bench, absolute)
	if err != nil || strings.HasPrefix(from, "..") {
		return fmt.Errorf("%s is not below %s: README.md could not show its plots", dir, bench)
	}
	if err := replaceMarked(filepath.Join(bench, "README.md"), results(f, records, reference, filepath.ToSlash(from), absolute)); err != nil {
		return err
	}
	headline := func(sc *scenario) bool { return sc.headline }
	return replaceMarked(filepath.Join(root, "README.md"), summary(records, reference, headline)+"\n"+source(f)+versions(records))
}

func replaceMarked(file, content string) error {
	old, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	begin, end := strings.Index(string(old), markBegin), strings.Index(string(old), markEnd)
	if begin < 0 || end < begin {
		return fmt.Errorf("%s: no lines %q and %q, in this order", file, markBegin, markEnd)
	}
	return os.WriteFile(file, []byte(string(old[:begin])+markBegin+"\n\n"+strings.TrimSpace(content)+"\n\n"+string(old[end:])), 0o644)
}

// results is the lab's own README's part.
func results(f facts, records []record, reference, link, dir string) string {
	var b strings.Builder
	b.WriteString(source(f) + "\n")
	b.WriteString(summary(records, reference, func(*scenario) bool { return true }) + "\n")
	for _, p := range plotsFor(dir) {
		fmt.Fprintf(&b, "![%s](%s/%s)\n\n", p.alt, link, p.file)
	}
	if table := goalTable(f, records); table != "" {
		b.WriteString("### Goals\n\n" + table + "\n")
	}
	if table := lookupTable(f.Lookup); table != "" {
		b.WriteString("### Lookups\n\n" + table + "\n")
	}
	fmt.Fprintf(&b, "Every scenario with all its figures: [table.md](%s/table.md).\n\n", link)
	b.WriteString(machine(f, records))
	return b.String()
}

func source(f facts) string {
	return fmt.Sprintf("Commit %s, %s, %s, %d cores, Linux %s: `%s`.\n", f.Commit, f.Time.Format("2006-01-02"), f.CPU, f.Cores, f.Kernel, f.Command)
}

// versions says what ran, in a line.
func versions(records []record) string {
	var parts []string
	for _, r := range records {
		if part := fmt.Sprintf("%s %s (%s)", r.Proxy, r.Version, r.Library); !slices.Contains(parts, part) {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, "; ") + ".\n"
}

// shownPlots are those that a README has room for.
var shownPlots = []struct{ file, alt string }{
	{"ratios.svg", "CPU beside the peers, by scenario"},
	{"cost.svg", "CPU time per request against the rate"},
	{"throughput.svg", "answered against offered requests"},
	{"latency.svg", "99th percentile of latency against the rate"},
	{"percentiles-rate-4000.svg", "latency percentiles at 4,000 requests/s"},
	{"percentiles-storm.svg", "latency percentiles of established connections in a storm of new ones"},
}

func plotsFor(dir string) (there []struct{ file, alt string }) {
	for _, p := range shownPlots {
		if _, err := os.Stat(filepath.Join(dir, p.file)); err == nil {
			there = append(there, p)
		}
	}
	return there
}

// summary has a line for each scenario with the main figure of every proxy, and lbd's ratio to the reference.
func summary(records []record, reference string, wanted func(*scenario) bool) string {
	names := order(records)
	slices.SortStableFunc(names, func(a, b string) int { return columnOf(a) - columnOf(b) })
	var b strings.Builder
	titles := slices.Concat([]string{"", ""}, names, []string{"lbd to the better of nginx and haproxy"})
	writeRow(&b, titles)
	writeRow(&b, slices.Repeat([]string{"---"}, len(titles)))
	for _, sc := range inRecords(records) {
		columns := views[sc.view]
		i := slices.IndexFunc(columns, func(c column) bool { return c.main })
		if !wanted(sc) || i < 0 {
			continue
		}
		main := columns[i]
		rows := group(slices.DeleteFunc(slices.Clone(records), func(r record) bool { return r.Scenario != sc.name }))
		cells := []string{"`" + sc.name + "`: " + sc.about, sc.unit.in(main.title)}
		for _, name := range names {
			cells = append(cells, cell(main, rows[name]))
		}
		base := comparable(rows[pickReference(rows, reference, "", main)], main)
		writeRow(&b, append(cells, ratio(comparable(rows["lbd"], main), base)))
	}
	return b.String()
}

// columnOf is a proxy's column: lbd and its variants first.
func columnOf(name string) int {
	if strings.HasPrefix(name, "lbd") {
		return -1
	}
	return slices.Index([]string{"nginx", "haproxy", "caddy", "traefik"}, name)
}
