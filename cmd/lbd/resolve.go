package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

const (
	resolveInterval = 30 * time.Second
	resolveTimeout  = 5 * time.Second
	// resolveRetry is how soon a name that has never been answered is asked again: its backend takes no requests till then.
	resolveRetry = 5 * time.Second
	// resolveWait is how long a publish waits for names that it sees for the first time: a working resolver answers
	// well within it, and a broken one must not hold up everything else.
	resolveWait = 500 * time.Millisecond
	// resolveAtOnceMax bounds the questions that are asked at the same time.
	resolveAtOnceMax = 16
)

var (
	errNoAddress = errors.New("the name has no address")
	errCircles   = errors.New("a listener of this node or another port of its own is there: requests would go in circles")
	errForbidden = errors.New("the name leads where no backend may be (cluster_settings, the owner's bounds, or a listener of this node or another port of its own)")
)

// lookupFunc asks for a host's addresses, as net.Resolver.LookupNetIP does.
type lookupFunc func(ctx context.Context, network, host string) ([]netip.Addr, error)

// resolver keeps the addresses of backends that are given by name or found by discovery. The last good answer stays until there
// is a better one.
type resolver struct {
	lookup lookupFunc
	srv    srvFunc
	local  func(netip.Addr) bool // whether an address is this machine's
	log    *slog.Logger
	moved  chan struct{} // one slot: an answer has changed

	mu    sync.Mutex
	names map[string]*resolved // by question, those of the served pools
	rules rules

	ctx    context.Context // ends with close
	cancel context.CancelFunc
	done   sync.WaitGroup
}

// resolved is what is known of one question.
type resolved struct {
	question
	found []discovered // empty: never answered
	err   error        // of the last answer, nil if good
	erred time.Time    // when err was found
	left  string       // what of the last answer was left out
}

func newResolver(log *slog.Logger) *resolver {
	return newResolverWith(net.DefaultResolver.LookupNetIP, log)
}

func newResolverWith(lookup lookupFunc, log *slog.Logger) *resolver {
	r := &resolver{lookup: lookup, srv: lookupSRV, local: isLocal, log: log, moved: make(chan struct{}, 1), names: map[string]*resolved{}}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.done.Go(r.run)
	return r
}

func (r *resolver) close() {
	r.cancel()
	r.done.Wait()
}

// run asks again: every name at the interval, those without an answer more often.
func (r *resolver) run() {
	tick := time.NewTicker(resolveRetry)
	defer tick.Stop()
	last := time.Now()
	for {
		select {
		case <-r.ctx.Done():
			return
		case now := <-tick.C:
			all := now.Sub(last) >= resolveInterval
			if all {
				last = now
			}
			r.ask(r.due(all), r.wake)
		}
	}
}

// due lists all names, or those that have never been answered.
func (r *resolver) due(all bool) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var due []string
	for a, n := range r.names {
		if all || len(n.found) == 0 {
			due = append(due, a)
		}
	}
	return due
}

func (r *resolver) wake() {
	select {
	case r.moved <- struct{}{}:
	default:
	}
}

// keep says which addresses ("host:port") and discoveries are in use, and where backends may be: as the rules say. It waits a moment
// for the answers of new names; one that comes later wakes the appliance, and so does one that the rules have changed.
func (r *resolver) keep(addresses map[string]bool, rules rules) {
	var fresh []string
	r.mu.Lock()
	rules.local = r.local
	ruled := !r.rules.same(rules)
	if r.rules = rules; ruled {
		r.wake() // of IP addresses it is known already
	}
	gone := map[question][]discovered{}
	for a, n := range r.names {
		if !addresses[a] {
			gone[n.anywhere()] = n.found
			delete(r.names, a)
		}
	}
	for a := range addresses {
		if _, ok := parseLiteral(a); ok || r.names[a] != nil {
			continue
		}
		q, ok := parseQuestion(a)
		if !ok {
			continue // state.Validate has refused it before
		}
		// Other bounds are another question: what was known stays until it is answered.
		r.names[a] = &resolved{question: q, found: allowed(gone[q.anywhere()], rules, q.within)}
		fresh = append(fresh, a)
	}
	r.mu.Unlock()
	if len(fresh) > 0 {
		r.askFor(resolveWait, fresh)
	}
	if ruled {
		r.done.Go(func() { r.ask(r.due(true), r.wake) })
	}
}

