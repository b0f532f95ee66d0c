//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// do is what the command line asks for.
func (o options) do(ctx context.Context) error {
	if o.list {
		printList()
		return nil
	}
	if o.report {
		root, err := repository()
		return errors.Join(err, writeReport(o.out, o.reference), o.writeReadmes(root))
	}
	l, err := newLab(o)
	if err != nil {
		return err
	}
	defer os.RemoveAll(l.work)
	if o.veth {
		w, remove, err := newWire(ctx, l.proxyCore, l.loadCore)
		if err != nil {
			return fmt.Errorf("-veth: %w", err)
		}
		defer remove()
		l.wire = w
	}
	proxies, missing, err := l.findAll(ctx)
	if err != nil {
		return err
	}
	picked, err := pickScenarios(o)
	if err != nil {
		return err
	}
	switch {
	case o.profile:
		return l.profileAll(ctx, picked, proxies)
	case o.syscalls:
		return l.countAll(ctx, picked, proxies)
	}
	if l.quotaProblem != nil {
		missing = append(missing, fmt.Sprintf("CPU quotas, and overload with them (%v)", l.quotaProblem))
		l.say("left out: %s", missing[len(missing)-1])
		picked = slices.DeleteFunc(slices.Clone(picked), func(sc *scenario) bool { return sc.peak })
	}
	f := gatherFacts(l.root, l.openFiles)
	f.Missing = missing
	if len(o.scenarios) == 0 && !o.short {
		if f.Lookup, err = l.measureLookup(ctx, lookupTime, lookupRepeats); err != nil {
			return err
		}
	}
	if err := f.save(l.out); err != nil {
		return err
	}
	if err := l.series(ctx, picked, proxies); err != nil {
		return err
	}
	if o.short {
		return l.prove(ctx, picked, proxies)
	}
	return l.writeReadmes(l.root)
}

// writeReadmes does so if that is asked for.
func (o options) writeReadmes(root string) error {
	if !o.readme {
		return nil
	}
	return writeReadmes(root, o.out, o.reference)
}

func printList() {
	for _, s := range scenarios {
		fmt.Printf("%-16s %s\n", s.name, s.about)
	}
	for _, k := range kinds {
		fmt.Printf("proxy            %s\n", k.name)
	}
}

func newLab(o options) (*lab, error) {
	root, err := repository()
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	l := &lab{options: o, root: root, self: self, quotaProblem: quotaProblem(), wire: loopback, stdout: os.Stdout, say: func(format string, a ...any) { fmt.Fprintf(os.Stderr, format+"\n", a...) }}
	if l.openFiles, err = raiseOpenFiles(); err != nil {
		return nil, fmt.Errorf("raise the open-file limit: %w", err)
	}
	if l.work, err = os.MkdirTemp("", "lab-"); err != nil {
		return nil, err
	}
	if l.out == "" {
		l.out = filepath.Join(root, "bench", "results", time.Now().UTC().Format("20060102-150405"))
	}
	return l, os.MkdirAll(l.out, 0o755)
}

// repository is the nearest folder upwards that holds go.mod.
func repository() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("not inside the repository")
		}
	}
}

// findAll says which contestants are missing and goes on with the others.
func (l *lab) findAll(ctx context.Context) (proxies []*proxy, missing []string, err error) {
	for _, name := range l.proxies {
		l.say("preparing %s", name)
		p, err := l.find(ctx, name)
		switch {
		case errors.Is(err, errMissing):
			l.say("left out: %v", err)
			missing = append(missing, err.Error())
		case err != nil:
			return nil, nil, err
		default:
			proxies = append(proxies, p)
		}
	}
	if len(proxies) == 0 {
		return nil, nil, errors.New("no proxy to measure")
	}
	return proxies, missing, nil
}

// run is one measurement of a series.
type run struct {
	scenario *scenario
	proxy    *proxy
	repeat   int
}

