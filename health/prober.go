package health

import (
	"container/heap"
	"context"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// Options of a prober; the zero value is good.
type Options struct {
	// Dial opens a check's connection; default a plain net.Dialer.
	Dial DialFunc
	// Rand is uniform in [0, 1) and safe for concurrent use; default math/rand/v2.
	Rand func() float64
}

// Prober runs all checks of a node. One goroutine knows when each check is due; a check has a goroutine only while it
// runs.
type Prober struct {
	dial    DialFunc
	rand    func() float64
	flipped chan struct{}
	wake    chan struct{} // to the scheduler: something is due earlier than it knows
	ctx     context.Context
	stop    context.CancelFunc
	group   sync.WaitGroup

	mu      sync.Mutex // for what follows, written by Set, the scheduler and ending checks
	probes  map[Key]*probe
	due     dueQueue // probes that are not running
	running int
	moved   map[Key]struct{} // since the last TakeFlipped
}

// New starts a prober that checks nothing yet.
func New(o Options) *Prober {
	if o.Dial == nil {
		// Connections last milliseconds: keep-alive would be two system calls for nothing.
		o.Dial = (&net.Dialer{KeepAlive: -1}).DialContext
	}
	if o.Rand == nil {
		o.Rand = rand.Float64
	}
	p := &Prober{
		dial:    o.Dial,
		rand:    o.Rand,
		flipped: make(chan struct{}, 1),
		wake:    make(chan struct{}, 1),
		probes:  map[Key]*probe{},
		moved:   map[Key]struct{}{},
	}
	p.ctx, p.stop = context.WithCancel(context.Background())
	p.group.Go(p.schedule)
	return p
}

// Set says what to check from now on. Keys are those of Check.Key. A key that stays keeps its state and its rhythm; one
// that is new to an address which loses another takes over the state, so that a change of a check does not put a dead
// backend back into service; any other new one starts Unknown with a check at once.
func (p *Prober) Set(checks map[Key]Check) {
	p.mu.Lock()
	defer p.mu.Unlock()
	left := p.removeLocked(checks)
	now, started := time.Now(), 0
	for key, check := range checks {
		if p.probes[key] != nil {
			continue
		}
		b := newProbe(key, check.complete(), now)
		if old := left[check.Address]; old != nil {
			b.inherit(old)
		}
		b.due = now.Add(time.Duration(started) * startSpacing)
		started++
		p.probes[key] = b
		heap.Push(&p.due, b)
		if b.tracker.State() != Unknown {
			p.tellLocked(key)
		}
	}
	notify(p.wake)
}

// removeLocked drops what is not in checks and returns it by address; of several on one address one that is not Down,
// since a doubt is in the backend's favour.
func (p *Prober) removeLocked(checks map[Key]Check) map[string]*probe {
	left := map[string]*probe{}
	for key, b := range p.probes {
		if _, stays := checks[key]; stays {
			continue
		}
		if other := left[b.check.Address]; other == nil || other.tracker.State() == Down {
			left[b.check.Address] = b
		}
		if b.index != notQueued {
			heap.Remove(&p.due, b.index)
		}
		delete(p.probes, key)
		delete(p.moved, key)
	}
	return left
}

// Flipped has a value when states have changed since it was last received from. It is one slot: read TakeFlipped for which.
func (p *Prober) Flipped() <-chan struct{} { return p.flipped }

// TakeFlipped lists, in no order, the keys whose state has changed since the last call.
func (p *Prober) TakeFlipped() []Key {
	p.mu.Lock()
	defer p.mu.Unlock()
	keys := make([]Key, 0, len(p.moved))
	for key := range p.moved {
		keys = append(keys, key)
	}
	clear(p.moved)
	return keys
}

// Status of a key, and whether it is checked at all.
func (p *Prober) Status(key Key) (Status, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.probes[key]
	if b == nil {
		return Status{}, false
	}
	return b.status(), true
}

// Close ends all checks and returns when the last goroutine is gone.
func (p *Prober) Close() {
	p.stop()
	p.group.Wait()
}

// schedule starts checks when they are due, until the prober is closed.
func (p *Prober) schedule() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-p.ctx.Done():
			return
		case <-p.wake:
		case <-timer.C:
		}
		timer.Reset(p.startDue())
	}
}

// startDue starts what is due and returns how long nothing will be.
func (p *Prober) startDue() time.Duration {
	const idle = time.Hour
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for len(p.due) > 0 && p.running < checksRunningMax {
		b := p.due[0]
		if wait := b.due.Sub(now); wait > 0 {
			return wait
		}
		heap.Pop(&p.due)
		p.running++
		p.group.Go(func() { p.run(b, now) })
	}
	return idle // an ending check wakes us if all slots are taken
}

// run is one check.
func (p *Prober) run(b *probe, started time.Time) {
	err := ask(p.ctx, p.dial, b.check)

	p.mu.Lock()
	defer p.mu.Unlock()
	p.running--
	if p.ctx.Err() == nil && p.probes[b.key] == b { // else its result is nobody's
		if b.observe(err, time.Now()) {
			p.tellLocked(b.key)
		}
		b.due = started.Add(p.spread(b.interval()))
		heap.Push(&p.due, b)
	}
	if p.running == checksRunningMax-1 || (len(p.due) > 0 && p.due[0] == b) {
		notify(p.wake)
	}
}

// spread is interval with its jitter.
func (p *Prober) spread(interval time.Duration) time.Duration {
	return time.Duration(float64(interval) * (1 - jitter + 2*jitter*p.rand()))
}

func (p *Prober) tellLocked(key Key) {
	p.moved[key] = struct{}{}
	notify(p.flipped)
}

// notify fills a one-slot channel, or leaves it full.
func notify(slot chan<- struct{}) {
	select {
	case slot <- struct{}{}:
	default:
	}
}
