package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// This file is the predecessor's side of an upgrade: steps 2, 4 to 6, 8 and 9 of upgrade.go, and the way back.

// knocksMax is how many may be at the door at a time: one heir, and who has to be told so.
const knocksMax = 4

// takeBackPause is between two attempts to have the seat again.
const takeBackPause = time.Second

// heir is a process that takes this one's place.
type heir struct {
	courier
	pid  int // 0: the kernel did not say
	card *processCard
}

// door is where an heir knocks: upgrade.sock in the data directory. A nil one is closed.
type door struct {
	listener *net.UnixListener
	path     string
	file     os.FileInfo
	log      *slog.Logger
	// welcome is what this process says of itself, refusal why an heir cannot be one; empty: it can.
	welcome func() *processCard
	refusal func(h *heir) string

	heirs chan *heir
	slots chan struct{}
	ended chan struct{}
	done  sync.WaitGroup

	mu    sync.Mutex
	heir  *heir // the one that is let in
	conns map[*net.UnixConn]bool
}

// openDoor makes the socket, in the place of a predecessor's. Without one lbd serves all the same.
func openDoor(dataDir string, log *slog.Logger, welcome func() *processCard, refusal func(*heir) string) *door {
	d := &door{
		path: upgradePath(dataDir), log: log, welcome: welcome, refusal: refusal, heirs: make(chan *heir),
		slots: make(chan struct{}, knocksMax), ended: make(chan struct{}), conns: map[*net.UnixConn]bool{},
	}
	if err := d.listen(); err != nil {
		log.Warn("no other lbd can take this one's place while it runs: an upgrade is a restart", "err", err)
		return nil
	}
	d.done.Go(d.accept)
	return d
}

// listen makes the socket beside its place, closed to others, and moves it there: there is always one that answers.
func (d *door) listen() error {
	fresh := d.path + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: fresh, Net: "unix"})
	if err != nil {
		return err
	}
	l.SetUnlinkOnClose(false)
	err = os.Chmod(fresh, 0o600)
	if err == nil {
		d.file, err = os.Lstat(fresh)
	}
	if err == nil {
		err = os.Rename(fresh, d.path)
	}
	if err != nil {
		return errors.Join(err, l.Close(), os.Remove(fresh))
	}
	d.listener = l
	return nil
}

// accept lets in who knocks, until the door is closed.
func (d *door) accept() {
	for {
		select {
		case d.slots <- struct{}{}:
		case <-d.ended:
			return
		}
		c, err := d.listener.AcceptUnix()
		if err != nil {
			select {
			case <-d.ended:
				return
			case <-time.After(100 * time.Millisecond): // no files
				<-d.slots
				continue
			}
		}
		d.mu.Lock()
		d.conns[c] = true
		d.mu.Unlock()
		select {
		case <-d.ended: // close has not seen it
			_ = c.Close()
		default:
		}
		d.done.Go(func() {
			defer func() { <-d.slots }()
			h := &heir{courier: courier{conn: c}}
			if !d.answer(h) {
				d.forget(c)
				h.close()
			}
		})
	}
}

func (d *door) forget(c *net.UnixConn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.conns, c)
}

// answer hears who knocks and what for. It returns true when follow has the heir.
func (d *door) answer(h *heir) bool {
	pid, uid, err := whoKnocks(h.conn)
	if err != nil || uid != 0 && int(uid) != os.Geteuid() {
		return false
	}
	hello, err := h.expect(stepHello, upgradeAnswer)
	if err != nil || hello.Process == nil {
		return false
	}
	h.pid, h.card = pid, hello.Process
	reason := d.letIn(h)
	if reason == "" {
		if reason = d.refusal(h); reason != "" {
			d.letGo()
		}
	}
	if reason != "" {
		d.log.Warn("another lbd wants this one's place and does not get it", "pid", h.pid, "version", h.card.Version, "reason", reason)
		_ = h.send(letter{Step: stepRefused, Reason: reason}, upgradeAnswer)
		return false
	}
	err = h.send(letter{Step: stepWelcome, Process: d.welcome()}, upgradeAnswer)
	if err == nil {
		_, err = h.expect(stepTake, upgradeDecide)
	}
	if err != nil {
		d.log.Warn("another lbd wanted this one's place and has changed its mind", "pid", h.pid, "version", h.card.Version, "reason", err)
		d.letGo()
		return false
	}
	d.forget(h.conn)
	select {
	case d.heirs <- h:
		return true
	case <-d.ended:
		_ = h.send(letter{Step: stepRefused, Reason: "it ends"}, upgradeAnswer)
		d.letGo()
		return false
	}
}

