//go:build linux

package main

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"lbd/bench/backend"
	"lbd/bench/load"
)

// playBackend is "lab backend [-delay D] [-idle D] [-bundle FILE] ADDRESS…". It says "ready", serves until it is killed, and at each
// SIGUSR1 says how many connections it has accepted.
func playBackend(args []string) error {
	f := flag.NewFlagSet("backend", flag.ContinueOnError)
	delay := f.Duration("delay", 0, "before each answer")
	idle := f.Duration("idle", 0, "after which connections are closed")
	bundle := f.String("bundle", "", "certificate and key: speak TLS")
	if err := f.Parse(args); err != nil {
		return err
	}
	var certificate *tls.Certificate
	if *bundle != "" {
		pair, err := tls.LoadX509KeyPair(*bundle, *bundle)
		if err != nil {
			return err
		}
		certificate = &pair
	}
	// It allocates per connection, not per request: the collector would only disturb.
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(512 << 20)
	var accepted atomic.Int64
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, unix.SIGUSR1)
	go func() {
		for range asked {
			fmt.Println(accepted.Load())
		}
	}()
	return backend.Run(backend.Config{Listen: f.Args(), Certificate: certificate, Delay: *delay, Idle: *idle, Accepted: &accepted, Ready: func() { fmt.Println("ready") }})
}

// message is one line of the load generator's output.
type message struct {
	Progress load.Progress
	Results  []load.Result `json:",omitempty"` // the last line has them
}

// playLoad is "lab load": a load.Spec on standard input, messages on standard output.
func playLoad([]string) error {
	var spec load.Spec
	if err := json.NewDecoder(os.Stdin).Decode(&spec); err != nil {
		return fmt.Errorf("read the specification: %w", err)
	}
	debug.SetGCPercent(400)
	out := json.NewEncoder(os.Stdout)
	results, err := load.Run(spec, func(p load.Progress) { _ = out.Encode(message{Progress: p}) })
	if err != nil {
		return err
	}
	return out.Encode(message{Results: results})
}

// playPinned is "lab pinned -core N [-group FOLDER] [-namespace FILE] -- PROGRAM ARGUMENT…": it moves itself to the core, the control group
// and the network namespace, and becomes the program. What the program starts inherits all of it.
func playPinned(args []string) error {
	f := flag.NewFlagSet("pinned", flag.ContinueOnError)
	core := f.Int("core", 0, "")
	group := f.String("group", "", "")
	namespace := f.String("namespace", "", "")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() == 0 {
		return errors.New("no program")
	}
	program, err := exec.LookPath(f.Arg(0))
	if err != nil {
		return err
	}
	runtime.LockOSThread()
	var set unix.CPUSet
	set.Set(*core)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("pin to core %d: %w", *core, err)
	}
	if *group != "" {
		if err := os.WriteFile(*group+"/cgroup.procs", []byte(strconv.Itoa(os.Getpid())), 0); err != nil {
			return fmt.Errorf("join control group: %w", err)
		}
	}
	if *namespace != "" {
		if err := enter(*namespace); err != nil {
			return fmt.Errorf("enter network namespace: %w", err)
		}
	}
	return unix.Exec(program, f.Args(), os.Environ())
}

// enter moves the calling thread, which is about to become the whole process, into a network namespace.
func enter(namespace string) error {
	f, err := os.Open(namespace)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Setns(int(f.Fd()), unix.CLONE_NEWNET)
}

// raiseOpenFiles asks for as many open files as the lab can use and returns what it got. Children inherit the limit.
func raiseOpenFiles() (int, error) {
	want := unix.Rlimit{Cur: openFilesWanted, Max: openFilesWanted}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &want); err == nil {
		return openFilesWanted, nil
	}
	var have unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &have); err != nil {
		return 0, err
	}
	have.Cur = have.Max
	return int(have.Max), unix.Setrlimit(unix.RLIMIT_NOFILE, &have)
}

const openFilesWanted = 100_000
