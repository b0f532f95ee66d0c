package lb

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"lbd/lb/http1"
	"lbd/lb/loop"
)

// ListenerConfig is a listener as the publisher compiles it.
type ListenerConfig struct {
	Name      string
	Addresses []string // "host:port", ":port" (IPv4 and IPv6) or "[v6]:port"
	TLS       bool     // the server's Terminator decides how
	Timeouts  Timeouts
	Limits    Limits

	Trusted     []netip.Prefix // proxies of ours: what they say of their clients is kept
	Forwarded   bool           // backends get Forwarded (RFC 7239), too
	Underscores bool           // backends get X_Forwarded_For and its like as they came
	DeferAccept bool           // the kernel keeps a connection until its first bytes have come, or for RequestHead; where it cannot: ignored
	HealthPath  string         // answered by the listener: 200, or 503 while it leaves; empty: none

	// ResponseHeaders are done in every final answer, in our own too, before those of the route.
	ResponseHeaders HeaderChanges
}

// listener accepts connections for one name on all its addresses.
type listener struct {
	name   string
	server *Server
	served atomic.Pointer[listenerForm]
	closed atomic.Bool  // unlistened: connections end with their request
	parked []parkedList // one per loop

	unrouted traffic // of requests that no route took

	sockets []socket // in configured order; written by the publisher alone, under Server.mu

	_ [64]byte
	listenerCounters
	_ [64]byte
}

// listenerForm is a listener's configuration, compiled: what a connection reads.
type listenerForm struct {
	tls      bool
	timeouts Timeouts
	limits   http1.Limits
	max      int64 // connections

	requestsMax int           // of one connection
	age         time.Duration // of a connection; Off: no limit

	trusted     []netip.Prefix
	forwarded   bool
	underscores bool
	healthPath  string
	response    *http1.Rules // nil: none
}

type listenerCounters struct {
	connections atomic.Int64
	accepted    atomic.Int64
	requests    [6]atomic.Int64           // by class of the status; 0: no answer
	ended       [reasonCount]atomic.Int64 // by reason
}

func newForm(cfg *ListenerConfig) (*listenerForm, error) {
	response, err := newRules(&cfg.ResponseHeaders)
	if err != nil {
		return nil, fmt.Errorf("response headers: %w", err)
	}
	f := &listenerForm{
		tls:      cfg.TLS,
		timeouts: cfg.Timeouts.withDefaults(),
		limits:   cfg.Limits.ofHeads(),
		max:      listenerConnectionsMax,

		requestsMax: cmp.Or(cfg.Limits.Requests, math.MaxInt),
		age:         cmp.Or(cfg.Limits.ConnectionAge, Off),

		trusted:     slices.Clone(cfg.Trusted),
		forwarded:   cfg.Forwarded,
		underscores: cfg.Underscores,
		healthPath:  cfg.HealthPath,
		response:    response,
	}
	if cfg.Limits.Connections > 0 {
		f.max = int64(cfg.Limits.Connections)
	}
	return f, nil
}

// Listen adds the listener of that name or gives it a new form. Open connections live on and take their next limits from
// the new form. If an address cannot be bound, the listener keeps its previous form and the error names each such address
// (it wraps syscall.EADDRINUSE where that is the cause).
func (s *Server) Listen(cfg ListenerConfig) error {
	s.mu.Lock()
	l, stopped := s.listeners[cfg.Name], s.stopped
	s.mu.Unlock()
	if stopped {
		return fmt.Errorf("listener %q: this process has left accepting to another", cfg.Name)
	}
	if l == nil {
		l = &listener{name: cfg.Name, server: s, parked: newParkedLists(s.options.Engine.Loops()), unrouted: traffic{listener: cfg.Name}}
	}
	form, err := newForm(&cfg)
	if err != nil {
		return fmt.Errorf("listener %q: %w", cfg.Name, err)
	}
	if form.tls && s.options.Terminator == nil {
		return fmt.Errorf("listener %q: needs TLS, and there is no terminator", cfg.Name)
	}
	before := l.served.Load()
	if before == nil {
		l.served.Store(form) // connections may come as soon as the first address is bound
	}
	if err := l.bind(cfg.Addresses, form); err != nil {
		if before == nil {
			l.close() // the addresses that could be bound may have brought connections
		}
		return fmt.Errorf("listener %q: %w", cfg.Name, err)
	}
	l.served.Store(form)
	s.mu.Lock()
	s.listeners[cfg.Name] = l
	s.mu.Unlock()
	l.deferAccept(cfg.DeferAccept, form.timeouts.RequestHead)
	return nil
}

