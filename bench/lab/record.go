//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"lbd/bench/load"
	"lbd/bench/stats"
)

// record is one run as it is kept: a JSON file.
type record struct {
	Scenario, Proxy  string
	Version, Library string
	Repeat           int
	Time             time.Time
	AccessLog        bool
	Metrics          bool
	Veth             bool    // load and backends at the far end of a pair of virtual cards; else all on loopback
	Quota            float64 `json:",omitempty"`
	Unit             unit
	// Seconds is the measured window, by the lab's clock.
	Seconds float64
	// CPU of the proxy in the window, all threads and children; BackendCPU of the backends, LoadCPU of the generator, in seconds.
	CPU                 cpuTime
	BackendCPU, LoadCPU float64
	// BackendConnections were opened by the proxy in the window.
	BackendConnections int
	// How busy the two cores were, 0 to 1, whoever made them so.
	ProxyCore, LoadCore float64
	// Resident bytes of the proxy, before the load and at the end of the window.
	MemoryBefore, MemoryAfter int64
	// Start is how long the proxy took from its start until it served, in seconds.
	Start float64
	// Change is how long it took until a changed certificate was served, in seconds, where a scenario and the proxy have that.
	Change float64 `json:",omitempty"`
	// ChangeTime is how long the changes took until they were served, in seconds.
	ChangeTime stats.Spread
	// Changes is how many were made in the window, where a scenario has that.
	Changes int `json:",omitempty"`
	// QuietP99 is the latency of the same load, in seconds, in windows before the changes.
	QuietP99 []float64 `json:",omitempty"`
	// MemoryTrail is the proxy's resident bytes during the window, every memoryEvery.
	MemoryTrail []int64 `json:",omitempty"`
	// LoopConnections are those of each loop at the end of the window, where the proxy says it.
	LoopConnections []float64 `json:",omitempty"`
	// Peak is the proxy's closed-loop requests per second, where a scenario asks for it.
	Peak  float64 `json:",omitempty"`
	Flows []load.Result
	// Verdict says what the figures are worth.
	Verdict verdict
	Error   string `json:",omitempty"`

	progress   []load.Progress // not kept
	remembered time.Time       // when MemoryTrail was last added to
}

// verdict of a run. Only the first two may be compared.
type verdict string

const (
	// saturated: a closed loop kept the proxy busy, so the proxy was the limit.
	saturated verdict = "saturated"
	// onSchedule: an open loop offered what it was to offer, when it was to.
	onSchedule verdict = "on schedule"
	// behind: an open loop asked for more than came back.
	behind verdict = "behind"
	// loadBound: the load side was the limit.
	loadBound verdict = "load-bound"
	// disturbed: the proxy was neither, because other programs used its core.
	disturbed verdict = "disturbed"
	// failed: something did not work.
	failed verdict = "failed"
)

const (
	busyEnough = 0.95
	// foreignAllowed is the share of the proxy's core that others may use before a run that is not saturated is blamed on them.
	foreignAllowed = 0.05
	// keptUp is the share of the offered requests that must be completed inside the window.
	keptUp = 0.98
	// The generator's own delay at its 99th percentile may be so many seconds, or so much of the latency there: where that is tens of
	// milliseconds, answers come in bursts, and the delay is the client's work on them.
	lateAllowed      = 0.002
	lateShareAllowed = 0.1
)

// busy is the share of the CPU time allowed to it that the proxy used.
func (r *record) busy() float64 {
	share := 1.0
	if r.Quota > 0 {
		share = r.Quota
	}
	if r.Seconds == 0 {
		return 0
	}
	return r.CPU.Total / (r.Seconds * share)
}

// foreign is the share of the proxy's core that was busy with something else.
func (r *record) foreign() float64 {
	if r.Seconds == 0 {
		return 0
	}
	return max(0, r.ProxyCore-r.CPU.Total/r.Seconds)
}

func (r *record) judge(sc *scenario) {
	open, late := false, false
	for _, f := range r.Flows {
		open = open || f.Offered > 0
		late = late || f.Late > max(lateAllowed, lateShareAllowed*f.Latency.P99)
	}
	switch {
	case r.Error != "" || r.completed() == 0 && sc.view != viewIdle:
		r.Verdict = failed
	case sc.view == viewIdle && r.holding() < float64(r.Flows[0].Clients):
		r.Error = fmt.Sprintf("%.0f of %d idle connections were open at the end", r.holding(), r.Flows[0].Clients)
		r.Verdict = failed
	case sc.closed && !open && r.busy() < busyEnough && r.foreign() > foreignAllowed:
		r.Verdict = disturbed
	case sc.closed && !open && r.busy() < busyEnough:
		r.Verdict = loadBound
	case sc.closed && !open:
		r.Verdict = saturated
	case late:
		r.Verdict = loadBound
	case sc.view == viewRate && r.completed() < keptUp*r.offered(0)*r.Seconds:
		r.Verdict = behind
	default:
		r.Verdict = onSchedule
	}
}

