//go:build linux

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"lbd/bench/load"
	"lbd/bench/stats"
)

// made is a record of 4 s in which each request cost that many microseconds.
func made(scenario, proxy string, repeat int, micros float64, v verdict) record {
	const requests = 100_000
	return record{
		Scenario: scenario, Proxy: proxy, Version: "1.0", Library: "a library", Repeat: repeat, Unit: perRequest, Seconds: 4,
		Time:    time.Date(2030, 1, 1, 0, repeat, len(proxy), 0, time.UTC),
		CPU:     cpuTime{requests * micros / 1e6, requests * micros / 4e6, requests * micros * 3 / 4e6},
		Flows:   []load.Result{{Completed: requests, Seconds: 4, Offered: requests, Answered: requests, Latency: stats.Latency{P50: 0.001, P90: 0.0015, P99: 0.002, P999: 0.003, P9999: 0.004, Max: 0.005}}},
		Verdict: v, MemoryAfter: 20e6, LoadCore: 0.8,
	}
}

func madeSeries(scenario string) []record {
	var records []record
	for repeat := 1; repeat <= 3; repeat++ {
		drift := 1 + 0.2*float64(repeat) // the machine gets slower: pairs do not mind
		records = append(records,
			made(scenario, "lbd", repeat, 14*drift, saturated),
			made(scenario, "nginx", repeat, 20*drift, saturated),
			made(scenario, "haproxy", repeat, 25*drift, saturated),
		)
	}
	return records
}

