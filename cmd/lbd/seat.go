package main

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"

	"lbd/cluster"
	"lbd/cluster/rpc"
)

// seat is what only one process of a node can have at a time: the data directory with all that is kept there, the part in the cluster, and the
// ways into the control plane. The data plane does without it for as long as another process has it: see upgrade.go.
type seat struct {
	node    *cluster.Node
	keys    keys
	metrics *metricsServer
	control *control
	// sealKeeper sees to the sealing keys.
	sealKeeper *sealKeeper
	server     *rpc.Server // nil before serve

	stop context.CancelFunc // ends what the seat keeps
	kept sync.WaitGroup
}

// openSeat takes the seat, or says why it cannot be had.
//
//  1. the addresses of metrics and control port, so that a second lbd ends before it takes a connection
//  2. to which cluster the data directory belongs: a node that is to join one asks to be let in
//  3. the durable state and the sealing key
//  4. the journal, the node's certificate; other nodes are let in
//  5. raft; a dev node on an empty directory stores its embedded configuration
func openSeat(ctx context.Context, cfg *config, sockets *inherited, log *slog.Logger) (s *seat, err error) {
	s = &seat{stop: func() {}}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if s.metrics, err = openMetrics(sockets, cfg.metrics); err != nil {
		return s, err
	}
	if s.control, err = openControl(sockets, cfg); err != nil {
		return s, err
	}
	seed, err := cfg.enter(ctx, log)
	if err != nil {
		return s, err
	}
	about, err := s.control.prepare(*cfg, seed, log)
	if err != nil {
		return s, err
	}
	if s.node, s.keys, err = openState(ctx, *cfg, about, log); err != nil {
		return s, err
	}
	if err := cfg.checkMember(s.node, seed, log); err != nil {
		return s, err
	}
	s.sealKeeper = newSealKeeper(s.node, s.keys, s.control.ways(), log)
	s.control.begin(ctx, *cfg, s.node, s.keys, log)
	err = startState(ctx, *cfg, seed == nil && !hasOthers(s.node.State()), s.node, s.keys)
	if err == nil && seed != nil {
		cfg.awaitState(ctx, s.node, log)
	}
	return s, err
}

// serve answers on the control socket, the control port and for the metrics, and keeps what is to be kept of the data plane on disk.
func (s *seat) serve(ctx context.Context, a *appliance) (err error) {
	if s.server, err = s.control.serve(a.cfg, s.node, s.keys, a, a.log); err != nil {
		return err
	}
	s.metrics.serve(a, s.server, s.control.authority)
	ctx, s.stop = context.WithCancel(ctx)
	s.kept.Go(func() { a.newHealthKeeper().run(ctx) })
	s.kept.Go(func() { a.backups.run(ctx) })
	s.kept.Go(func() { keepNext(ctx, s.node, a.log) })
	s.kept.Go(func() { s.sealKeeper.run(ctx) })
	s.kept.Go(func() { a.fellows.run(ctx, s.node) })
	a.log.Info("the control socket takes calls", "socket", a.cfg.socket)
	return nil
}

// keepNext is for the test build that stands for the next version.
var keepNext = func(context.Context, *cluster.Node, *slog.Logger) {}

// close gives the seat up. Another process can have it when it returns. The node's state can be read for good.
func (s *seat) close() (err error) {
	if s.server != nil {
		err = s.server.Close()
	}
	s.stop()
	s.kept.Wait()
	if s.control != nil {
		err = errors.Join(err, s.control.close())
	}
	if s.metrics != nil {
		s.metrics.close()
	}
	if s.node != nil {
		err = errors.Join(err, s.node.Close())
	}
	return err
}

// take gives the appliance its seat, before it begins or while it does not run.
func (a *appliance) take(s *seat) {
	a.node, a.keys, a.control = s.node, s.keys, s.control
	a.ports = slices.Concat(portsOf("the control port", s.control.listener), portsOf("the metrics port", s.metrics.listener))
	a.backups = a.newBackupKeeper()
	a.keyMissing, s.sealKeeper.moved = s.sealKeeper.need, a.keysMoved
}

// takeAgain is take with another seat than before: the state may have moved on meanwhile.
func (a *appliance) takeAgain(s *seat) {
	a.drainer.end()
	a.drainer = nil
	a.take(s)
	a.overlay = a.overlay.again()
	a.followDrain()
	a.followTicketKeys()
	a.publish()
}