// deferAccept leaves connections that say nothing to the kernel, or no longer. It is an optimisation: a listener without it serves all
// the same.
func (l *listener) deferAccept(on bool, wait time.Duration) {
	if !on {
		wait = 0
	}
	for _, s := range l.sockets {
		if err := s.on.SetDeferAccept(wait); err != nil {
			l.server.log.Warn("defer_accept has no effect", "listener", l.name, "address", s.address, "cause", err)
		}
	}
}

// socket is one bound address.
type socket struct {
	address string // as configured
	on      *loop.Listener
}

// bind opens the addresses that are new and then closes those that are gone; on failure it leaves everything as it was.
func (l *listener) bind(addresses []string, form *listenerForm) error {
	var next, opened []socket
	var errs []error
	for _, address := range addresses {
		if i := slices.IndexFunc(l.sockets, func(s socket) bool { return s.address == address }); i >= 0 {
			next = append(next, l.sockets[i])
			continue
		}
		on, err := l.open(address, form)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		opened = append(opened, socket{address, on})
		next = append(next, socket{address, on})
	}
	if len(errs) > 0 {
		for _, s := range opened {
			s.on.Close()
		}
		return errors.Join(errs...)
	}
	for _, s := range l.sockets {
		if !slices.Contains(next, s) {
			s.on.Close()
		}
	}
	l.server.mu.Lock()
	l.sockets = next
	l.server.mu.Unlock()
	return nil
}

// open binds one address, or accepts on sockets that are bound there already.
func (l *listener) open(address string, form *listenerForm) (*loop.Listener, error) {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	options := loop.ListenOptions{
		Handler: func(t *loop.Task, c *loop.Conn) { l.accept(t, c, port) },
		Heavy:   form.tls,
		Refused: l.refused,
		Held:    l.server.held,
	}
	if inherit := l.server.options.Inherit; inherit != nil {
		options.Inherited = inherit(l.name, address)
	}
	return l.server.options.Engine.Listen(address, options)
}

// Unlisten closes the listener of that name, if there is one: its addresses are free when it returns. Its idle connections
// are closed, the others with the end of their request.
func (s *Server) Unlisten(name string) {
	s.mu.Lock()
	l := s.listeners[name]
	delete(s.listeners, name)
	s.mu.Unlock()
	if l == nil {
		return
	}
	l.close()
}

// close stops accepting and closes what is idle.
func (l *listener) close() {
	l.closed.Store(true)
	for _, s := range l.sockets {
		s.on.Close()
	}
	for i := range l.parked {
		l.server.options.Engine.GoOn(i, l.closeParked)
	}
}

// beyond reports whether the listener is at a stage: closing one takes it through all of them at once.
func (l *listener) beyond(at stage) bool { return l.closed.Load() || l.server.at() >= at }

// readiness is the answer of the health path.
func (l *listener) readiness() *answer {
	if l.beyond(notReady) && !l.server.succeeded.Load() {
		return answerDraining
	}
	return answerReady
}

// Addresses returns where the listener of that name accepts, in configured order and with the ports in use; nil if there is
// none.
func (s *Server) Addresses(name string) []net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.listeners[name]
	if l == nil {
		return nil
	}
	var addresses []net.Addr
	for _, s := range l.sockets {
		addresses = append(addresses, s.on.Addr())
	}
	return addresses
}

// refused counts a connection that the loop could not serve. Without a file for it, it only waits: the loop's own statistics
// count that.
func (l *listener) refused(reason string) {
	if reason != loop.RefusedOpenFiles {
		l.ended[Shed].Add(1)
	}
}
