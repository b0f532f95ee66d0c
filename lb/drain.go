package lb

import (
	"context"
	"errors"
	"fmt"

	"lbd/lb/loop"
)

// A server goes out of service in stages, each of which keeps what the one before has:
//
//	inService --BeginDrain--> notReady --CloseGently--> gentle --Drain--> ending
//	    ^                        |                        |
//	    +--------Undrain---------+------------------------+
//
// Who asks for readiness hears of it first, so that what is in front of this node turns away before anybody is turned away here.
type stage int32

const (
	inService stage = iota
	notReady        // the health path answers 503; nothing else is different
	gentle          // every answer is its connection's last: nobody is cut off, not even between an answer and the next request
	ending          // no listener, no idle connection; no retry, as there may be no time for it
)

func (s *Server) at() stage { return stage(s.stage.Load()) }

// advance goes on to a stage, never back.
func (s *Server) advance(to stage) {
	for {
		now := s.stage.Load()
		if now >= int32(to) || s.stage.CompareAndSwap(now, int32(to)) {
			return
		}
	}
}

// BeginDrain makes the health path of every listener answer 503. Traffic is served as before. Any goroutine may call it.
func (s *Server) BeginDrain() { s.advance(notReady) }

// CloseGently does what BeginDrain does, and from now on every answer says `Connection: close`. Connections that wait for a request go on
// waiting and have one answered: closing them could meet a request on its way, which the client may not send again. New connections are
// served, with one request each. Tunnels go on, and may still begin. Any goroutine may call it.
func (s *Server) CloseGently() { s.advance(gentle) }

// Succeed does what CloseGently does, in a process whose listening sockets another one has: the node is as ready as before, and the health path
// says so to who asks here still. Any goroutine may call it.
func (s *Server) Succeed() {
	s.succeeded.Store(s.at() == inService)
	s.advance(gentle)
}

// Undrain takes back BeginDrain and CloseGently. After Drain it does nothing. Any goroutine may call it.
func (s *Server) Undrain() {
	for {
		now := s.stage.Load()
		if now == int32(ending) || s.stage.CompareAndSwap(now, int32(inService)) {
			return
		}
	}
}

// Drain takes the server out of service for good: listeners close, idle connections are closed at once, the others with the end of
// the request that they are at, or of one last one that is on its way. It returns when all are gone, or ctx's error;
// closing the engine ends the rest.
func (s *Server) Drain(ctx context.Context) error {
	s.advance(ending)
	s.mu.Lock()
	all := make([]*listener, 0, len(s.listeners))
	for _, l := range s.listeners {
		all = append(all, l)
	}
	clear(s.listeners)
	s.mu.Unlock()
	for _, l := range all {
		l.close()
	}
	return s.Settled(ctx)
}

// Settled waits until no client's connection is open, or returns ctx's error. It closes none.
func (s *Server) Settled(ctx context.Context) error {
	for s.connections.Load() > 0 {
		select {
		case <-s.emptied:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	s.tellEmptied() // another one may wait
	return nil
}

// gone counts one client connection less.
func (s *Server) gone() {
	if s.connections.Add(-1) == 0 {
		s.tellEmptied()
	}
}

func (s *Server) tellEmptied() {
	select {
	case s.emptied <- struct{}{}:
	default:
	}
}

// Left is what there still is of the clients' traffic.
type Left struct {
	Connections int64 // all of them; those that open or close at this moment may be in none of the others
	Handshakes  int64
	Idle        int64 // between two requests
	Requests    int64
	Tunnels     int64 // after an upgrade
}

// Left counts. It waits for every loop, but for no more than two seconds: of a loop that does not answer nothing but the connections
// is counted. It must not be called from a loop's task.
func (s *Server) Left() Left {
	left := Left{Connections: s.connections.Load()}
	for _, of := range askLoops(s, func(t *loop.Task) (phases [len(phaseWords)]int64) {
		s.shards[t.Loop()].clients.visit(t, func(cc *clientConn) bool {
			phases[cc.phase]++
			return true
		})
		return phases
	}) {
		left.Handshakes += of[inHandshake]
		left.Idle += of[isIdle]
		left.Requests += of[inRequest]
		left.Tunnels += of[inTunnel]
	}
	return left
}

// Bound is a listener's address with the sockets that accept there.
type Bound struct {
	Listener, Address string // as configured
	Descriptors       []*loop.Descriptor
}

// Bound duplicates the sockets of all listeners, for another process that is to accept on them while this one still does, or in its place
// (StopAccepting). The caller closes the descriptors.
func (s *Server) Bound() ([]Bound, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Bound
	for _, l := range s.listeners {
		for _, at := range l.sockets {
			descriptors, err := at.on.Descriptors()
			if err != nil {
				for _, b := range all {
					err = errors.Join(err, b.Close())
				}
				return nil, fmt.Errorf("duplicate the sockets of listener %q at %s: %w", l.name, at.address, err)
			}
			if len(descriptors) > 0 {
				all = append(all, Bound{l.name, at.address, descriptors})
			}
		}
	}
	return all, nil
}

// Close closes the descriptors.
func (b *Bound) Close() error {
	var err error
	for _, d := range b.Descriptors {
		err = errors.Join(err, d.Close())
	}
	return err
}

// BeginAccepting ends Options.Held. It is the publisher's to call.
func (s *Server) BeginAccepting() {
	s.held = false
	for _, l := range s.listeners {
		for _, at := range l.sockets {
			at.on.Begin()
		}
	}
}

// StopAccepting closes the listening sockets, for good, and nothing else: connections, their limits, counters and the health path stay.
// Who waits in a socket's queue is served; who connects later is for the process that has the socket, too (Bound).
// It is the publisher's to call; Listen returns an error from then on.
func (s *Server) StopAccepting() {
	s.mu.Lock()
	s.stopped = true
	var sockets []socket
	for _, l := range s.listeners {
		sockets = append(sockets, l.sockets...)
		l.sockets = nil
	}
	s.mu.Unlock()
	for _, at := range sockets {
		at.on.Close()
	}
}
