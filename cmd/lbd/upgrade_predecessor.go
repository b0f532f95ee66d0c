package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"syscall"
	"time"

	"lbd/cluster/state"
	"lbd/lb/loop"
)

// This file is the heir's side of an upgrade: steps 1, 3, 7 and 9 of upgrade.go.

// upgradeFault is for a test build, which ends an heir at a step.
var upgradeFault = func(step string) error { return nil }

// predecessor is the process whose place this one takes. nil: there is none.
type predecessor struct {
	courier
	card *processCard
	log  *slog.Logger
	done bool // it has its answer
}

// meet looks for a process that serves the data directory, and asks it whether this one may take its place. What of this process's ports differs is
// bound now: until askFor nothing has happened.
func meet(cfg config, sockets *inherited, log *slog.Logger) (*predecessor, error) {
	p := &predecessor{log: log}
	path := upgradePath(cfg.dataDir)
	conn, err := net.DialTimeout("unix", path, upgradeAnswer)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, syscall.ENOTDIR) {
			log.Warn("it cannot be found out whether another lbd runs on the data directory", "err", err)
		}
		return nil, nil
	}
	p.conn = conn.(*net.UnixConn)
	err = p.send(letter{Step: stepHello, Process: cfg.thisProcess()}, upgradeAnswer)
	var welcome letter
	if err == nil {
		welcome, err = p.expect(stepWelcome, upgradeAnswer)
	}
	var refused *refusedStep
	switch {
	case errors.As(err, &refused):
		p.conn.Close()
		return nil, fmt.Errorf("another lbd runs on %s, and this one cannot take its place: %s", cfg.dataDir, refused.reason)
	case errors.Is(err, errEnded):
		p.conn.Close()
		return nil, nil // it ends at this moment: the lock of the directory is waited for
	case err != nil || welcome.Process == nil:
		p.conn.Close()
		return nil, fmt.Errorf("another lbd runs on %s and does not answer (%w): stop that one, or choose another data directory", cfg.dataDir, err)
	}
	p.card = welcome.Process
	if err = p.check(cfg, sockets); err == nil {
		err = upgradeFault(stepWelcome)
	}
	if err != nil {
		p.fail(err)
		return nil, err
	}
	log.Info("another lbd runs on the data directory: this one takes its place, and its listening sockets", "pid", p.card.Pid, "version", p.card.Version,
		"dir", cfg.dataDir, "control", kept(p.card.Control, cfg.control), "metrics", kept(p.card.Metrics, cfg.metrics))
	return p, nil
}

// kept says what becomes of an address.
func kept(before, now string) string {
	if before == now {
		return "as before"
	}
	return now + ", before " + before
}

// check is the heir's part of finding out whether this can be: what is stored can be read, and ports that are new can be had.
func (p *predecessor) check(cfg config, sockets *inherited) error {
	if p.card.Gate > state.GateMax || p.card.Format != state.Format {
		return fmt.Errorf("another lbd, version %s, runs on %s, and has stored there what this one does not know (gate %d, format %d; this one reads %d and %d): start a newer lbd",
			p.card.Version, cfg.dataDir, p.card.Gate, p.card.Format, state.GateMax, state.Format)
	}
	for _, port := range []struct{ use, before, now string }{{forControl, p.card.Control, cfg.control}, {forMetrics, p.card.Metrics, cfg.metrics}} {
		if port.now == port.before || port.now == "off" || len(sockets.match(port.use, port.use, port.now)) > 0 {
			continue
		}
		l, err := net.Listen("tcp", port.now)
		if err != nil {
			return fmt.Errorf("take the place of the lbd that runs on %s: --%s %s: %w", cfg.dataDir, port.use, port.now, err)
		}
		d, err := loop.DescriptorOf(l)
		_ = l.Close()
		if err != nil {
			return err
		}
		sockets.add(socketUse{For: port.use, Name: port.use, Address: port.now}, d)
	}
	return nil
}