func TestTable(t *testing.T) {
	got := table(pick(t, "single"), madeSeries("single"), "")
	want := `| proxy | CPU µs/request | user | system | requests/s | p50 ms | p99 | p99.9 | failed | on reused backend connections | proxy busy | load core busy | MB | ratio to nginx | runs |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
| lbd | 19.6 (16.8–22.4) | 4.9 | 14.7 | 25000 | 1.00 | 2.00 | 3.00 | 0 | 100.0 % | 49 % | 80 % | 20 | **0.70** (0.70–0.70) | 3 saturated |
| nginx | 28.0 (24.0–32.0) | 7.0 | 21.0 | 25000 | 1.00 | 2.00 | 3.00 | 0 | 100.0 % | 70 % | 80 % | 20 | 1 | 3 saturated |
| haproxy | 35.0 (30.0–40.0) | 8.8 | 26.2 | 25000 | 1.00 | 2.00 | 3.00 | 0 | 100.0 % | 88 % | 80 % | 20 | **1.25** (1.25–1.25) | 3 saturated |
`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func pick(t *testing.T, name string) *scenario {
	t.Helper()
	picked, err := pickScenarios(options{scenarios: []string{name}})
	if err != nil || len(picked) != 1 {
		t.Fatal(picked, err)
	}
	return picked[0]
}

func TestLoadBoundRunsGetNoRatio(t *testing.T) {
	records := madeSeries("single")
	for i := range records {
		if records[i].Proxy == "lbd" {
			records[i].Verdict = loadBound
		}
	}
	lines := strings.Split(table(pick(t, "single"), records, ""), "\n")
	if !strings.HasSuffix(lines[2], "| – | 3 load-bound |") {
		t.Errorf("lbd's row: %s", lines[2])
	}
}

func TestRatio(t *testing.T) {
	base := map[int]float64{1: 10, 2: 10, 3: 10}
	for _, c := range []struct {
		figures map[int]float64
		want    string
	}{
		{map[int]float64{}, "–"},
		{base, "1"},
		{map[int]float64{1: 7, 2: 8, 3: 9}, "**0.80** (0.70–0.90)"},
		{map[int]float64{1: 7, 2: 8, 3: 11}, "0.80 (0.70–1.10), no result"},
		{map[int]float64{1: 7, 2: 8}, "0.75 (0.70–0.80), no result"},
	} {
		if got := ratio(c.figures, base); got != c.want {
			t.Errorf("ratio of %v: %q, want %q", c.figures, got, c.want)
		}
	}
}

func TestReference(t *testing.T) {
	rows := group(madeSeries("single"))
	cost, answered := mainColumn(views[viewCost]), mainColumn(views[viewOverload])
	if got := pickReference(rows, "", "lbd", cost); got != "nginx" {
		t.Errorf("the cheaper peer is %q", got)
	}
	if got := pickReference(rows, "haproxy", "lbd", cost); got != "haproxy" {
		t.Errorf("asked for haproxy, got %q", got)
	}
	if got := pickReference(map[string][]record{"lbd": rows["lbd"], "lbd@old": rows["nginx"]}, "", "lbd", cost); got != "lbd" {
		t.Errorf("without peers: %q", got)
	}
	for i := range rows["haproxy"] {
		rows["haproxy"][i].Peak, rows["nginx"][i].Peak = 20_000, 30_000
	}
	if got := pickReference(rows, "", "lbd", answered); got != "haproxy" {
		t.Errorf("the peer that answers the larger share of its peak is %q", got)
	}
	for i := range rows["haproxy"] {
		rows["haproxy"][i].Verdict, rows["nginx"][i].Verdict = loadBound, loadBound
	}
	if got := pickReference(rows, "", "lbd", cost); got != "" {
		t.Errorf("nothing of the peers can be compared, but the reference is %q", got)
	}
}

func TestJudge(t *testing.T) {
	rate := rateScenario(1000)
	for name, c := range map[string]struct {
		sc     *scenario
		change func(*record)
		want   verdict
	}{
		"busy":       {pick(t, "single"), func(r *record) { r.CPU.Total = 3.9; r.Flows[0].Offered = 0 }, saturated},
		"idle":       {pick(t, "single"), func(r *record) { r.CPU.Total = 3; r.ProxyCore = 0.76; r.Flows[0].Offered = 0 }, loadBound},
		"neighbours": {pick(t, "single"), func(r *record) { r.CPU.Total = 3; r.ProxyCore = 1; r.Flows[0].Offered = 0 }, disturbed},
		"quota":      {pick(t, "tls-new"), func(r *record) { r.CPU.Total = 1.95; r.Quota = 0.5; r.Flows[0].Offered = 0 }, saturated},
		"in time":    {rate, func(r *record) {}, onSchedule},
		"late":       {rate, func(r *record) { r.Flows[0].Late = 0.01 }, loadBound},
		"behind":     {rate, func(r *record) { r.Flows[0].Completed = 90_000 }, behind},
		"error":      {rate, func(r *record) { r.Error = "x" }, failed},
		"nothing":    {rate, func(r *record) { r.Flows[0].Completed = 0 }, failed},
		"held":       {pick(t, "idle"), func(r *record) { r.Flows[0].Completed, r.Flows[0].Clients, r.Flows[0].Holding = 0, 50, 50 }, onSchedule},
		"not held":   {pick(t, "idle"), func(r *record) { r.Flows[0].Completed, r.Flows[0].Clients, r.Flows[0].Holding = 0, 50, 49 }, failed},
	} {
		r := made("x", "lbd", 1, 10, "")
		r.ProxyCore = r.CPU.Total / r.Seconds
		c.change(&r)
		if r.judge(c.sc); r.Verdict != c.want {
			t.Errorf("%s: %s, want %s", name, r.Verdict, c.want)
		}
	}
}

func TestCostPerMebibyte(t *testing.T) {
	r := made("body-1m", "lbd", 1, 1000, saturated)
	r.Unit, r.Flows[0].Bytes = perMebibyte, 512<<10
	if r.cost() != 2000 || r.throughput() != 12500 {
		t.Errorf("%v µs, %v MiB/s", r.cost(), r.throughput())
	}
	if got := perMebibyte.in("units/s"); got != "MiB/s" {
		t.Errorf("title %q", got)
	}
}

func TestTotalSince(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	r := record{progress: []load.Progress{
		{Event: load.Begin, Time: at(1), Total: 10},
		{Event: load.Tick, Time: at(2), Total: 20},
		{Event: load.Tick, Time: at(3), Total: 30},
		{Event: load.End, Time: at(4), Total: 44},
		{Event: load.Tick, Time: at(5), Total: 99},
	}}
	if got := r.totalSince(at(2).Add(1)); got != 14 {
		t.Errorf("got %v, want 44 - 30", got)
	}
	if got := r.totalSince(at(9)); got != 0 {
		t.Errorf("after the end: %v", got)
	}
}

func TestReportFromFiles(t *testing.T) {
	dir := t.TempDir()
	records := slices.Concat(madeSeries("single"), madeSeries("rate-4000"), madeSeries("rate-8000"), madeSeries("storm"))
	broken := made("single", "caddy", 1, 1, failed)
	broken.Error = "does not serve"
	records = append(records, broken)
	for i := range records {
		if err := records[i].save(dir); err != nil {
			t.Fatal(err)
		}
	}
	f := facts{Command: "go run ./bench/lab", Commit: "abc", Missing: []string{"traefik: not present"}}
	if err := f.save(dir); err != nil {
		t.Fatal(err)
	}
	if err := writeReport(dir, ""); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(filepath.Join(dir, "table.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"### single: one backend", "### rate-8000: 8000 requests/s", "Goal for lbd: a ratio of at most 0.90.",
		"- caddy, repeat 1: does not serve", "- left out: traefik: not present", "at commit abc", "- lbd: 1.0, TLS by a library",
	} {
		if !strings.Contains(string(content), want) {
			t.Errorf("%q is not in the report", want)
		}
	}
	for _, name := range []string{"cost", "throughput", "latency", "percentiles-rate-4000", "percentiles-storm"} {
		svg, err := os.ReadFile(filepath.Join(dir, name+".svg"))
		if err != nil || !strings.Contains(string(svg), ">lbd</text>") {
			t.Errorf("%s: %v, or lbd is not in it", name, err)
		}
	}
}

func TestRecordsSurviveTheirFile(t *testing.T) {
	dir := t.TempDir()
	r := made("single", "lbd@origin/main", 2, 14, saturated)
	if err := r.save(dir); err != nil {
		t.Fatal(err)
	}
	got, err := loadRecords(dir)
	if err != nil || len(got) != 1 {
		t.Fatal(got, err)
	}
	a, _ := json.Marshal(r)
	b, _ := json.Marshal(got[0])
	if string(a) != string(b) {
		t.Errorf("saved %s\nread %s", a, b)
	}
}

func TestColorsDiffer(t *testing.T) {
	names := []string{"lbd", "nginx", "haproxy", "caddy", "traefik", "lbd@a", "lbd+5us", "lbd@b"}
	seen := map[string]string{}
	for _, name := range names {
		c := colorOf(names, name)
		if seen[c] != "" {
			t.Errorf("%s and %s are both %s", name, seen[c], c)
		}
		seen[c] = name
	}
}
