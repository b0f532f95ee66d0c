//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"lbd/bench/plot"
)

// perfHertz is no divisor of the kernel's own clocks, so that samples do not fall into step with them.
const perfHertz = 997

// profileAll draws a flame graph of each proxy in each scenario: all its threads, program and kernel.
func (l *lab) profileAll(ctx context.Context, picked []*scenario, proxies []*proxy) error {
	if _, err := exec.LookPath("perf"); err != nil {
		return fmt.Errorf("a profile needs perf: %w", err)
	}
	for _, sc := range picked {
		for _, p := range proxies {
			watch := &perf{lab: l, file: filepath.Join(l.work, "perf.data")}
			r := l.measure(ctx, sc, p, 1, watch)
			if r.Error != "" {
				return fmt.Errorf("%s, %s: %s", sc.name, p.name, r.Error)
			}
			name := filepath.Join(l.out, fmt.Sprintf("flame-%s-%s.svg", sc.name, p.name))
			svg, err := plot.Flame(fmt.Sprintf("%s %s: %s", p.name, p.version, sc.about), watch.stacks, isKernel)
			if err != nil {
				return err
			}
			if err := os.WriteFile(name, svg, 0o644); err != nil {
				return err
			}
			l.say("%s", name)
		}
	}
	return nil
}

// perf samples the proxy between the edges of the window.
type perf struct {
	lab     *lab
	file    string
	process *process
	stacks  []plot.Stack
}

func (p *perf) open(b *bed) error {
	pids, err := tree(b.proxy.pid())
	if err != nil {
		return err
	}
	cmd := place{core: p.lab.loadCore}.command(p.lab.self, "perf", "record", "--quiet", "-e", "cpu-clock", "-F", strconv.Itoa(perfHertz), "-g", "-o", p.file, "-p", commas(pids))
	cmd.Stderr = os.Stderr
	p.process, err = start("perf", cmd)
	return err
}

func (p *perf) close(*record) error {
	_ = p.process.cmd.Process.Signal(unix.SIGINT)
	<-p.process.done // perf ends with the signal that it was stopped by
	out, err := exec.Command("perf", "script", "-F", "comm,ip,sym,dso", "-i", p.file).Output()
	if err != nil {
		return fmt.Errorf("perf script: %w", err)
	}
	p.stacks = parsePerf(bytes.NewReader(out))
	return nil
}

func commas(numbers []int) string {
	var list []string
	for _, n := range numbers {
		list = append(list, strconv.Itoa(n))
	}
	return strings.Join(list, ",")
}

const kernelMark = " [kernel]"

func isKernel(frame string) bool { return strings.HasSuffix(frame, kernelMark) }

// parsePerf reads what perf script prints: a line for the thread, a line for each frame from the innermost outwards, an empty line.
func parsePerf(r io.Reader) []plot.Stack {
	counts := map[string]int{}
	var frames []string
	flush := func() {
		if len(frames) == 0 {
			return
		}
		outward := make([]string, len(frames))
		for i, f := range frames {
			outward[len(frames)-1-i] = f
		}
		counts[strings.Join(outward, "\x00")]++
		frames = frames[:0]
	}
	for lines := bufio.NewScanner(r); lines.Scan(); {
		line := lines.Text()
		switch {
		case strings.TrimSpace(line) == "":
			flush()
		case line[0] == ' ' || line[0] == '\t':
			frames = append(frames, parseFrame(strings.TrimSpace(line)))
		}
	}
	flush()
	var stacks []plot.Stack
	for joined, n := range counts {
		stacks = append(stacks, plot.Stack{Frames: strings.Split(joined, "\x00"), Count: n})
	}
	return stacks
}

// parseFrame reads "ADDRESS SYMBOL (OBJECT)". Without a symbol the object stands for it.
func parseFrame(line string) string {
	_, rest, _ := strings.Cut(line, " ")
	symbol, object := rest, ""
	if i := strings.LastIndex(rest, " ("); i >= 0 {
		symbol, object = rest[:i], strings.TrimSuffix(rest[i+2:], ")")
	}
	if symbol == "[unknown]" {
		symbol = "[" + filepath.Base(object) + "]"
	}
	if strings.HasPrefix(object, "[kernel") {
		symbol += kernelMark
	}
	return symbol
}