// askFor asks and returns when all have answered, at the latest after wait: an answer that comes later wakes the appliance.
func (r *resolver) askFor(wait time.Duration, addresses []string) {
	answered, gone := make(chan struct{}), make(chan struct{})
	defer close(gone)
	r.done.Go(func() {
		defer close(answered)
		r.ask(addresses, func() {
			select {
			case <-gone:
				r.wake()
			default: // whoever waits reads the answer
			}
		})
	})
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-answered:
	case <-timer.C:
	}
}

// ask resolves names, a bounded number at a time, and calls changed after each answer that differs from the last.
func (r *resolver) ask(addresses []string, changed func()) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, resolveAtOnceMax)
	for _, a := range addresses {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if r.askOne(a) {
				changed()
			}
		})
	}
	wg.Wait()
}

// askOne asks for one name and reports whether its answer has changed.
func (r *resolver) askOne(address string) bool {
	r.mu.Lock()
	n := r.names[address]
	r.mu.Unlock()
	if n == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(r.ctx, resolveTimeout)
	defer cancel()
	found, err := r.answer(ctx, n.question)
	r.mu.Lock()
	defer r.mu.Unlock()
	old := n.found
	n.found = allowed(old, r.rules, n.within)
	good := allowed(found, r.rules, n.within)
	r.tellLeft(n, found, good)
	switch {
	case err == nil && len(found) == 0:
		err = errNoAddress
	case err == nil && len(good) == 0:
		err = fmt.Errorf("%w: %s", errForbidden, joined(found))
	}
	if err != nil {
		if n.err == nil && r.ctx.Err() == nil {
			r.log.Warn("cannot resolve a backend's name", "address", address, "stays", joined(n.found), "err", err)
		}
		n.err, n.erred = err, time.Now()
		if len(n.found) == 0 && len(good) > 0 {
			n.found = n.chosen(good) // some are better than none
		}
		return !slices.Equal(n.found, old)
	}
	if n.err != nil {
		r.log.Info("a backend's name is resolved again", "address", address)
	}
	n.found, n.err = n.chosen(good), nil
	return !slices.Equal(n.found, old)
}

// tellLeft tells what of an answer is left out while the rest is used; what nothing is left of is told as an error.
func (r *resolver) tellLeft(n *resolved, found, good []discovered) {
	left := ""
	if len(good) > 0 {
		left = joined(slices.DeleteFunc(slices.Clone(found), func(d discovered) bool { return slices.Contains(good, d) }))
	}
	if left != "" && left != n.left {
		r.log.Warn("a backend's name leads also where no backend may be: this is left out", "address", n.question.String(), "left_out", left)
	}
	n.left = left
}

// address is where a backend answers now; the zero value if its name has never been resolved, or it is this node itself.
func (r *resolver) address(a string) netip.AddrPort {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ap, ok := parseLiteral(a); ok {
		if r.rules.circles(ap) {
			return netip.AddrPort{}
		}
		return ap
	}
	if n := r.names[a]; n != nil && len(n.found) > 0 {
		return n.found[0].addr
	}
	return netip.AddrPort{}
}

func parseLiteral(a string) (netip.AddrPort, bool) {
	ap, err := netip.ParseAddrPort(a)
	return ap, err == nil
}

// checkDial refuses to ask whether it is alive what is no backend: this node itself, and what DNS has not led to by the rules.
func (r *resolver) checkDial(address string) error {
	at, ok := parseLiteral(address)
	if !ok {
		return errNoAddress
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rules.circles(at) {
		return errCircles
	}
	return nil
}

// problem says why a backend's name has no address; empty if it has one.
func (r *resolver) problem(a string) string {
	text, _ := r.trouble(a)
	return text
}

// trouble is the problem, and when it was last met; zero while there is no answer yet.
func (r *resolver) trouble(a string) (string, time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ap, ok := parseLiteral(a); ok && r.rules.circles(ap) {
		return errCircles.Error(), time.Time{}
	}
	n := r.names[a]
	switch {
	case n == nil || n.err == nil && len(n.found) > 0:
		return "", time.Time{}
	case n.err == nil:
		return "resolve: no answer yet", time.Time{}
	default:
		return "resolve: " + n.err.Error(), n.erred
	}
}
