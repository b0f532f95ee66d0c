package main

import (
	"context"
	"log/slog"
	"slices"
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
	cfg   config
	log   *slog.Logger
	node  *cluster.Node
	keys  keys
	ports []port // this node's own, beside those of its listeners
	// backups is nil where none are made by themselves, as in tests.
	backups *backupKeeper
	overlay *overlay // what was said on this node alone
	traffic *traffic // what this node does with it
	fellows *fellows // what was told of the other nodes
	sockets *inherited
	// keyMissing asks for a sealing key that is not here; nil: nobody can be asked. It does not wait.
	keyMissing func(id string)
	// own is nil where the log is somebody else's, as in tests.
	own *ownLog
	// control is nil where nothing but the socket is asked for, as in tests.
	control *control

	engine       *loop.Engine
	access       *accessLog // nil: off
	server       *lb.Server
	certificates *tlsterm.Certificates
	terminator   *tlsterm.Terminator
	ticketKeys   *ticketKeys
	prober       *health.Prober
	resolver     *resolver

	// Only run.
	current   *compiled
	down      map[string]map[string]bool // by pool and address: what checks speak against, as it was told last
	bound     map[string]listener        // what the server has of each listener: not the stored form while that is refused
	refused   map[state.Key]rpc.Refusal
	keyless   map[string]bool // certificates that wait for a sealing key
	choice    choice          // which revision is served in place of the newest
	compiling state.Key       // what a panic is blamed on
	drainer   *drainer        // nil: this node is not drained
	expiry    time.Time       // when the next override ends; zero: none does

	pulse       chan struct{}            // run takes what is sent here, to show that it is not stuck
	view        atomic.Pointer[compiled] // what run serves now, for those who ask
	started     time.Time
	leaving     atomic.Bool   // leave has begun
	rekeyed     chan struct{} // one slot, for run: another sealing key is here
	observation observation
	events      *events

	publishTimes *prometheus.HistogramVec
	registry     *prometheus.Registry
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
	var logged time.Time // of the last event that was looked at
	var happened <-chan struct{}
	for {
		expired := a.untilExpiry()
		logged, happened = a.logTraffic(logged)
		select {
		case <-ctx.Done():
			return
		case <-a.node.Changed():
			a.gather(ctx)
			a.followDrain()
			a.followTicketKeys()
			a.publish()
		case <-a.prober.Flipped():
			a.followHealth()
		case <-a.resolver.moved:
			a.followNames()
		case <-expired:
			a.publish()
		case <-a.overlay.wake():
			a.publish()
		case <-a.traffic.moved:
			a.report()
		case <-a.rekeyed:
			a.followTicketKeys()
			a.publish()
		case <-happened:
		case <-a.pulse:
		case <-rebind.C:
			a.retryListeners()
			a.watchTicketKeys(time.Now())
		}
	}
}

// untilExpiry fires when an override ends by itself; it never does while none will.
func (a *appliance) untilExpiry() <-chan time.Time {
	if a.expiry.IsZero() {
		return nil
	}
	return time.After(time.Until(a.expiry))
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

// followHealth passes flipped checks on to the backends that are asked so.
func (a *appliance) followHealth() {
	defer a.survive("following the health of backends")
	eligible := map[health.Key]bool{}
	for _, key := range a.prober.TakeFlipped() {
		if status, ok := a.prober.Status(key); ok {
			eligible[key] = status.State.Eligible()
		}
	}
	for name, p := range a.current.pools {
		for _, b := range p.backends {
			if b.check == nil {
				continue
			}
			up, flipped := eligible[b.checkKey]
			if !flipped {
				continue
			}
			a.server.SetEligible(name, b.key, up)
			if a.down[name][b.address] == up { // the first answer of one that counted as up already is no news
				a.down[name][b.address] = !up
				a.tellHealth(name, b)
			}
		}
	}
}

// tellHealth is the event and the log line of a flip.
func (a *appliance) tellHealth(pool string, b backend) {
	status, _ := a.prober.Status(b.checkKey)
	kind, message := "backend_up", "answers its checks"
	if !status.State.Eligible() {
		kind, message = "backend_down", status.LastError
	}
	a.events.add(kind, "pools/"+pool+"/"+b.address, message)
	a.log.Info("backend changed", "pool", pool, "backend", b.address, "state", status.State.String(), "err", status.LastError)
}

// followNames gives pools the addresses that their backends' names have now, and takes away those that are this node itself by now.
func (a *appliance) followNames() {
	defer a.survive("following the names of backends")
	moved := map[string]bool{}
	for name, p := range a.current.pools {
		if !slices.EqualFunc(a.current.placesOf(p, a.resolver), p.backends, backend.samePlace) {
			moved[name] = true
		}
	}
	if len(moved) == 0 {
		return
	}
	next := a.current.clone()
	next.findMembers(moved, a.resolver)
	a.prober.Set(next.checks())
	table, err := a.compileTable(next, nil, moved)
	if err != nil {
		a.log.Error("cannot follow a backend's name", "err", err)
		a.keep(a.current)
		return
	}
	a.tellCircles(next, moved)
	for name := range moved {
		a.events.add("backend_resolved", "pools/"+name, placesText(next.pools[name].backends))
	}
	a.server.SetTable(table)
	next.table = table
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
	now := rpc.Progress{Serving: a.traffic.get() == trafficReady, Revision: a.current.revision, Refused: refused}
	a.tellProgress(a.observation.get(), now)
	a.observation.set(now)
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