// askFor asks for the seat, and takes the sockets. When it returns, the data directory is free.
func (p *predecessor) askFor(ctx context.Context, sockets *inherited, e *elders) error {
	if p == nil {
		return nil
	}
	defer context.AfterFunc(ctx, func() { _ = p.conn.SetReadDeadline(time.Now()) })()
	if err := p.send(letter{Step: stepTake}, upgradeAnswer); err != nil {
		return fmt.Errorf("take the place of process %d: %w", p.card.Pid, err)
	}
	if err := upgradeFault(stepTake); err != nil {
		return err
	}
	for count := 0; ; count++ {
		l, files, err := p.receive(upgradeLetGo)
		switch {
		case errors.Is(err, errEnded):
			p.log.Warn("the other lbd has ended while it handed over: this one starts without what is missing", "pid", p.card.Pid)
			p.done = true
			return nil
		case err != nil && ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			return fmt.Errorf("take the place of process %d: it does not let go: %w", p.card.Pid, err)
		}
		switch l.Step {
		case stepYours:
			p.log.Info("the other lbd has let go", "pid", p.card.Pid, "sockets", count)
			return upgradeFault(stepYours)
		case stepSocket:
			use, d, err := takeSocket(l, files)
			if err != nil {
				return fmt.Errorf("take the sockets of process %d: %w", p.card.Pid, err)
			}
			sockets.add(use, d)
			if err := upgradeFault(stepSocket); err != nil {
				return err
			}
		case stepControl:
			if len(files) != 1 {
				return errors.Join(fmt.Errorf("take what process %d hands over: the control socket did not come", p.card.Pid), closeAll(files))
			}
			sockets.control = os.NewFile(uintptr(files[0]), "control socket")
			count--
		case stepElder:
			if len(files) != 1 {
				return errors.Join(fmt.Errorf("take what process %d hands over: no way to process %d came", p.card.Pid, l.Pid), closeAll(files))
			}
			conn, err := connOf(files[0])
			if err != nil {
				return err
			}
			e.add(l.Pid, conn)
			count--
		default:
			return errors.Join(fmt.Errorf("take the place of process %d: %s", p.card.Pid, l.Reason), closeAll(files))
		}
	}
}

// awaitLeader gives an election the time that it takes.
func (p *predecessor) awaitLeader(ctx context.Context, node interface{ Leader() string }) {
	if p == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, upgradeLeader)
	defer cancel()
	for node.Leader() == "" && pause(ctx, 5*time.Millisecond) {
	}
}

// serves tells the predecessor that this process does, and waits until the service manager knows. From then on the predecessor is one of those that
// drain.
func (p *predecessor) serves(e *elders) {
	if p == nil || p.done {
		return
	}
	p.done = true
	err := p.send(letter{Step: stepReady}, upgradeAnswer)
	if err == nil {
		_, err = p.expect(stepMain, upgradeAnswer)
	}
	if err != nil { // it has ended, or ends: what it had is here
		p.log.Warn("the other lbd does not say that it has heard", "pid", p.card.Pid, "err", err)
		p.close()
		return
	}
	e.add(p.card.Pid, p.conn)
}

// notifier is the predecessor's service manager, where this process has none of its own.
func (p *predecessor) notifier(own *notifier, log *slog.Logger) *notifier {
	if p == nil || own != nil || p.card.Notify == "" {
		return own
	}
	return dialNotifier(p.card.Notify, p.card.Watchdog, log)
}

// fail gives the place back: the predecessor takes it when this process has none of its files open any more.
func (p *predecessor) fail(err error) {
	if p == nil || p.done {
		return
	}
	p.done = true
	reason := "it was told to end"
	if err != nil {
		reason = err.Error()
	}
	_ = p.send(letter{Step: stepFailed, Reason: reason[:min(len(reason), upgradeMessageMax/2)]}, upgradeAnswer)
	p.close()
}
