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

	"lbd/bench/stats"
)

// The short mode measures nothing. It proves that the lab works: every scenario of it ran, what must be written is there, and an lbd that
// spins is told from one that does not.

const (
	slowSpin    = 5 * time.Microsecond
	slowRepeats = 5
	// What the spin may come out as, on a machine that does other things as well: the kernel counts user time in ticks.
	slowLeast, slowMost = 2.0, 12.0 // microseconds
)

// prove checks what a short series has left in its folder, and then measures the slow lbd.
func (l *lab) prove(ctx context.Context, picked []*scenario, proxies []*proxy) error {
	if err := l.complete(picked, proxies); err != nil {
		return err
	}
	i := slices.IndexFunc(proxies, func(p *proxy) bool { return p.name == "lbd" && p.built })
	if i < 0 {
		l.say("no lbd to slow down")
		return nil
	}
	l.say("preparing lbd+%v", slowSpin)
	slow, err := l.find(ctx, "lbd+"+slowSpin.String())
	if err != nil {
		return err
	}
	return l.tellApart(ctx, proxies[i], slow)
}

// complete says what is missing of a series.
func (l *lab) complete(picked []*scenario, proxies []*proxy) error {
	records, err := loadRecords(l.out)
	if err != nil {
		return err
	}
	if want := len(l.plan(picked, proxies)); len(records) != want {
		return fmt.Errorf("%d records of %d runs in %s", len(records), want, l.out)
	}
	var errs []error
	for _, name := range []string{"facts.json", "table.md", "cost.svg", "throughput.svg", "latency.svg", "percentiles-rate-4000.svg", "percentiles-storm.svg"} {
		info, err := os.Stat(filepath.Join(l.out, name))
		if err == nil && info.Size() == 0 {
			err = fmt.Errorf("%s is empty", name)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// tellApart measures both in turn and compares their user time, pair by pair.
func (l *lab) tellApart(ctx context.Context, fast, slow *proxy) error {
	single := scenarios[slices.IndexFunc(scenarios, func(sc *scenario) bool { return sc.name == "single" })]
	var differences []float64
	for repeat := range slowRepeats {
		var user [2]float64
		for i, p := range []*proxy{fast, slow} {
			r := l.measure(ctx, single, p, repeat+1)
			if r.Error != "" {
				return fmt.Errorf("%s: %s", p.name, r.Error)
			}
			user[i] = r.side(r.CPU.User)
		}
		differences = append(differences, user[1]-user[0])
	}
	s := stats.Of(differences)
	l.say("lbd with %v of spin in each request costs %.1f µs more of user time (%.1f–%.1f)", slowSpin, s.Median, s.Min, s.Max)
	if s.Median < slowLeast || s.Median > slowMost {
		return fmt.Errorf("the lab cannot tell %v: it measures a difference of %.1f µs", slowSpin, s.Median)
	}
	return nil
}
