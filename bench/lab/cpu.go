//go:build linux

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cpuTime is processor time of a process tree, in seconds. Total is exact for what lives (schedstat, summed over threads) and in ticks
// for children that have ended; how it splits into user and system is counted in ticks by the kernel and scaled to the total.
type cpuTime struct {
	Total, User, System float64
}

func (a cpuTime) minus(b cpuTime) cpuTime {
	return cpuTime{a.Total - b.Total, a.User - b.User, a.System - b.System}
}

// scaled makes User and System add up to Total.
func (a cpuTime) scaled() cpuTime {
	ticks := a.User + a.System
	if ticks <= 0 {
		return cpuTime{Total: a.Total, System: a.Total}
	}
	return cpuTime{a.Total, a.User * a.Total / ticks, a.System * a.Total / ticks}
}

// sampler reads a process tree's CPU time. It remembers each thread's last value, so a thread that ends takes nothing away; a process that
// ends goes into its parent's account.
type sampler struct {
	root      int
	processes map[int]*processTime
}

// processTime is what the sampler knows of one living process.
type processTime struct {
	stat    processStat
	threads map[string]uint64 // nanoseconds, by /proc path
}

func newSampler(root int) *sampler {
	return &sampler{root: root, processes: map[int]*processTime{}}
}

// ticksPerSecond is USER_HZ, which Linux fixes at 100 for every architecture that the lab runs on.
const ticksPerSecond = 100

func (s *sampler) sample() (cpuTime, error) {
	pids, err := tree(s.root)
	if err != nil {
		return cpuTime{}, err
	}
	maps.DeleteFunc(s.processes, func(pid int, _ *processTime) bool { return !slices.Contains(pids, pid) })
	var c cpuTime
	for _, pid := range pids {
		err := s.read(pid)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // it has just ended
		}
		if err != nil {
			return cpuTime{}, err
		}
		c = c.plus(s.processes[pid])
	}
	return c, nil
}

func (a cpuTime) plus(p *processTime) cpuTime {
	for _, nanos := range p.threads {
		a.Total += float64(nanos) / float64(time.Second)
	}
	a.Total += float64(p.stat.endedUser+p.stat.endedSystem) / ticksPerSecond
	a.User += float64(p.stat.user+p.stat.endedUser) / ticksPerSecond
	a.System += float64(p.stat.system+p.stat.endedSystem) / ticksPerSecond
	return a
}

func (s *sampler) read(pid int) error {
	stat, err := readStat(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return err
	}
	p := s.processes[pid]
	if p == nil {
		p = &processTime{threads: map[string]uint64{}}
		s.processes[pid] = p
	}
	p.stat = stat
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil {
		return err
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has just ended
		}
		first, _, _ := strings.Cut(string(content), " ")
		nanos, err := strconv.ParseUint(first, 10, 64)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		p.threads[file] = nanos
	}
	return nil
}

// processStat is what the lab needs of /proc/PID/stat.
type processStat struct {
	parent       int
	user, system uint64 // ticks
	// Of its children that have ended, and theirs.
	endedUser, endedSystem uint64
}

func readStat(file string) (processStat, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return processStat{}, err
	}
	return parseStat(content)
}

// parseStat skips the command name, which may contain anything, by looking for its last parenthesis.
func parseStat(content []byte) (processStat, error) {
	end := bytes.LastIndexByte(content, ')')
	fields := strings.Fields(string(content[end+1:]))
	if end < 0 || len(fields) < 15 {
		return processStat{}, errors.New("malformed stat")
	}
	var s processStat
	var errs [5]error
	s.parent, errs[0] = strconv.Atoi(fields[1])
	for i, field := range []*uint64{&s.user, &s.system, &s.endedUser, &s.endedSystem} {
		*field, errs[i+1] = strconv.ParseUint(fields[11+i], 10, 64)
	}
	return s, errors.Join(errs[:]...)
}

// tree returns the process and its descendants.
func tree(root int) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	children := map[int][]int{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if stat, err := readStat(fmt.Sprintf("/proc/%d/stat", pid)); err == nil {
			children[stat.parent] = append(children[stat.parent], pid)
		}
	}
	return descend(root, children), nil
}

func descend(root int, children map[int][]int) []int {
	pids := []int{root}
	for i := 0; i < len(pids); i++ {
		pids = append(pids, children[pids[i]]...)
	}
	return pids
}

// residentBytes is the resident memory of a process tree. Pages that two of its processes share count half in each.
func residentBytes(root int) (int64, error) {
	pids, err := tree(root)
	if err != nil {
		return 0, err
	}
	total := int64(0)
	for _, pid := range pids {
		content, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			continue
		}
		total += kilobytes(content, "Pss:") << 10
	}
	if total == 0 {
		return 0, fmt.Errorf("no memory figures for process %d", root)
	}
	return total, nil
}

func kilobytes(content []byte, field string) int64 {
	for line := range strings.Lines(string(content)) {
		if rest, ok := strings.CutPrefix(line, field); ok {
			n, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return n
		}
	}
	return 0
}

// coreTicks is what one core has done since boot, whoever did it.
type coreTicks struct{ busy, all uint64 }

func readCore(core int) (coreTicks, error) {
	content, err := os.ReadFile("/proc/stat")
	if err != nil {
		return coreTicks{}, err
	}
	return parseCore(string(content), core)
}

// parseCore adds up user, nice, system, irq and softirq as busy; idle, iowait and steal are the rest.
func parseCore(content string, core int) (coreTicks, error) {
	prefix := fmt.Sprintf("cpu%d ", core)
	for line := range strings.Lines(content) {
		rest, ok := strings.CutPrefix(line, prefix)
		if !ok {
			continue
		}
		var c coreTicks
		for i, field := range strings.Fields(rest) {
			n, err := strconv.ParseUint(field, 10, 64)
			if err != nil {
				return c, fmt.Errorf("malformed /proc/stat: %w", err)
			}
			if i > 7 {
				break // guest time is in user already
			}
			c.all += n
			if i <= 2 || i == 5 || i == 6 {
				c.busy += n
			}
		}
		return c, nil
	}
	return coreTicks{}, fmt.Errorf("no core %d", core)
}

// share is the busy part since an earlier reading, 0 to 1.
func (c coreTicks) share(before coreTicks) float64 {
	if c.all == before.all {
		return 0
	}
	return float64(c.busy-before.busy) / float64(c.all-before.all)
}
