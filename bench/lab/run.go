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
	if err := b.startBackend(addresses, sc.site.delay); err != nil {
		return b, err
	}
	if b.setup, err = sc.site.prepare(dir, l.wire.near, l.openFiles, addresses); err != nil {
		return b, err
	}
	if l.accessLog {
		b.setup.AccessLog = filepath.Join(dir, "access.log")
	}
	if !l.metrics {
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

func (b *bed) startBackend(addresses []string, delay time.Duration) error {
	arguments := append([]string{b.lab.self, "backend", "-delay", delay.String()}, addresses...)
	cmd := place{core: b.lab.loadCore, namespace: b.lab.wire.namespace}.command(b.lab.self, arguments...)
	cmd.Stderr = os.Stderr
	process, out, err := startReading("backend", cmd)
	if err != nil {
		return err
	}
	b.backend, b.counts = process, bufio.NewReader(out)
	b.close = append(b.close, func() { _ = out.Close() }, process.stop)
	if line, err := b.counts.ReadString('\n'); line != "ready\n" {
		return fmt.Errorf("backend did not start: %w", err)
	}
	return nil
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

// measure is one run: scenario, proxy, repeat. A record comes back also when it went wrong; then it says so. An observer beside the
// lab's own figures may be nil.
func (l *lab) measure(ctx context.Context, sc *scenario, p *proxy, repeat int, also observer) record {
	r := record{Scenario: sc.name, Proxy: p.name, Version: p.version, Library: p.library, Repeat: repeat, Time: time.Now().UTC(),
		AccessLog: l.accessLog, Metrics: l.metrics, Veth: l.wire.namespace != "", Unit: sc.unit}
	if l.quotaProblem == nil {
		r.Quota = sc.quota
	}
	b, err := l.newBed(ctx, sc, p)
	defer b.end()
	r.Start = b.start.Seconds()
	if err == nil {
		err = l.fill(ctx, &r, sc, p, b, also)
	}
	if err != nil {
		r.Error = err.Error()
	}
	r.judge(sc)
	return r
}

// peakMeasure is how long the search for a proxy's peak takes.
const peakMeasure = 3 * time.Second

// fill lets the scenario's load run, after the search for the peak where there is one, and before the change of a certificate.
func (l *lab) fill(ctx context.Context, r *record, sc *scenario, p *proxy, b *bed, also observer) error {
	t := target{setup: b.setup, options: l.options}
	if sc.peak {
		var first record
		flows := closedLoop(load.KeepAlive, clients, bodyBytes, nil)(t)
		if err := l.offer(ctx, &first, b, load.Spec{Warm: time.Second, Measure: min(peakMeasure, l.options.measure), Flows: flows}, nil); err != nil {
			return fmt.Errorf("find the peak: %w", err)
		}
		r.Peak = first.completed() / first.Seconds
		t.peak = r.Peak
	}
	if sc.changes > 0 && p.kind.rotate != nil {
		c := &changer{proxy: p, every: sc.changes}
		defer c.end()
		also = c
	}
	err := l.offer(ctx, r, b, load.Spec{Warm: l.warm + sc.warm, Measure: l.options.measure, Flows: sc.flows(t)}, also)
	if err != nil || sc.view != viewStart || !sc.site.certificates || p.kind.rotate == nil {
		return err
	}
	took, err := b.rotate(ctx, p)
	r.Change = took.Seconds()
	return err
}

// offer runs the load generator against a bed and takes the kernel's figures at the edges of its window.
func (l *lab) offer(ctx context.Context, r *record, b *bed, spec load.Spec, also observer) error {
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
	observers := []observer{newWindow(l, b)}
	if also != nil {
		observers = append(observers, also)
	}
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
