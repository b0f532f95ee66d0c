//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"lbd/bench/load"
)

// lab is what all runs share.
type lab struct {
	options
	root      string // the repository
	self      string // this program
	work      string // temporary files
	openFiles int
	stdout    io.Writer                     // results
	say       func(format string, a ...any) // progress
	// quotaProblem is why proxies get no CPU quota here; nil: they do.
	quotaProblem error
	wire         wire
	variants     map[string]*proxy // of lbd, that scenarios asked for
}

// bed is one proxy with its backends, serving.
type bed struct {
	lab       *lab
	setup     setup
	start     time.Duration // of the proxy
	proxy     *process
	backend   *process
	counts    *bufio.Reader // what the backend says
	generator *process      // while load is offered
	close     []func()      // in reverse order
	// mortal is the backend that is killed and started again, at its address; empty: none.
	mortal    string
	endMortal func()
	// How many names the first host was given so far, and whose turn it is where changes alternate.
	reroutes int
	turn     bool
}

func (b *bed) end() {
	for i := len(b.close) - 1; i >= 0; i-- {
		b.close[i]()
	}
}

// newBed starts what a scenario needs: backends, quota, proxy. The caller ends the bed, also after an error.
func (l *lab) newBed(ctx context.Context, sc *scenario, p *proxy) (*bed, error) {
	b := &bed{lab: l}
	dir, err := os.MkdirTemp(l.work, p.kind.name+"-")
	if err != nil {
		return b, err
	}
	b.close = append(b.close, func() { os.RemoveAll(dir) })
	addresses, err := l.wire.backends(max(sc.site.backends, 1))
	if err != nil {
		return b, err
	}
	steady := addresses
	if sc.site.mortal {
		steady, b.mortal = addresses[:len(addresses)-1], addresses[len(addresses)-1]
	}
	// Backends come first: what listens already is not taken for the proxy's address.
	if err := b.startBackend(dir, steady, sc.site); err != nil {
		return b, err
	}
	if b.mortal != "" {
		if err := b.startMortal(); err != nil {
			return b, err
		}
		b.close = append(b.close, func() { b.endMortal() })
	}
	if p, err = l.withLoops(ctx, p, sc.site.loops); err != nil {
		return b, err
	}
	if b.setup, err = sc.site.prepare(dir, l.wire.near, l.openFiles, addresses); err != nil {
		return b, err
	}
	if l.accessLog || sc.log {
		b.setup.AccessLog = filepath.Join(dir, "access.log")
	}
	if !l.metrics || sc.bare {
		b.setup.Metrics = ""
	}
	at := place{core: l.proxyCore}
	if sc.quota > 0 && l.quotaProblem == nil {
		folder, remove, err := newQuota(sc.quota)
		if err != nil {
			return b, err
		}
		b.close = append(b.close, remove)
		at.group = folder
	}
	b.close = append(b.close, func() { b.proxy.stop() })
	if err = b.launch(ctx, p, at, true); err == nil && sc.view == viewStart && p.kind.apply != nil {
		// The others find their configuration on disk: to be compared with them, so must this one.
		b.proxy.stop()
		err = b.launch(ctx, p, at, false)
	}
	return b, err
}

func (b *bed) launch(ctx context.Context, p *proxy, at place, apply bool) (err error) {
	begin := time.Now()
	b.proxy, err = b.lab.startProxy(ctx, p, b.setup, at, apply)
	b.start = time.Since(begin)
	return err
}

func (b *bed) startBackend(dir string, addresses []string, s site) error {
	arguments := []string{"-delay", s.delay.String(), "-idle", s.backendIdle.String()}
	if s.encrypted {
		files, err := makeBackendCertificate(dir)
		if err != nil {
			return err
		}
		arguments = append(arguments, "-bundle", files.Bundle)
	}
	process, counts, end, err := b.lab.launchBackend(append(arguments, addresses...)...)
	if err != nil {
		return err
	}
	b.backend, b.counts = process, counts
	b.close = append(b.close, end)
	return nil
}

func (b *bed) startMortal() error {
	_, _, end, err := b.lab.launchBackend(b.mortal)
	if err == nil {
		b.endMortal = end
	}
	return err
}

