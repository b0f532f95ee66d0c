//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// facts are what a table means nothing without.
type facts struct {
	Time             time.Time
	Command          string
	Commit           string
	Kernel, CPU, Go  string
	Cores, OpenFiles int
	Lookup           []lookup `json:",omitempty"`
	Missing          []string // contestants that were asked for and are not here
}

func gatherFacts(root string, openFiles int) facts {
	var name unix.Utsname
	_ = unix.Uname(&name)
	commit, _ := exec.Command("git", "-C", root, "describe", "--always", "--dirty").Output()
	return facts{
		Time:      time.Now().UTC().Truncate(time.Second),
		Command:   "go run ./bench/lab " + strings.Join(os.Args[1:], " "),
		Commit:    strings.TrimSpace(string(commit)),
		Kernel:    unix.ByteSliceToString(name.Release[:]),
		CPU:       cpuModel(),
		Go:        runtime.Version(),
		Cores:     runtime.NumCPU(),
		OpenFiles: openFiles,
	}
}

func cpuModel() string {
	content, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(content)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

func (f facts) save(dir string) error {
	content, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "facts.json"), append(content, '\n'), 0o644)
}

func loadFacts(dir string) (f facts, err error) {
	content, err := os.ReadFile(filepath.Join(dir, "facts.json"))
	if err != nil {
		return f, err
	}
	return f, json.Unmarshal(content, &f)
}

// writeReport makes table.md and the plots from what is in dir.
func writeReport(dir, reference string) error {
	records, err := loadRecords(dir)
	if err != nil {
		return err
	}
	f, err := loadFacts(dir)
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "table.md"), []byte(markdown(f, records, reference)), 0o644),
		writePlots(dir, records),
	)
}

// markdown is the whole report.
func markdown(f facts, records []record, reference string) string {
	var b strings.Builder
	if table := goalTable(f, records); table != "" {
		b.WriteString("### Goals\n\n" + table + "\n")
	}
	if table := lookupTable(f.Lookup); table != "" {
		b.WriteString("### Lookups\n\n" + table + "\n")
	}
	for _, sc := range inRecords(records) {
		own := slices.DeleteFunc(slices.Clone(records), func(r record) bool { return r.Scenario != sc.name })
		fmt.Fprintf(&b, "### %s: %s\n\n", sc.name, sc.about)
		if sc.quota > 0 {
			fmt.Fprintf(&b, "Every proxy may use %.0f %% of its core.\n\n", sc.quota*100)
		}
		if sc.goal > 0 {
			fmt.Fprintf(&b, "Goal for lbd: a ratio of at most %.2f.\n\n", sc.goal)
		}
		b.WriteString(table(sc, own, reference))
		b.WriteString(remarks(own))
		b.WriteString("\n")
	}
	b.WriteString(machine(f, records))
	return b.String()
}

// inRecords are the scenarios that were run, in the list's order, then other rates.
func inRecords(records []record) []*scenario {
	var names []string
	for _, r := range records {
		if !slices.Contains(names, r.Scenario) {
			names = append(names, r.Scenario)
		}
	}
	picked, err := pickScenarios(options{scenarios: names})
	if err != nil {
		return nil // records of an older list: nothing to compare them by
	}
	return picked
}

// remarks say what went wrong, and what the handshakes agreed on.
func remarks(records []record) string {
	var lines []string
	add := func(format string, a ...any) {
		if line := fmt.Sprintf(format, a...); !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	for _, r := range records {
		if r.Error != "" {
			add("- %s, repeat %d: %s", r.Proxy, r.Repeat, strings.ReplaceAll(r.Error, "\n", "; "))
		}
		for _, f := range r.Flows {
			for _, reason := range sortedKeys(f.Reasons) {
				add("- %s, repeat %d: %d × %s", r.Proxy, r.Repeat, f.Reasons[reason], reason)
			}
		}
		if len(r.Flows) > 0 && r.Flows[0].Session != "" {
			add("- %s: %s", r.Proxy, r.Flows[0].Session)
		}
	}
	if len(lines) == 0 {
		return ""
	}
	return "\n" + strings.Join(lines, "\n") + "\n"
}

func sortedKeys(m map[string]uint64) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func machine(f facts, records []record) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Made on %s by `%s` at commit %s.\n\n", f.Time.Format("2006-01-02 15:04 UTC"), f.Command, f.Commit)
	fmt.Fprintf(&b, "- machine: %s, %d cores, Linux %s, at most %d open files, load generator and backends built with %s\n", f.CPU, f.Cores, f.Kernel, f.OpenFiles, f.Go)
	var seen []string
	for _, r := range records {
		if !slices.Contains(seen, r.Proxy) {
			seen = append(seen, r.Proxy)
			fmt.Fprintf(&b, "- %s: %s, TLS by %s, access log %s, metrics %s, over %s\n", r.Proxy, r.Version, r.Library, onOff(r.AccessLog), onOff(r.Metrics), r.network())
		}
	}
	for _, m := range f.Missing {
		fmt.Fprintf(&b, "- left out: %s\n", m)
	}
	return b.String()
}

func (r *record) network() string {
	if r.Veth {
		return "veth"
	}
	return "loopback"
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}
