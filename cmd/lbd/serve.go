package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"lbd/cluster"
	"lbd/cluster/rpc"
	"lbd/cluster/state"
	"lbd/health"
	"lbd/lb"
	"lbd/lb/loop"
	lbdv1 "lbd/proto/lbd/v1"
	tlsterm "lbd/tls"
)

// process is one lbd, from its start to its end. Its data plane may serve longer than it has its seat.
type process struct {
	cfg       config
	log       *slog.Logger
	manager   *notifier
	sockets   *inherited
	seat      *seat // nil: another process has it, or is to have it
	appliance *appliance
	door      *door
	elders    *elders
	successor *heir  // has this process's place; nil: nobody
	quiet     func() // ends the pulse
}

// serve is one node's life. It returns when the node has ended as it was asked to, or could not start.
//
//  1. the process: open files, processors, garbage collector; listening sockets that it was left
//  2. another lbd that runs on the data directory makes way: see upgrade.go
//  3. the seat: the durable state and the sealing key, the control port and the metrics: see seat.go
//  4. the data plane serves the stored revision; no election is waited for
//  5. the control socket, the control port and the metrics answer
//  6. ready, which the service manager is told, as from then on that the node is alive; follow changes until a signal, or until another
//     lbd has this one's place
//  7. drain, and close in reverse
func serve(ctx context.Context, cfg config) (err error) {
	ctx, stop := signal.NotifyContext(ctx, endSignals(cfg.dev)...)
	defer stop()
	own := newOwnLog(cfg.logLevel, os.Stderr)
	log := own.Logger
	p := &process{cfg: cfg, log: log, manager: openNotifier(log), sockets: inheritFromManager(log), elders: &elders{log: log}, quiet: func() {}}
	defer p.close()
	prepareProcess(log)
	limitMemory(log)
	pace := paceCollector()
	defer pace.close()

	before, err := meet(p.cfg, p.sockets, log)
	if err != nil {
		return err
	}
	defer func() { before.fail(err) }()
	if err = before.askFor(ctx, p.sockets, p.elders); err == nil {
		p.seat, err = openSeat(ctx, &p.cfg, p.sockets, log)
	}
	if err == nil {
		err = upgradeFault("seat")
	}
	if errors.Is(err, context.Canceled) {
		return nil // a signal came before there was anything to serve
	}
	if err != nil {
		return err
	}
	defer closeWith(&err, p.giveUp)

	p.cfg.held = before != nil
	a, err := newAppliance(p.cfg, log, p.seat.node, p.seat.keys)
	if err != nil {
		return err
	}
	defer a.close()
	defer closeWith(&err, p.giveUp) // before the data plane
	p.appliance = a
	a.own, a.sockets = own, p.sockets
	a.take(p.seat)
	a.begin()
	if err := a.startError(); err != nil {
		return err
	}
	if err := upgradeFault("published"); err != nil {
		return err
	}
	before.awaitLeader(ctx, p.seat.node)
	if err := p.seat.serve(ctx, a); err != nil {
		return err
	}
	if err := upgradeFault("serves"); err != nil {
		return err
	}

	p.ready(ctx, before)
	handedOver := p.follow(ctx)
	p.door.close()
	if !handedOver {
		p.manager.stopping(a.leaveMax())
	}
	again, ignore := signal.NotifyContext(context.Background(), endSignals(cfg.dev)...)
	defer ignore()
	stop()
	a.leave(again, handedOver)
	return nil
}

// ready says that this process serves, to all who wait for it.
func (p *process) ready(ctx context.Context, before *predecessor) {
	p.manager = before.notifier(p.manager, p.log)
	p.door = openDoor(p.cfg.dataDir, p.log, p.card, p.unfit)
	before.serves(p.elders)
	p.appliance.server.BeginAccepting()
	fmt.Fprintf(os.Stderr, "lbd ready revision=%d\n", p.appliance.current.revision)
	p.cfg.background.ready()
	p.manager.ready(p.appliance.Progress())
	p.sockets.settle()
	p.appliance.advise()
	p.quiet = p.appliance.pulseFor(p.manager, ctx.Done())
}

// follow follows changes, until ctx ends, or until another process has this one's place: then it returns true.
func (p *process) follow(ctx context.Context) (handedOver bool) {
	end := p.run(ctx)
	defer func() { end() }()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-p.removed():
			p.forget(ctx)
			return false
		case h := <-p.door.knocked():
			switch {
			case p.giveWay(ctx, h):
				return true
			case p.seat == nil:
				p.takeBack(ctx, end)
				end = p.run(ctx)
			}
		}
	}
}

// run has the appliance run until ctx ends or the function that it returns is called, which waits for it.
func (p *process) run(ctx context.Context) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { p.appliance.run(ctx) })
	return func() {
		cancel()
		running.Wait()
	}
}

// giveUp gives the seat up, if this process has it.
func (p *process) giveUp() error {
	s := p.seat
	if p.seat = nil; s == nil {
		return nil
	}
	return s.close()
}

// close is the last thing that this process does.
func (p *process) close() {
	p.quiet()
	p.manager.close()
	p.sockets.close()
	p.elders.close()
	if p.successor != nil {
		p.successor.close()
	}
}

// card is what this process says of itself to one that is to take its place.
func (p *process) card() *processCard {
	c := p.cfg.thisProcess()
	c.Gate = p.appliance.node.State().Gate()
	c.Notify, c.Watchdog = p.manager.address()
	return c
}

// endSignals are those that end a node. SIGHUP asks a service to read its files again: there is nothing to read, and so it is ignored; a dev
// node gets it when its terminal is closed.
func endSignals(dev bool) []os.Signal {
	if dev {
		return []os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP}
	}
	signal.Ignore(syscall.SIGHUP)
	return []os.Signal{syscall.SIGTERM, syscall.SIGINT}
}