// launchBackend starts one process of backends and waits until it serves.
func (l *lab) launchBackend(arguments ...string) (p *process, counts *bufio.Reader, end func(), err error) {
	cmd := place{core: l.loadCore, namespace: l.wire.namespace}.command(l.self, append([]string{l.self, "backend"}, arguments...)...)
	cmd.Stderr = os.Stderr
	p, out, err := startReading("backend", cmd)
	if err != nil {
		return nil, nil, nil, err
	}
	end = func() {
		p.stop()
		_ = out.Close()
	}
	counts = bufio.NewReader(out)
	if line, err := counts.ReadString('\n'); line != "ready\n" {
		end()
		return nil, nil, nil, fmt.Errorf("backend did not start: %w", err)
	}
	return p, counts, end, nil
}

// accepted asks the backend how many connections it has accepted so far.
func (b *bed) accepted() (int, error) {
	if err := b.backend.cmd.Process.Signal(unix.SIGUSR1); err != nil {
		return 0, err
	}
	line, err := b.counts.ReadString('\n')
	if err != nil {
		return 0, fmt.Errorf("ask the backend: %w", err)
	}
	return strconv.Atoi(strings.TrimSpace(line))
}

// observer looks at the proxy between the edges of the measured window.
type observer interface {
	open(b *bed) error
	close(r *record) error
}

// measure is one run: scenario, proxy, repeat. A record comes back also when it went wrong; then it says so. Observers look on
// beside the lab's own figures.
func (l *lab) measure(ctx context.Context, sc *scenario, p *proxy, repeat int, also ...observer) record {
	r := record{Scenario: sc.name, Proxy: p.name, Version: p.version, Library: p.library, Repeat: repeat, Time: time.Now().UTC(),
		AccessLog: l.accessLog || sc.log, Metrics: l.metrics && !sc.bare, Veth: l.wire.namespace != "", Unit: sc.unit}
	if l.quotaProblem == nil {
		r.Quota = sc.quota
	}
	b, err := l.newBed(ctx, sc, p)
	defer b.end()
	r.Start = b.start.Seconds()
	if err == nil {
		err = l.fill(ctx, &r, sc, p, b, also...)
	}
	if err != nil {
		r.Error = err.Error()
	}
	r.judge(sc)
	return r
}

// peakMeasure is how long the search for a proxy's peak takes.
const peakMeasure = 2 * time.Second

// fill lets the scenario's load run, after the search for the peak where there is one, and before the change of a certificate.
func (l *lab) fill(ctx context.Context, r *record, sc *scenario, p *proxy, b *bed, also ...observer) error {
	t := target{setup: b.setup, options: l.options}
	if sc.peak {
		var first record
		flows := closedLoop(load.KeepAlive, clients, bodyBytes, nil)(t)
		if err := l.offer(ctx, &first, b, load.Spec{Warm: time.Second, Measure: min(peakMeasure, l.options.measure), Flows: flows}); err != nil {
			return fmt.Errorf("find the peak: %w", err)
		}
		r.Peak = first.completed() / first.Seconds
		t.peak = r.Peak
	}
	measure := l.window(sc)
	if sc.change != nil {
		if err := l.quiet(ctx, r, b, sc, t, measure); err != nil {
			return err
		}
		if p.kind.able() {
			c := &changer{proxy: p, change: sc.change}
			defer c.end()
			also = append(also, c)
		}
	}
	if b.mortal != "" {
		k := &killer{}
		defer k.end()
		also = append(also, k)
	}
	if sc.view == viewLoops && b.setup.Metrics != "" && p.kind.name == "lbd" {
		also = append(also, &loopWatch{})
	}
	err := l.offer(ctx, r, b, load.Spec{Warm: l.warm + sc.warm, Measure: measure, Flows: sc.flows(t)}, also...)
	if err != nil || sc.view != viewStart || !sc.site.certificates || p.kind.rotate == nil {
		return err
	}
	took, err := b.rotate(ctx, p)
	r.Change = took.Seconds()
	return err
}

// window is how long a scenario is measured.
func (l *lab) window(sc *scenario) time.Duration {
	if sc.length > 0 && !l.measureGiven {
		return sc.length
	}
	return l.options.measure
}

// Latency without changes is measured in a few windows, whose spread says what a difference means.
const (
	quietWindows   = 3
	quietShare     = 10 // each is so many times shorter than the window with changes, but
	quietLengthMin = time.Second
	quietLengthMax = 10 * time.Second
)

