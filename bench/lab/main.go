//go:build linux

// Command lab measures lbd and its peers side by side on one machine: what a request costs the proxy in CPU time, how fast it answers,
// and what breaks. bench/README.md has the method.
//
// One program plays all parts: it starts itself again as the backend, as the load generator, and as the wrapper that pins a process to
// its core.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	parts := map[string]func([]string) error{"backend": playBackend, "load": playLoad, "pinned": playPinned}
	if len(os.Args) > 1 && parts[os.Args[1]] != nil {
		exit(parts[os.Args[1]](os.Args[2:]))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	o, err := parseOptions(os.Args[1:], os.Stderr)
	if err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "lab:", err)
		}
		os.Exit(2)
	}
	exit(o.do(ctx))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// options is the command line.
type options struct {
	scenarios, proxies    []string
	repeats               int
	rate                  float64
	proxyCore, loadCore   int
	warm, measure         time.Duration
	measureGiven          bool
	accessLog, metrics    bool
	readme                bool
	veth                  bool
	short                 bool
	out, reference        string
	list, report          bool
	profile, syscalls     bool
	idleClients, inFlight int
}

const (
	measureDefault = 2 * time.Second
	traceDefault   = 10 * time.Second
	shortMeasure   = time.Second
)

func parseOptions(args []string, help io.Writer) (options, error) {
	var o options
	var scenarios, proxies, cpu string
	f := flag.NewFlagSet("lab", flag.ContinueOnError)
	f.SetOutput(help)
	f.StringVar(&scenarios, "scenario", "", "scenarios, comma-separated, or all (default: all as planned for a full run, with -short a few)")
	f.StringVar(&proxies, "proxy", "lbd,nginx,haproxy,caddy,traefik", "proxies, comma-separated: NAME, NAME=PROGRAM, lbd@REVISION, lbd+5us (built with that much spin per request)")
	f.IntVar(&o.repeats, "repeat", 3, "interleaved repeats")
	f.Float64Var(&o.rate, "rate", 0, "requests per second; overrides the scenario's own rate")
	f.StringVar(&cpu, "cpu", "0,1", "the proxy's core, and that of load and backends")
	f.DurationVar(&o.warm, "warm", time.Second/2, "before each measurement")
	f.DurationVar(&o.measure, "measure", 0, "length of each measurement (default 2s, with -syscalls 10s)")
	f.BoolVar(&o.accessLog, "access-log", false, "write access logs to files")
	f.BoolVar(&o.metrics, "metrics", true, "serve metrics, where the proxy can do without")
	f.BoolVar(&o.veth, "veth", false, "put load and backends into a network namespace of their own (needs root)")
	f.BoolVar(&o.short, "short", false, "few scenarios, one second each, one repeat, and a slow lbd that must be told apart: proves that the lab works, measures nothing")
	f.StringVar(&o.out, "out", "", "folder for records, table and plots (default bench/results/TIME)")
	f.StringVar(&o.reference, "reference", "", "the proxy that ratios compare with (default: the better of nginx and haproxy, else the first)")
	f.BoolVar(&o.list, "list", false, "list scenarios and proxies")
	f.BoolVar(&o.readme, "readme", false, "put table and plots into bench/README.md and README.md as well, after a run or with -report")
	f.BoolVar(&o.report, "report", false, "only write table and plots again from the records in -out")
	f.BoolVar(&o.profile, "profile", false, "instead of measuring, draw a flame graph of each proxy in each scenario (needs perf)")
	f.BoolVar(&o.syscalls, "syscalls", false, "instead of measuring, count each proxy's system calls per request (needs strace)")
	f.IntVar(&o.idleClients, "idle", 8000, "connections in the idle scenarios")
	f.IntVar(&o.inFlight, "in-flight", 4000, "requests in flight in the slow scenario")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	o.scenarios, o.proxies = split(scenarios), split(proxies)
	o.measureGiven = o.measure > 0
	if o.measure == 0 {
		o.measure = measureDefault
		if o.syscalls {
			o.measure = traceDefault
		}
	}
	return o, o.check(cpu)
}

func (o *options) check(cpu string) error {
	proxy, load, ok := strings.Cut(cpu, ",")
	var err1, err2 error
	o.proxyCore, err1 = strconv.Atoi(proxy)
	o.loadCore, err2 = strconv.Atoi(load)
	if !ok || err1 != nil || err2 != nil || o.proxyCore == o.loadCore {
		return fmt.Errorf("-cpu %q: want two different cores, for example 0,1", cpu)
	}
	if o.repeats < 1 || o.measure <= 0 || o.warm < 0 || o.rate < 0 || o.idleClients < 1 || o.inFlight < 1 {
		return errors.New("-repeat, -measure, -idle and -in-flight must be positive, -warm and -rate not negative")
	}
	if len(o.proxies) == 0 {
		return errors.New("-proxy is empty")
	}
	if o.report && o.out == "" {
		return errors.New("-report needs -out")
	}
	if o.short {
		o.repeats, o.warm, o.measure, o.measureGiven = 1, shortMeasure/2, shortMeasure, true
		o.idleClients, o.inFlight = 500, 500
	}
	_, err := pickScenarios(*o)
	return err
}

func split(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}
