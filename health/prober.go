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
	// ExplainTLS puts an error of a TLS connection into words; default the error's own.
	ExplainTLS func(error) string
	// OnFlip hears of each change of a state that a check has brought about, in order; err is the failure that took the backend
	// down. It is called under the prober's lock: it must neither block nor call the prober.
	OnFlip func(key Key, from, to State, err string, at time.Time)
	// Saved is an earlier process's Snapshot. Of one older than ten minutes nothing is taken over, unless its time is zero.
	Saved []Saved
}

// Prober runs all checks of a node. One goroutine knows when each check is due; a check has a goroutine only while it
// runs.
type Prober struct {
	asker
	rand    func() float64
	onFlip  func(key Key, from, to State, err string, at time.Time)
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
	saved   map[Key]Saved    // what no check has taken over yet
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
	if o.ExplainTLS == nil {
		o.ExplainTLS = error.Error
	}
	if o.OnFlip == nil {
		o.OnFlip = func(Key, State, State, string, time.Time) {}
	}
	p := &Prober{
		asker:   asker{dial: o.Dial, explainTLS: o.ExplainTLS},
		rand:    o.Rand,
		onFlip:  o.OnFlip,
		flipped: make(chan struct{}, 1),
		wake:    make(chan struct{}, 1),
		probes:  map[Key]*probe{},
		moved:   map[Key]struct{}{},
		saved:   map[Key]Saved{},
	}
	for _, s := range o.Saved {
		p.saved[s.Key] = s
	}
	p.ctx, p.stop = context.WithCancel(context.Background())
	p.group.Go(p.schedule)
	return p
}

// Set says what to check from now on. Keys are those of Check.Key. A key that stays keeps its state and its rhythm, and is
// asked at once where it is dialled elsewhere; one that is new to an address which loses another takes over the state, so that a
// change of a check does not put a dead backend back into service; one that an earlier process has saved takes over that; any
// other new one begins as the check says, with a check soon. First checks are spread over up to a second.
func (p *Prober) Set(checks map[Key]Check) {
	p.mu.Lock()
	defer p.mu.Unlock()
	left := p.removeLocked(checks)
	now := time.Now()
	var starting []*probe
	for key, check := range checks {
		if b := p.probes[key]; b != nil {
			if b.move(check) && b.index != notQueued {
				heap.Remove(&p.due, b.index)
				starting = append(starting, b)
			}
			continue
		}
		b := newProbe(key, check.complete(), now)
		if old := left[check.Address]; old != nil {
			b.inherit(old)
		} else if saved, ok := p.recallLocked(key, now); ok {
			b.restore(saved)
		}
		p.probes[key] = b
		starting = append(starting, b)
		if b.tracker.State() != Unknown {
			p.tellLocked(key)
		}
	}
	p.spreadStartLocked(starting, now)
	notify(p.wake)
}

// spreadStartLocked makes checks due one after another.
func (p *Prober) spreadStartLocked(starting []*probe, now time.Time) {
	spacing := min(startSpacing, startSpread/time.Duration(max(1, len(starting))))
	for i, b := range starting {
		b.due = now.Add(time.Duration(i) * spacing)
		heap.Push(&p.due, b)
	}
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
		check, moves := b.check, b.moves
		p.group.Go(func() { p.run(b, check, moves, now) })
	}
	return idle // an ending check wakes us if all slots are taken
}

// run is one check, as it was when it began.
func (p *Prober) run(b *probe, check Check, moves int, started time.Time) {
	err := p.ask(p.ctx, check)

	p.mu.Lock()
	defer p.mu.Unlock()
	p.running--
	if p.ctx.Err() == nil && p.probes[b.key] == b { // else its result is nobody's
		b.due = time.Now()
		if b.moves == moves { // else its result is that of an address that nobody uses now
			p.observeLocked(b, err)
			b.due = started.Add(p.spread(b.interval()))
		}
		heap.Push(&p.due, b)
	}
	if p.running == checksRunningMax-1 || (len(p.due) > 0 && p.due[0] == b) {
		notify(p.wake)
	}
}

// observeLocked takes a result and tells who wants to know of a changed state.
func (p *Prober) observeLocked(b *probe, err error) {
	from, now := b.tracker.State(), time.Now()
	if !b.observe(err, now) {
		return
	}
	p.tellLocked(b.key)
	cause := ""
	if err != nil {
		cause = b.lastError
	}
	p.onFlip(b.key, from, b.tracker.State(), cause, now)
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