// closeWith keeps the first error.
func closeWith(err *error, closer func() error) {
	if cerr := closer(); *err == nil {
		*err = cerr
	}
}

func prepareProcess(log *slog.Logger) {
	if n, err := loop.RaiseOpenFiles(); err != nil {
		log.Warn("cannot raise the limit of open files", "limit", n, "err", err)
	}
	if err := forbidDumps(); err != nil {
		log.Warn("core files of this process may hold private keys", "err", err)
	}
	if err := forbidPrivileges(); err != nil {
		log.Warn("programs that this process starts may gain rights", "err", err)
	}
	signal.Ignore(syscall.SIGPIPE) // whoever read our standard output may leave; traffic goes on
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(loop.Procs(0))
	}
}

// openState opens what is kept on disk.
func openState(ctx context.Context, cfg config, from cluster.Config, log *slog.Logger) (*cluster.Node, keys, error) {
	node, err := cluster.Open(from)
	if err != nil {
		return nil, keys{}, err
	}
	k, err := openKeys(ctx, cfg, node.State(), log)
	if err == nil && from.Network == nil && hasOthers(node.State()) {
		err = errors.New("this node has others beside it, and needs a control port by which they reach it: give --control HOST:PORT")
	}
	if err != nil {
		return nil, keys{}, errors.Join(err, node.Close())
	}
	return node, k, nil
}

// startState joins it to Raft. A dev node on an empty directory that is alone stores its embedded configuration.
func startState(ctx context.Context, cfg config, alone bool, node *cluster.Node, k keys) error {
	err := node.Start()
	if err == nil && cfg.dev && alone && node.State().Revision() == 0 {
		err = beginDev(ctx, node, k)
	}
	return err
}

func newAppliance(cfg config, log *slog.Logger, node *cluster.Node, k keys) (*appliance, error) {
	choice, err := cfg.firstChoice(node.State(), log)
	if err != nil {
		return nil, err
	}
	engine, err := loop.New(loop.Options{Logger: log})
	if err != nil {
		return nil, err
	}
	access, err := cfg.openAccessLog(engine.Loops(), log)
	if err != nil {
		return nil, errors.Join(err, engine.Close())
	}
	certificates := tlsterm.NewCertificates()
	keys := newTicketKeys()
	terminator := tlsterm.NewTerminator(certificates, keys.tickets)
	a := &appliance{
		cfg: cfg, log: log, node: node, keys: k,
		engine:       engine,
		access:       access,
		overlay:      openOverlay(cfg.dataDir, log),
		traffic:      newTraffic(),
		certificates: certificates,
		terminator:   terminator,
		ticketKeys:   keys,
		resolver:     newResolver(log),
		current:      newCompiled(),
		down:         map[string]map[string]bool{},
		bound:        map[string]listener{},
		refused:      map[state.Key]rpc.Refusal{},
		choice:       choice,
		started:      time.Now(),
		keyless:      map[string]bool{},
		rekeyed:      make(chan struct{}, 1),
		pulse:        make(chan struct{}),
		events:       newEvents(cfg.node),
		publishTimes: newPublishTimes(),
	}
	a.fellows = newFellows(a.events)
	a.registry = a.newRegistry()
	a.server = lb.NewServer(lb.Options{
		Engine: engine, Terminator: terminator, Logger: log, AccessLog: access.recorder(), Node: cfg.node, OnEvent: a.tellTraffic, Held: cfg.held,
		Inherit: func(listener, address string) []*loop.Descriptor { return a.sockets.find(listener, address) },
	})
	saved, err := readHealth(cfg.dataDir)
	if err != nil {
		log.Warn("backends count as their checks' start says until they are asked", "err", err)
	}
	a.prober = health.New(health.Options{Dial: a.dialCheck, ExplainTLS: tlsterm.ExplainBackendError, Saved: saved})
	return a, nil
}

// startError makes a start fail plainly where no listener at all can be bound: most likely another lbd has them.
func (a *appliance) startError() error {
	if len(a.bound) > 0 {
		return nil
	}
	var reasons []string
	for k, r := range a.refused {
		if k.Kind == state.Listeners {
			reasons = append(reasons, r.Reason)
		}
	}
	if len(reasons) == 0 {
		return nil
	}
	slices.Sort(reasons)
	return fmt.Errorf("no listener can be bound: %s: stop who holds them, or give this node addresses of its own with --listen NAME=HOST:PORT",
		strings.Join(reasons, "; "))
}

// advise says what an operator may have overlooked: that nothing is served, that a flag names nothing.
func (a *appliance) advise() {
	for name, address := range a.cfg.listen {
		if _, ok := a.current.listeners[name]; !ok {
			a.log.Warn("--listen names a listener that is not stored; its address is used once it is", "listener", name, "address", address)
		}
	}
	if len(a.current.listeners) == 0 {
		a.log.Info("nothing is served yet: apply a document, for example `lbctl init --name web --backend HOST:PORT | lbctl apply -f - --wait`", "socket", a.cfg.socket)
	}
}

func (a *appliance) close() {
	var wg sync.WaitGroup
	wg.Go(a.prober.Close)
	wg.Go(a.resolver.close)
	wg.Wait()
	if err := a.engine.Close(); err != nil {
		a.log.Error("close the engine", "err", err)
	}
	a.access.close() // nothing is recorded any more
}

func buildProto() *lbdv1.GetVersionResponse {
	b := readBuild()
	return &lbdv1.GetVersionResponse{Version: b.version, GoVersion: b.goVersion, Platform: b.platform, Commit: b.commit}
}