// letIn lets one heir in. It says why not.
func (d *door) letIn(h *heir) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.heir != nil {
		return fmt.Sprintf("process %d takes its place at this moment", d.heir.pid)
	}
	d.heir = h
	return ""
}

// letGo is called when an heir has not become one.
func (d *door) letGo() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.heir = nil
}

// knocked gives out the heir that has decided.
func (d *door) knocked() <-chan *heir {
	if d == nil {
		return nil
	}
	return d.heirs
}

// close takes the socket away, unless another process has put its own there, and returns when nobody is at the door.
func (d *door) close() {
	if d == nil {
		return
	}
	close(d.ended)
	_ = d.listener.Close()
	if now, err := os.Lstat(d.path); err == nil && os.SameFile(now, d.file) {
		_ = os.Remove(d.path)
	}
	d.mu.Lock()
	for c := range d.conns {
		_ = c.Close()
	}
	d.mu.Unlock()
	d.done.Wait()
}

// unfit says why a process cannot take this one's place.
func (p *process) unfit(h *heir) string {
	switch committed := p.appliance.node.State().Gate(); {
	case h.card.Protocol != upgradeProtocol:
		return "its version hands over in another way: stop it, and start this one"
	case h.card.Gate < committed:
		return fmt.Sprintf("the cluster writes what only builds of gate %d read, and this one reads %d: start a newer lbd", committed, h.card.Gate)
	case h.card.Format != p.cfg.thisProcess().Format:
		return fmt.Sprintf("the state is stored in format %d, and this one reads %d", p.cfg.thisProcess().Format, h.card.Format)
	case p.manager != nil && h.pid > 0 && !sameService(h.pid):
		return "it is a service: upgrade it with `systemctl reload`"
	}
	if n := p.elders.count(); n >= generationsMax {
		return fmt.Sprintf("%d processes before it still end their requests (%s): try again when the oldest has reached its deadline", n, p.elders)
	}
	return ""
}

// giveWay lets an heir have this process's place, and reports whether it has it. The data plane serves all the while. p.seat is nil
// afterwards, unless the heir did not even come so far.
func (p *process) giveWay(ctx context.Context, h *heir) bool {
	p.log.Info("another lbd takes this one's place", "pid", h.pid, "version", h.card.Version)
	p.manager.tell(fmt.Sprintf("STATUS=hands over to process %d, version %s", h.pid, h.card.Version))
	p.appliance.handOverLead(ctx)
	sockets, err := p.appliance.handOver(p.seat.metrics)
	if err != nil {
		p.log.Error("the listening sockets cannot be handed over: this process goes on", "err", err)
		_ = h.send(letter{Step: stepFailed, Reason: err.Error()}, upgradeAnswer)
		h.close()
		p.door.letGo()
		return false
	}
	socket, err := p.seat.server.LeaveSocket()
	if err != nil {
		p.log.Warn("who calls by the control socket finds nobody for a moment", "err", err)
	}
	if err := p.seat.close(); err != nil {
		p.log.Warn("close what is handed over", "err", err)
	}
	p.seat = nil
	if err = p.handOver(h, sockets, socket); err == nil || errors.Is(err, errEnded) { // it may have said why
		err = h.serves(ctx)
	}
	if err == nil {
		p.quiet()
		p.quiet = func() {}
		p.manager.passOn(h.pid)
		_ = h.send(letter{Step: stepMain}, upgradeAnswer)
		closeSockets(sockets)
		_ = socket.Close() // nil is no harm
		p.successor = h
		p.log.Info("another lbd serves in this one's place: this one ends its requests", "pid", h.pid, "version", h.card.Version)
		return true
	}
	if ctx.Err() != nil { // told to end: the heir has what it needs to go on alone
		closeSockets(sockets)
		_ = socket.Close()
		h.close()
		return false
	}
	p.log.Error("the other lbd does not serve: this process goes on", "pid", h.pid, "version", h.card.Version, "err", err)
	h.end(err)
	p.reclaim(sockets)
	p.sockets.control = socket
	return false
}

