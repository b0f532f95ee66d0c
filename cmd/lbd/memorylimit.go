package main

import (
	"bufio"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path"
	"path/filepath"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"

	lbdv1 "lbd/proto/lbd/v1"
)

const (
	// memoryPercent of what the control group may use is given to Go: the rest is for what Go does not count, the page cache of
	// the databases above all.
	memoryPercent = 90
	// memoryTightPercent of the limit in use is when the doctor says so: the collector works harder from there on.
	memoryTightPercent = 90
)

// limitMemory makes the collector respect the memory that this process's control group grants. Without that, garbage that is
// not collected yet gets the process killed. An operator's own GOMEMLIMIT wins.
func limitMemory(log *slog.Logger) {
	if os.Getenv("GOMEMLIMIT") != "" {
		log.Debug("memory limit of the environment", "GOMEMLIMIT", os.Getenv("GOMEMLIMIT"))
		return
	}
	granted, ok := grantedMemory("/proc/self/cgroup", "/sys/fs/cgroup")
	if !ok {
		log.Debug("no memory limit: neither GOMEMLIMIT nor the control group sets one")
		return
	}
	limit := granted / 100 * memoryPercent
	debug.SetMemoryLimit(limit)
	log.Debug("memory limit of the control group", "granted", granted, "limit", limit)
}

// grantedMemory is the least that the control group of the process, or one above it, may use; not ok: there is no limit.
// The file names the group in each hierarchy; of those, version 2's ("0::PATH") and version 1's of memory count.
func grantedMemory(file, root string) (least int64, ok bool) {
	f, err := os.Open(file)
	if err != nil {
		return 0, false
	}
	defer f.Close()
	least = math.MaxInt64
	for s := bufio.NewScanner(f); s.Scan(); {
		parts := strings.SplitN(s.Text(), ":", 3)
		if len(parts) != 3 {
			continue
		}
		hierarchy, name := root, "memory.max"
		if parts[0] != "0" {
			if parts[1] != "memory" {
				continue
			}
			hierarchy, name = filepath.Join(root, "memory"), "memory.limit_in_bytes"
		}
		// Within a namespace of its own the path may lead outside of what is mounted; the root itself is always looked at.
		for group := path.Clean("/" + parts[2]); ; group = path.Dir(group) {
			least = min(least, readLimit(filepath.Join(hierarchy, group, name)))
			if group == "/" {
				break
			}
		}
	}
	return least, least < noMemoryLimit
}

// noMemoryLimit is from where version 1 means that there is none: the largest number of whole pages.
const noMemoryLimit = math.MaxInt64 &^ (1<<20 - 1)

// readLimit is the number in a file; where there is none ("max"), the largest.
func readLimit(file string) int64 {
	b, err := os.ReadFile(file)
	if err != nil {
		return math.MaxInt64
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil || n <= 0 {
		return math.MaxInt64
	}
	return n
}

// memoryFinding is what the doctor says of the limit and of what Go holds.
func memoryFinding(limit, held int64) *lbdv1.Finding {
	const check = "memory"
	switch {
	case limit == math.MaxInt64:
		return fine(check, "%d MiB in use, no limit: neither GOMEMLIMIT nor the control group sets one", held>>20)
	case held/memoryTightPercent > limit/100:
		return warning(check, "grant the process more memory (MemoryMax= in the unit), or set GOMEMLIMIT", "%d MiB of %d MiB in use: the collector takes CPU from the traffic", held>>20, limit>>20)
	}
	return fine(check, "%d MiB of %d MiB in use", held>>20, limit>>20)
}

// heldMemory is what counts against the limit.
func heldMemory() int64 {
	samples := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(samples)
	return int64(samples[0].Value.Uint64() - samples[1].Value.Uint64())
}

// stateFinding is what the doctor says of the replicated state's budget.
func stateFinding(used, budget int64) *lbdv1.Finding {
	const check = "state"
	text := fmt.Sprintf("%d MiB of the %d MiB that state_bytes of cluster_settings grants are in use", used>>20, budget>>20)
	if used/8 > budget/10 {
		return warning(check, "delete what is not needed, change less often so that history stays short, or raise state_bytes", "%s: changes beyond are refused", text)
	}
	return fine(check, "%s", text)
}
