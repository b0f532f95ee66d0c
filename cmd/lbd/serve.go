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

// serve is one node's life. It returns when the node has ended as it was asked to, or could not start.
//
//  1. the process: open files, processors, garbage collector
//  2. the durable state and the sealing key; a dev node on an empty directory stores its embedded configuration; the
//     addresses of metrics and control port, so that a second lbd ends before it takes a connection
//  3. the data plane serves the stored revision; no election is waited for
//  4. the control socket, the control port and the metrics answer
//  5. ready, which the service manager is told, as from then on that the node is alive; follow changes until a signal
//  6. drain, and close in reverse
func serve(ctx context.Context, cfg config) (err error) {
	ctx, stop := signal.NotifyContext(ctx, endSignals(cfg.dev)...)
	defer stop()
	own := newOwnLog(cfg.logLevel, os.Stderr)
	log := own.Logger
	manager := openNotifier(log)
	defer manager.close()
	prepareProcess(log)
	limitMemory(log)
	pace := paceCollector()
	defer pace.close()

	node, k, err := openState(ctx, cfg, log)
	if errors.Is(err, context.Canceled) {
		return nil // a signal came before there was anything to serve
	}
	if err != nil {
		return err
	}
	defer closeWith(&err, node.Close)
	metrics, err := openMetrics(cfg.metrics)
	if err != nil {
		return err
	}
	defer metrics.close()
	control, err := openControl(&cfg)
	if err != nil {
		return err
	}
	defer closeWith(&err, control.close)
	control.begin(ctx, cfg, node, k, log)

	a, err := newAppliance(cfg, log, node, k)
	if err != nil {
		return err
	}
	defer a.close()
	a.own, a.control = own, control
	a.ports = slices.Concat(portsOf("the control port", control.listener), portsOf("the metrics port", metrics.listener))
	a.backups = a.newBackupKeeper()
	a.begin()
	if err := a.startError(); err != nil {
		return err
	}

	server, err := control.serve(cfg, node, k, a, log)
	if err != nil {
		return err
	}
	defer closeWith(&err, server.Close)
	metrics.serve(a, server, control.authority)

	log.Info("the control socket takes calls", "socket", cfg.socket)
	fmt.Fprintf(os.Stderr, "lbd ready revision=%d\n", a.current.revision)
	manager.ready(a.Progress())
	a.advise()
	defer a.pulseFor(manager, ctx.Done())()
	var keeper sync.WaitGroup
	keeper.Go(func() { a.newHealthKeeper().run(ctx) })
	keeper.Go(func() { a.backups.run(ctx) })
	a.run(ctx)
	keeper.Wait()
	manager.stopping()
	again, ignore := signal.NotifyContext(context.Background(), endSignals(cfg.dev)...)
	defer ignore()
	stop()
	a.drain(again)
	return nil
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

// openState opens what is kept on disk and joins it to Raft.
func openState(ctx context.Context, cfg config, log *slog.Logger) (*cluster.Node, keys, error) {
	node, err := cluster.Open(cluster.Config{Dir: cfg.dataDir, Node: cfg.node, Logger: log})
	if err != nil {
		return nil, keys{}, err
	}
	k, err := openKeys(ctx, cfg, node.State(), log)
	if err == nil {
		err = node.Start()
	}
	if err == nil && cfg.dev && node.State().Revision() == 0 {
		err = beginDev(ctx, node, k)
	}
	if err != nil {
		return nil, keys{}, errors.Join(err, node.Close())
	}
	return node, k, nil
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
	terminator := tlsterm.NewTerminator(certificates)
	a := &appliance{
		cfg: cfg, log: log, node: node, keys: k,
		engine:       engine,
		access:       access,
		certificates: certificates,
		terminator:   terminator,
		resolver:     newResolver(log),
		current:      newCompiled(),
		down:         map[string]map[string]bool{},
		bound:        map[string]listener{},
		refused:      map[state.Key]rpc.Refusal{},
		choice:       choice,
		started:      time.Now(),
		pulse:        make(chan struct{}),
		events:       newEvents(cfg.node),
		publishTimes: newPublishTimes(),
	}
	a.registry = a.newRegistry()
	a.server = lb.NewServer(lb.Options{
		Engine: engine, Terminator: terminator, Logger: log, AccessLog: access.recorder(), Node: cfg.node, OnEvent: a.tellTraffic,
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

// drain lets requests end, for as long as the configuration grants, and gives up on them at the second signal.
func (a *appliance) drain(again context.Context) {
	a.observation.set(rpc.Progress{Revision: a.current.revision})
	ctx, cancel := context.WithTimeout(again, a.cfg.grace)
	defer cancel()
	if err := a.server.Drain(ctx); err != nil && a.cfg.grace > 0 {
		a.log.Warn("requests were cut off", "err", err)
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
