package lb

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"lbd/lb/loop"
)

// Every client's connection is in the list of its loop from accept to close, which that loop alone touches. Who wants to see them,
// or to end some, sends a task to each loop.

// clientList is a ring through its root, oldest first. A link without a connection of its own is a place where a visitor has
// paused.
type clientList struct{ root clientLink }

type clientLink struct {
	client       *clientConn // nil: root or pause
	older, newer *clientLink
}

func (l *clientList) init() { l.root.older, l.root.newer = &l.root, &l.root }

func (l *clientList) add(link *clientLink) { link.putAfter(l.root.older) }

func (link *clientLink) putAfter(older *clientLink) {
	link.older, link.newer = older, older.newer
	link.older.newer, link.newer.older = link, link
}

func (link *clientLink) remove() {
	link.older.newer, link.newer.older = link.newer, link.older
	link.older, link.newer = nil, nil
}

// visit calls fn for each connection until it returns false. Other tasks have their turns between visitPause of them.
func (l *clientList) visit(t *loop.Task, fn func(*clientConn) bool) {
	seen := 0
	for at := l.root.newer; at != &l.root; at = at.newer {
		if at.client == nil {
			continue
		}
		if !fn(at.client) {
			return
		}
		if seen++; seen%visitPause == 0 {
			pause := &clientLink{}
			pause.putAfter(at)
			err := t.Sleep(0)
			at = pause.older
			pause.remove()
			if err != nil {
				return
			}
		}
	}
}

// phase is what a client's connection is doing.
type phase uint8

const (
	inHandshake phase = iota
	isIdle            // between two requests
	inRequest
	inTunnel
)

var phaseWords = [...]string{"handshake", "idle", "request", "tunnel"}

// ConnectionFilter chooses clients' connections: all that is set must hold.
type ConnectionFilter struct {
	IDs      []int64
	Listener string
	Client   netip.Prefix // the peer's address
	Pool     string       // with a request at a backend of this pool
	Busy     bool         // in a handshake, with a request or a tunnel
	Until    time.Time    // accepted by then; zero: whenever
	Limit    int          // the oldest so many; 0: all
}

func (f *ConnectionFilter) matches(cc *clientConn) bool {
	return (f.IDs == nil || slices.Contains(f.IDs, cc.id)) &&
		(f.Listener == "" || f.Listener == cc.listener.name) &&
		(!f.Client.IsValid() || f.Client.Contains(cc.remote().Addr().WithZone(""))) &&
		(!f.Busy || cc.phase != isIdle) &&
		(f.Until.IsZero() || !cc.since.After(f.Until)) &&
		(f.Pool == "" || cc.phase >= inRequest && cc.x.pool != nil && cc.x.pool.name == f.Pool)
}

// ConnectionInfo is one client's connection at a moment.
type ConnectionInfo struct {
	ID       int64 // of this server, never used again
	Listener string
	Client   netip.AddrPort
	Since    time.Time // accepted
	State    string    // "handshake", "idle", "request" or "tunnel"
	Requests int       // begun

	Route, Pool, Backend string // of the request under way, as far as it has come

	TLSVersion string // "1.2" or "1.3"; empty on a plain connection and before the end of the handshake
	ServerName string // that the client asked for in TLS
}

func (cc *clientConn) info() ConnectionInfo {
	i := ConnectionInfo{
		ID: cc.id, Listener: cc.listener.name, Client: cc.remote(), Since: cc.since, State: phaseWords[cc.phase], Requests: cc.requests,
	}
	if cc.tls != nil {
		facts := cc.facts
		if facts == nil {
			facts = tlsFacts(cc.tls)
		}
		i.TLSVersion, i.ServerName = facts.Version, facts.ServerName
	}
	if cc.phase < inRequest {
		return i
	}
	x := cc.x
	if x.route != nil {
		i.Route = x.route.name
	}
	if x.pool != nil {
		i.Pool = x.pool.name
	}
	if x.backend != nil {
		i.Backend = x.backend.name
	}
	return i
}

// Connections returns the clients' connections that are open, oldest first. It waits for every loop, but for no more than two
// seconds: those of a loop that does not answer are left out. It must not be called from a loop's task.
func (s *Server) Connections(filter ConnectionFilter) []ConnectionInfo {
	var all []ConnectionInfo
	for _, some := range askLoops(s, func(t *loop.Task) (infos []ConnectionInfo) {
		s.shards[t.Loop()].clients.visit(t, func(cc *clientConn) bool {
			if filter.matches(cc) {
				infos = append(infos, cc.info())
			}
			return filter.Limit <= 0 || len(infos) < filter.Limit
		})
		return infos
	}) {
		all = append(all, some...)
	}
	slices.SortFunc(all, func(a, b ConnectionInfo) int { return cmp.Compare(a.ID, b.ID) })
	if filter.Limit > 0 && len(all) > filter.Limit {
		all = all[:filter.Limit]
	}
	return all
}

// KillConnections breaks the clients' connections that the filter chooses, whatever they are doing, and returns how many: those
// of each loop that answers within two seconds. Limit is ignored. What was under way ends as "drained", detail "killed". It must
// not be called from a loop's task.
func (s *Server) KillConnections(filter ConnectionFilter) int {
	killed := 0
	for _, some := range askLoops(s, func(t *loop.Task) (infos []ConnectionInfo) {
		s.shards[t.Loop()].clients.visit(t, func(cc *clientConn) bool {
			if filter.matches(cc) && !cc.killed {
				cc.killed = true
				cc.c.Abort(t)
				infos = append(infos, ConnectionInfo{ID: cc.id})
			}
			return true
		})
		return infos
	}) {
		killed += len(some)
	}
	return killed
}

// askLoops runs fn as a task of every loop and gathers what it returns.
func askLoops[T any](s *Server, fn func(*loop.Task) T) []T {
	answers := make(chan T, len(s.shards))
	for i := range s.shards {
		s.options.Engine.GoOn(i, func(t *loop.Task) { answers <- fn(t) })
	}
	timeout := time.NewTimer(askTimeout)
	defer timeout.Stop()
	var all []T
	for range s.shards {
		select {
		case some := <-answers:
			all = append(all, some)
		case <-timeout.C:
			return all
		}
	}
	return all
}