// handOver sends what the heir needs.
func (p *process) handOver(h *heir, sockets []handedSocket, control *os.File) error {
	if err := p.elders.send(&h.courier); err != nil {
		return err
	}
	if control != nil {
		if err := h.sendOf(letter{Step: stepControl}, control); err != nil {
			return err
		}
	}
	if err := h.sendSockets(sockets); err != nil {
		return err
	}
	return h.send(letter{Step: stepYours}, upgradeAnswer)
}

// serves waits until the heir does. It ends early with ctx.
func (h *heir) serves(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { _ = h.conn.SetReadDeadline(time.Now()) })()
	_, err := h.expect(stepReady, upgradeReady)
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// end makes sure that an heir without success does not hold the seat: one that is stuck is killed. The connection is open, so the process is
// the one that knocked.
func (h *heir) end(cause error) {
	if errors.Is(cause, os.ErrDeadlineExceeded) && h.pid > 0 {
		_ = syscall.Kill(h.pid, syscall.SIGKILL)
	}
	h.close()
}

// reclaim keeps the sockets of control port and metrics for the seat that is opened again; the data plane has its own all the time.
func (p *process) reclaim(sockets []handedSocket) {
	for _, s := range sockets {
		if s.use.For == forControl || s.use.For == forMetrics {
			p.sockets.add(s.use, s.descriptor)
			continue
		}
		_ = s.descriptor.Close()
	}
}

func closeSockets(all []handedSocket) {
	for _, s := range all {
		_ = s.descriptor.Close()
	}
}

// takeBack opens the seat again, until it has it or ctx ends. stopRun ends the run of the appliance, which has served without it.
func (p *process) takeBack(ctx context.Context, stopRun func()) {
	said := ""
	for ctx.Err() == nil {
		s, err := openSeat(ctx, &p.cfg, p.sockets, p.log)
		if err == nil {
			stopRun()
			p.appliance.takeAgain(s)
			if err = s.serve(ctx, p.appliance); err == nil {
				p.seat = s
				p.sockets.settle()
				p.door.letGo()
				p.log.Info("this process has its place back")
				p.manager.ready(p.appliance.Progress())
				return
			}
			err = errors.Join(err, s.close())
		}
		if text := err.Error(); text != said && ctx.Err() == nil {
			said = text
			p.log.Error("this node serves what it has, without its control plane: its place is tried again", "err", err)
		}
		pause(ctx, takeBackPause)
	}
}

// elders are the processes before this one that still drain.
type elders struct {
	log  *slog.Logger
	done sync.WaitGroup

	mu     sync.Mutex
	all    []*elder // oldest first
	closed bool
}

// add keeps an eye on one, until it ends.
func (e *elders) add(pid int, conn *net.UnixConn) {
	one := &elder{pid, conn}
	e.mu.Lock()
	e.all = append(e.all, one)
	e.mu.Unlock()
	e.done.Go(func() {
		_ = conn.SetReadDeadline(time.Time{})
		_, _ = conn.Read(make([]byte, 1)) // nothing comes any more but the end
		e.mu.Lock()
		defer e.mu.Unlock()
		for i, other := range e.all {
			if other == one {
				e.all = append(e.all[:i:i], e.all[i+1:]...)
			}
		}
		_ = conn.Close()
		if !e.closed {
			e.log.Info("a process before this one has ended", "pid", pid)
		}
	})
}

func (e *elders) count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.all)
}

// String lists them.
func (e *elders) String() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	text := ""
	for i, one := range e.all {
		if i > 0 {
			text += ", "
		}
		text += fmt.Sprint(one.pid)
	}
	return text
}

// send sends the connections to them.
func (e *elders) send(c *courier) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, one := range e.all {
		if err := c.sendOf(letter{Step: stepElder, Pid: one.pid}, one.conn); err != nil {
			return err
		}
	}
	return nil
}

// close lets them be: they end by themselves.
func (e *elders) close() {
	e.mu.Lock()
	e.closed = true
	for _, one := range e.all {
		_ = one.conn.Close()
	}
	e.mu.Unlock()
	e.done.Wait()
}