// memoryEvery is the time between two looks at a proxy's memory: a look stops the proxy while the kernel counts.
const memoryEvery = 5 * time.Second

// remember adds to the trail of memory when it is time.
func (r *record) remember(b *bed, now time.Time) error {
	if r.Seconds > 0 || now.Sub(r.remembered) < memoryEvery {
		return nil
	}
	if r.remembered.IsZero() { // the start is not the window
		r.remembered = now
		return nil
	}
	r.remembered = now
	bytes, err := residentBytes(b.proxy.pid())
	r.MemoryTrail = append(r.MemoryTrail, bytes)
	return err
}

// growth is how much larger the proxy is at the end of a long window than in its second quarter, as a ratio; 0 where that was not seen.
func (r *record) growth() float64 {
	n := len(r.MemoryTrail)
	if n < 8 {
		return 0
	}
	most := func(bytes []int64) float64 { return float64(slices.Max(bytes)) }
	return most(r.MemoryTrail[n*3/4:]) / most(r.MemoryTrail[n/4:n/2])
}

// quiet is the spread of latency before the changes, in seconds.
func (r *record) quiet() stats.Spread { return stats.Of(r.QuietP99) }

// busiest is how many connections the loop with most of them has, in means.
func (r *record) busiest() float64 {
	if len(r.LoopConnections) == 0 {
		return 0
	}
	sum := 0.0
	for _, n := range r.LoopConnections {
		sum += n
	}
	return slices.Max(r.LoopConnections) * float64(len(r.LoopConnections)) / sum
}

func (r *record) completed() float64 {
	n := 0.0
	for _, f := range r.Flows {
		n += float64(f.Completed)
	}
	return n
}

// generatorCPU is what the generator says that it used in the window, in seconds.
func (r *record) generatorCPU() float64 {
	at := map[load.Event]time.Duration{}
	for _, p := range r.progress {
		at[p.Event] = p.CPU
	}
	return (at[load.End] - at[load.Begin]).Seconds()
}

// totalSince is how many requests succeeded between the first report after that moment and the end of the window.
func (r *record) totalSince(from time.Time) float64 {
	first := slices.IndexFunc(r.progress, func(p load.Progress) bool { return !p.Time.Before(from) })
	last := slices.IndexFunc(r.progress, func(p load.Progress) bool { return p.Event == load.End })
	if first < 0 || last < first {
		return 0
	}
	return float64(r.progress[last].Total - r.progress[first].Total)
}

// reusedPercent is the share of requests that went to the backend on a connection that had been there.
func (r *record) reusedPercent() float64 {
	if r.completed() == 0 {
		return 0
	}
	return 100 * max(0, 1-float64(r.BackendConnections)/r.completed())
}

// units is what CPU time is divided by: requests, connections, or mebibytes of their bodies.
func (r *record) units() float64 {
	if r.Unit != perMebibyte {
		return r.completed()
	}
	n := 0.0
	for _, f := range r.Flows {
		n += float64(f.Completed) * float64(f.Bytes) / (1 << 20)
	}
	return n
}

// throughput is units per second.
func (r *record) throughput() float64 {
	if r.Seconds == 0 {
		return 0
	}
	return r.units() / r.Seconds
}

// cost is the proxy's CPU time per unit, in microseconds.
func (r *record) cost() float64 {
	if r.units() == 0 {
		return 0
	}
	return r.CPU.Total * 1e6 / r.units()
}

// side is what share of cost is user or system time.
func (r *record) side(part float64) float64 {
	if r.CPU.Total == 0 {
		return 0
	}
	return r.cost() * part / r.CPU.Total
}

// save writes the record at once, so that an interrupted series keeps what it has.
func (r *record) save(dir string) error {
	content, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	name := fmt.Sprintf("%s.%s.%d.json", r.Scenario, strings.ReplaceAll(r.Proxy, "/", "_"), r.Repeat)
	return os.WriteFile(filepath.Join(dir, name), append(content, '\n'), 0o644)
}

// loadRecords reads what a series has left in dir, in the order in which it was measured.
func loadRecords(dir string) ([]record, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.*.*.json"))
	if err != nil {
		return nil, err
	}
	var records []record
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var r record
		if err := json.Unmarshal(content, &r); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		records = append(records, r)
	}
	if len(records) == 0 {
		return nil, fmt.Errorf("no records in %s: %w", dir, fs.ErrNotExist)
	}
	slices.SortFunc(records, func(a, b record) int { return a.Time.Compare(b.Time) })
	return records, nil
}
