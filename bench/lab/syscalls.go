//go:build linux

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// countAll prints each proxy's system calls per request, by name, and beside them its rate without strace: a traced proxy is many times
// slower, so only the counts of that run mean anything.
func (l *lab) countAll(ctx context.Context, picked []*scenario, proxies []*proxy) error {
	if _, err := exec.LookPath("strace"); err != nil {
		return fmt.Errorf("counting system calls needs strace: %w", err)
	}
	for _, sc := range picked {
		for _, p := range proxies {
			untraced := l.measure(ctx, sc, p, 1)
			trace := &strace{lab: l, file: filepath.Join(l.work, "strace.txt")}
			traced := l.measure(ctx, sc, p, 1, trace)
			if problem := cmp.Or(untraced.Error, traced.Error); problem != "" {
				return fmt.Errorf("%s, %s: %s", sc.name, p.name, problem)
			}
			fmt.Fprint(l.stdout, countTable(sc, p.name, trace, &untraced, &traced))
		}
	}
	return nil
}

func countTable(sc *scenario, name string, trace *strace, untraced, traced *record) string {
	var b strings.Builder
	requests := traced.totalSince(trace.from)
	total := uint64(0)
	for _, c := range trace.counts {
		total += c.calls
	}
	fmt.Fprintf(&b, "%s, %s: %.2f system calls per request (%.0f/s and %.1f µs of CPU per %s without strace, %.0f/s with it)\n",
		sc.name, name, float64(total)/requests, untraced.throughput(), untraced.cost(), sc.unit, traced.throughput())
	for _, c := range trace.counts {
		fmt.Fprintf(&b, "  %-16s %8.3f  (%d, %d failed)\n", c.name, float64(c.calls)/requests, c.calls, c.failed)
	}
	return b.String()
}

// strace counts the system calls of all the proxy's processes and threads. The load stands still until it holds the last of them: the rate
// before and after differ by so much that counting requests and calls from slightly different moments would spoil the quotient.
type strace struct {
	lab     *lab
	file    string
	process *process
	from    time.Time
	counts  []callCount
}

func (s *strace) open(b *bed) error {
	pids, err := tree(b.proxy.pid())
	if err != nil {
		return err
	}
	arguments := []string{"strace", "-f", "-c", "-q", "-o", s.file}
	for _, pid := range pids {
		arguments = append(arguments, "-p", strconv.Itoa(pid))
	}
	cmd := place{core: s.lab.loadCore}.command(s.lab.self, arguments...)
	cmd.Stderr = os.Stderr
	if err := b.generator.cmd.Process.Signal(unix.SIGSTOP); err != nil {
		return err
	}
	if s.process, err = start("strace", cmd); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	err = poll(ctx, startPoll, s.process, func() error { return traced(pids) })
	s.from = time.Now()
	return errors.Join(err, b.generator.cmd.Process.Signal(unix.SIGCONT))
}

// traced returns an error as long as a thread has no tracer.
func traced(pids []int) error {
	for _, pid := range pids {
		files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
		if err != nil {
			return err
		}
		for _, file := range files {
			content, err := os.ReadFile(file)
			if err == nil && strings.Contains(string(content), "TracerPid:\t0\n") {
				return fmt.Errorf("%s: not traced", file)
			}
		}
	}
	return nil
}

func (s *strace) close(*record) error {
	_ = s.process.cmd.Process.Signal(unix.SIGINT)
	<-s.process.done // strace ends with the signal that it was stopped by
	content, err := os.ReadFile(s.file)
	if err != nil {
		return err
	}
	s.counts, err = parseCounts(string(content))
	return err
}

// callCount is one row of strace's summary.
type callCount struct {
	name          string
	calls, failed uint64
}

// parseCounts reads strace's summary: share, seconds, microseconds per call, calls, failed calls where there are any, name. The
// total is left out. The most frequent call comes first.
func parseCounts(summary string) ([]callCount, error) {
	var counts []callCount
	for line := range strings.Lines(summary) {
		f := strings.Fields(line)
		if len(f) < 5 || f[len(f)-1] == "total" || strings.HasPrefix(f[0], "-") || f[0] == "%" {
			continue
		}
		c := callCount{name: f[len(f)-1]}
		var err1, err2 error
		c.calls, err1 = strconv.ParseUint(f[3], 10, 64)
		if len(f) > 5 {
			c.failed, err2 = strconv.ParseUint(f[4], 10, 64)
		}
		if err := errors.Join(err1, err2); err != nil {
			return nil, fmt.Errorf("strace summary %q: %w", strings.TrimSpace(line), err)
		}
		counts = append(counts, c)
	}
	if len(counts) == 0 {
		return nil, errors.New("strace counted nothing")
	}
	slices.SortFunc(counts, func(a, b callCount) int { return cmp.Compare(b.calls, a.calls) })
	return counts, nil
}
