//go:build linux

// Command slow lets slowhttptest loose on lbd, over TLS, in its three modes (slow heads, slow bodies, slow readers), and watches
// what becomes of the slow connections, of other clients and of fair slow readers (1 kB/s). Lbd has the first core, everything
// else the second: what the others see is to be lbd's doing, and not how the kernel shares out two cores.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"lbd/bench/node"
)

const document = `
api_version: lbd/v1
owner: dev
listeners: [{ name: https, addresses: ["127.0.0.1:8443"], protocol: HTTPS, timeouts: { write_stall: 5s }, tls: { default_certificate: default } }]
pools: [{ name: default, backends: [{ address: "BACKEND" }] }]
routes: [{ name: default, listeners: [https], forward: { pools: [{ pool: default }], timeouts: { body_idle: 5s } } }]
`

var modes = []struct{ name, flag string }{{"slow heads", "-H"}, {"slow bodies", "-B"}, {"slow readers", "-X"}}

type options struct {
	bin, only   string
	connections int
	watch       time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.bin, "bin", "", "folder with lbd and lbctl; by default they are built")
	flag.StringVar(&o.only, "only", "", "one mode: heads, bodies or readers")
	flag.IntVar(&o.connections, "c", 1000, "slow connections")
	flag.DurationVar(&o.watch, "watch", 25*time.Second, "after this the slow connections are counted")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := measure(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "slow:", err)
		os.Exit(1)
	}
}

func measure(ctx context.Context, o options) error {
	if _, err := exec.LookPath("slowhttptest"); err != nil {
		return fmt.Errorf("%w: Debian's package has its name", err)
	}
	if o.bin == "" {
		dir, err := os.MkdirTemp("", "lbd-bin-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		if err := node.Build(ctx, dir); err != nil {
			return err
		}
		o.bin = dir
	}
	if err := pin(ctx, loadCore); err != nil {
		return err
	}
	for _, m := range modes {
		if !strings.HasSuffix(m.name, o.only) {
			continue
		}
		if err := one(ctx, o, m.name, m.flag); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
	}
	return nil
}

const lbdCore, loadCore = 0, 1

// pin moves every thread of this program to a core; threads and programs that it starts later follow.
func pin(ctx context.Context, core int) error {
	out, err := exec.CommandContext(ctx, "taskset", "-a", "-p", "-c", strconv.Itoa(core), strconv.Itoa(os.Getpid())).CombinedOutput()
	if err != nil {
		return fmt.Errorf("use core %d alone: %w: %s", core, err, out)
	}
	return nil
}

// one measures a mode on a fresh lbd:
//
//  1. other clients alone, for as long as one of slowhttptest's runs
//  2. other clients and fair slow readers beside slowhttptest
//  3. the shares, the latencies, the memory
func one(ctx context.Context, o options, name, mode string) error {
	lbd, err := node.Start(ctx, o.bin, document, "taskset", "-c", strconv.Itoa(lbdCore))
	if err != nil {
		return err
	}
	defer lbd.Close()
	before, err := lbd.Files()
	if err != nil {
		return err
	}
	others := startOthers(lbd.HTTPS)
	if err := wait(ctx, o.watch); err != nil {
		return errors.Join(err, others.stop())
	}
	if err := others.stop(); err != nil {
		return fmt.Errorf("other clients alone: %w", err)
	}
	memory, err := lbd.Resident()
	if err != nil {
		return err
	}
	beside, fair := startOthers(lbd.HTTPS), startFair(lbd.HTTPS)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	attacked := make(chan error, 1)
	go func() { attacked <- attack(ctx, o, mode, lbd.HTTPS) }()
	most, left, followErr := follow(ctx, lbd, before, o.watch)
	after, err := lbd.Resident()
	if err := errors.Join(err, followErr, beside.stop(), fair.stop()); err != nil {
		return err
	}
	cancel()
	if err := <-attacked; err != nil {
		return err
	}
	most -= otherConns + fairClients
	left -= otherConns + int(fair.served())
	fmt.Printf("%-13s of %d connections, %d at a time, %d are left %v after the first; fair slow readers: %d of %d served\n",
		name, o.connections, most, left, o.watch, fair.served(), fairClients)
	for _, err := range fair.lost {
		fmt.Printf("%-13s a fair slow reader was lost %v\n", "", err)
	}
	fmt.Printf("%-13s others, idle: %s\n%-13s others, beside: %s\n", "", others, "", beside)
	fmt.Printf("%-13s resident memory %+d KiB\n", "", (after-memory)>>10)
	return nil
}

// attack runs slowhttptest until it has no connection left, or the context ends. It opens all within the first two seconds.
// It runs when nothing else does, for in earnest it would have a machine of its own. What it says it has is some seconds old, and it notices a reset only when it reads: lbd's open sockets are counted instead.
func attack(ctx context.Context, o options, mode, address string) error {
	arguments := []string{
		"-i", "0", "slowhttptest", mode, "-c", strconv.Itoa(o.connections), "-r", strconv.Itoa(o.connections / 2), "-i", "10", "-l", strconv.Itoa(int(2 * o.watch / time.Second)),
		"-p", "3", "-s", "65536", "-v", "1", "-u", "https://" + address + "/1000000",
	}
	if mode == "-X" {
		arguments = append(arguments, "-n", "10", "-z", "32", "-w", "512", "-y", "1024")
	}
	out, err := exec.CommandContext(ctx, "chrt", arguments...).CombinedOutput()
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("slowhttptest: %w: %s", err, out)
	}
	return nil
}

// follow looks every half second how many connections lbd has open beyond those that it had before, and returns the most and the last.
func follow(ctx context.Context, lbd *node.Node, before int, watch time.Duration) (most, last int, err error) {
	for end := time.Now().Add(watch); time.Now().Before(end); {
		if err := wait(ctx, watch/50); err != nil {
			return 0, 0, err
		}
		files, err := lbd.Files()
		if err != nil {
			return 0, 0, err
		}
		last = files - before
		most = max(most, last)
	}
	return most, last, nil
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
