package main

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"lbd/cluster"
	"lbd/cluster/rpc"
	"lbd/cluster/state"
	"lbd/health"
	"lbd/lb"
	"lbd/lb/loop"
	tlsterm "lbd/tls"
)

const (
	// coalesce is how long a burst of revisions is gathered, so that each is not compiled alone.
	coalesce = 20 * time.Millisecond
	// rebindInterval is how often a listener that could not be bound is tried again.
	rebindInterval = 5 * time.Second
)

// appliance is one node at work: the control plane's state on one side, the data plane on the other. Only its run method
// changes what the data plane serves.
type appliance struct {
	cfg  config
	log  *slog.Logger
	node *cluster.Node
	keys keys

	engine       *loop.Engine
	access       *accessLog // nil: off
	server       *lb.Server
	certificates *tlsterm.Certificates
	terminator   *tlsterm.Terminator
	prober       *health.Prober
	resolver     *resolver

	// Only run.
	current *compiled
	bound   map[string]listener // what the server has of each listener: not the stored form while that is refused
	refused map[state.Key]rpc.Refusal

	view        atomic.Pointer[compiled] // what run serves now, for those who ask
	started     time.Time
	observation observation

	publishTimes *prometheus.HistogramVec
}

// observation is what run tells the control plane of itself.
type observation struct {
	mu       sync.Mutex
	progress rpc.Progress
	changed  chan struct{} // closed when progress has moved
}

// run follows the state, the health of backends and the addresses of their names, until ctx ends.
func (a *appliance) run(ctx context.Context) {
	rebind := time.NewTicker(rebindInterval)
	defer rebind.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.node.Changed():
			a.gather(ctx)
			a.publish()
		case <-a.prober.Flipped():
			a.followHealth()
		case <-a.resolver.moved:
			a.followNames()
		case <-rebind.C:
			a.retryListeners()
		}
	}
}

// gather lets a burst of revisions come in, but not of health: a flip is followed at once.
func (a *appliance) gather(ctx context.Context) {
	t := time.NewTimer(coalesce)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.prober.Flipped():
			a.followHealth()
		case <-t.C:
			return
		}
	}
}

// followHealth passes flipped checks on to the pools.
func (a *appliance) followHealth() {
	defer a.containPanic(a.current.revision)
	for _, key := range a.prober.TakeFlipped() {
		status, ok := a.prober.Status(key)
		if !ok {
			continue
		}
		a.server.SetEligible(string(key), status.State.Eligible())
		a.log.Info("backend changed", "check", string(key), "state", status.State.String(), "err", status.LastError)
	}
}

// followNames gives pools the addresses that their backends' names have now.
func (a *appliance) followNames() {
	defer a.containPanic(a.current.revision)
	next := a.current.clone()
	for name, p := range next.pools {
		for _, b := range p.backends {
			if _, literal := parseLiteral(b.address); !literal {
				next.pools[name] = a.servePool(name, p)
				break
			}
		}
	}
	table, err := a.newTable(next)
	if err != nil {
		a.log.Error("cannot follow a backend's name", "err", err)
		return
	}
	a.server.SetTable(table)
	a.current = next
	a.view.Store(next)
}

// report tells the control plane what is served now.
func (a *appliance) report() {
	refused := make([]rpc.Refusal, 0, len(a.refused))
	for _, r := range a.refused {
		refused = append(refused, r)
	}
	a.view.Store(a.current)
	a.observation.set(rpc.Progress{Serving: true, Revision: a.current.revision, Refused: refused})
}

func (o *observation) set(p rpc.Progress) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.changed != nil {
		close(o.changed)
	}
	o.changed = make(chan struct{})
	p.Changed = o.changed
	o.progress = p
}

func (o *observation) get() rpc.Progress {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.progress
}