// plan is the order of a series: repeats outermost, so that what the machine does in one minute hits all proxies alike. The order
// within a round turns by one each time, so that nobody always follows the same neighbour. Where no scenarios were asked for, it is what
// each of them plans for itself.
func (l *lab) plan(picked []*scenario, proxies []*proxy) []run {
	var runs []run
	for repeat := 1; repeat <= l.repeats; repeat++ {
		for _, sc := range picked {
			for i := range proxies {
				p := proxies[(i+repeat-1)%len(proxies)]
				if len(l.scenarios) > 0 || sc.planned(p, repeat) {
					runs = append(runs, run{sc, p, repeat})
				}
			}
		}
	}
	return runs
}

// runOverhead is how long a run takes beside its windows: start, stop, and the answers that come late.
const runOverhead = 600 * time.Millisecond

// length is what a run takes by its windows.
func (l *lab) length(r run) time.Duration {
	d := runOverhead + l.warm + r.scenario.warm + l.window(r.scenario)
	if r.scenario.change != nil {
		d += quietWindows * (l.warm/2 + quietLength(l.window(r.scenario)))
	}
	if r.scenario.peak {
		d += time.Second + peakMeasure
	}
	if r.scenario.view == viewIdle {
		d += idleOverhead
	}
	if r.scenario.site.hosts >= 10_000 {
		d += manyOverhead
	}
	return d
}

const (
	// idleOverhead is what it takes until all idle connections are there.
	idleOverhead = 5 * time.Second
	// manyOverhead is what ten thousand hosts take to make and to start with.
	manyOverhead = 20 * time.Second
)

// remaining is how long the rest of a series takes, by the windows and by how what is done compares with its windows.
func (l *lab) remaining(runs []run, done int, took time.Duration) time.Duration {
	var before, after time.Duration
	for i, r := range runs {
		if i < done {
			before += l.length(r)
		} else {
			after += l.length(r)
		}
	}
	if before == 0 {
		return after
	}
	return time.Duration(float64(after) * float64(took) / float64(before))
}

// series makes the runs one by one, and keeps what it has when it is interrupted.
func (l *lab) series(ctx context.Context, picked []*scenario, proxies []*proxy) error {
	runs := l.plan(picked, proxies)
	done, broken, begin := 0, 0, time.Now()
	l.say("%d runs, about %v", len(runs), l.remaining(runs, 0, 0).Round(time.Second))
	for _, run := range runs {
		r := l.measure(ctx, run.scenario, run.proxy, run.repeat)
		if ctx.Err() != nil {
			l.say("interrupted: %s keeps the %d runs that are complete", l.out, done)
			return errors.Join(context.Cause(ctx), l.finish(done))
		}
		if err := r.save(l.out); err != nil {
			return err
		}
		if r.Verdict == failed && run.proxy.name == "lbd" { // what a peer does is its own matter, and in the table
			broken++
		}
		done++
		l.say("[%d/%d, %v left] %s", done, len(runs), l.remaining(runs, done, time.Since(begin)).Round(time.Second), r.line(run.scenario))
	}
	if err := l.finish(done); err != nil {
		return err
	}
	if broken > 0 {
		return fmt.Errorf("%d of %d runs failed with lbd", broken, done)
	}
	return nil
}

func (l *lab) finish(done int) error {
	if done == 0 {
		return nil
	}
	if err := writeReport(l.out, l.reference); err != nil {
		return err
	}
	content, err := os.ReadFile(filepath.Join(l.out, "table.md"))
	if err != nil {
		return err
	}
	fmt.Fprint(l.stdout, string(content))
	l.say("records, table and plots are in %s", l.out)
	return nil
}

// line is a run in one line, for the progress display.
func (r *record) line(sc *scenario) string {
	if r.Error != "" {
		return fmt.Sprintf("%s, %s, repeat %d: failed: %s", r.Scenario, r.Proxy, r.Repeat, r.Error)
	}
	main := mainColumn(views[sc.view])
	return fmt.Sprintf("%s, %s, repeat %d: %s "+main.format+", %.0f %s/s, p99 %.2f ms, %.0f failed, %s",
		r.Scenario, r.Proxy, r.Repeat, sc.unit.in(main.title), main.value(r), r.throughput(), sc.unit.in("units"), r.latency(0).P99*1e3, r.failures(), r.Verdict)
}