func quietLength(measure time.Duration) time.Duration {
	return min(max(quietLengthMin, measure/quietShare), quietLengthMax)
}

// quiet measures the scenario's load before anything changes.
func (l *lab) quiet(ctx context.Context, r *record, b *bed, sc *scenario, t target, measure time.Duration) error {
	for range quietWindows {
		var before record
		spec := load.Spec{Warm: l.warm / 2, Measure: quietLength(measure), Flows: sc.flows(t)}
		if err := l.offer(ctx, &before, b, spec); err != nil {
			return fmt.Errorf("before the changes: %w", err)
		}
		r.QuietP99 = append(r.QuietP99, before.latency(0).P99)
	}
	return nil
}

// offer runs the load generator against a bed and takes the kernel's figures at the edges of its window.
func (l *lab) offer(ctx context.Context, r *record, b *bed, spec load.Spec, also ...observer) error {
	cmd := place{core: l.loadCore, namespace: l.wire.namespace}.command(l.self, l.self, "load")
	input, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	cmd.Stdin, cmd.Stderr = bytes.NewReader(input), os.Stderr
	memory, err := residentBytes(b.proxy.pid())
	if err != nil {
		return err
	}
	r.MemoryBefore = memory
	generator, out, err := startReading("load generator", cmd)
	if err != nil {
		return err
	}
	defer out.Close()
	defer generator.stop()
	b.generator = generator
	stop := context.AfterFunc(ctx, func() { _ = generator.cmd.Process.Kill() })
	defer stop()
	observers := append([]observer{newWindow(l, b)}, also...)
	for messages := json.NewDecoder(out); ; {
		var m message
		if err := messages.Decode(&m); err != nil {
			return errors.Join(context.Cause(ctx), fmt.Errorf("load generator: %w", err))
		}
		if m.Results != nil {
			r.Flows = m.Results
			return b.proxy.ended()
		}
		r.progress = append(r.progress, m.Progress)
		switch m.Progress.Event {
		case load.Begin:
			err = each(observers, func(o observer) error { return o.open(b) })
		case load.Tick:
			err = r.remember(b, m.Progress.Time)
		case load.End:
			err = each(observers, func(o observer) error { return o.close(r) })
		}
		if err != nil {
			return err
		}
	}
}

func each(observers []observer, do func(observer) error) error {
	var errs []error
	for _, o := range observers {
		errs = append(errs, do(o))
	}
	return errors.Join(errs...)
}

// window holds the figures taken at its opening.
type window struct {
	lab      *lab
	bed      *bed
	samplers [2]*sampler // of the proxy, the backends
	cpu      [2]cpuTime
	cores    [2]coreTicks // the proxy's, the load's
	accepted int
	began    time.Time
}

func newWindow(l *lab, b *bed) *window {
	return &window{lab: l, bed: b, samplers: [2]*sampler{newSampler(b.proxy.pid()), newSampler(b.backend.pid())}}
}

func (w *window) read() (cpu [2]cpuTime, cores [2]coreTicks, err error) {
	var errs [4]error
	for i, s := range w.samplers {
		cpu[i], errs[i] = s.sample()
	}
	cores[0], errs[2] = readCore(w.lab.proxyCore)
	cores[1], errs[3] = readCore(w.lab.loadCore)
	return cpu, cores, errors.Join(errs[:]...)
}

func (w *window) open(*bed) (err error) {
	if w.accepted, err = w.bed.accepted(); err != nil {
		return err
	}
	w.began = time.Now()
	w.cpu, w.cores, err = w.read()
	return err
}

func (w *window) close(r *record) error {
	r.Seconds = time.Since(w.began).Seconds()
	cpu, cores, err := w.read()
	if err != nil {
		return err
	}
	r.CPU = cpu[0].minus(w.cpu[0]).scaled()
	r.BackendCPU = cpu[1].minus(w.cpu[1]).Total
	r.LoadCPU = r.generatorCPU()
	r.ProxyCore, r.LoadCore = cores[0].share(w.cores[0]), cores[1].share(w.cores[1])
	accepted, err := w.bed.accepted()
	if err != nil {
		return err
	}
	r.BackendConnections = accepted - w.accepted
	r.MemoryAfter, err = residentBytes(w.bed.proxy.pid())
	return err
}
