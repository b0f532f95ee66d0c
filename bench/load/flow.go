//go:build linux

package load

import (
	"crypto/tls"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"lbd/bench/backend"
	"lbd/bench/stats"
)

// flow is what the clients of one Flow share: what to send, what to expect, and the counts.
type flow struct {
	Flow
	address  *unix.SockaddrInet4
	loop     *loop
	schedule *schedule // nil: closed loop
	requests [][]byte  // one per host
	turn     int
	body     []byte // of each answer
	sends    []byte // of each upload
	tls      *tls.Config

	offered, settled, answered uint64 // open loop, by intended moment
	completed                  uint64 // by the moment of completion
	total                      uint64 // succeeded, at any time
	failed                     map[string]uint64
	connections, handshakes    uint64
	resumed                    uint64
	held, holding              uint64 // idle connections: so far, and now
	session                    string
	latency, late              stats.Histogram
}

// add makes a flow and its clients.
func (l *loop) add(spec Flow) error {
	at, err := netip.ParseAddrPort(spec.Address)
	if err != nil || !at.Addr().Is4() {
		return fmt.Errorf("address %q is not an IPv4 host:port", spec.Address)
	}
	f := &flow{
		Flow:    spec,
		address: &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()},
		loop:    l,
		body:    backend.Body(spec.Bytes),
		sends:   backend.Body(spec.Sends),
		failed:  map[string]uint64{},
	}
	if spec.Rate > 0 {
		f.schedule = newSchedule(l.now.Add(spec.After), spec.Rate)
	}
	if spec.TLS != nil {
		if f.tls, err = spec.TLS.config(); err != nil {
			return err
		}
	}
	for _, host := range spec.Hosts {
		f.requests = append(f.requests, spec.head(host))
	}
	l.flows = append(l.flows, f)
	for range spec.Clients {
		l.clients = append(l.clients, newClient(l, f))
	}
	return nil
}

func (f *flow) nextHost() int {
	host := f.turn
	f.turn = (f.turn + 1) % len(f.Hosts)
	return host
}

func (f *flow) nextSleeper() *client {
	if f.schedule == nil {
		return nil
	}
	return f.schedule.next()
}

func (f *flow) inWindow(at time.Time) bool {
	return !at.Before(f.loop.begin) && at.Before(f.loop.end)
}

// offer counts a request of an open loop that is due at that moment, and reports whether it counts.
func (f *flow) offer(due time.Time) bool {
	counts := f.inWindow(due)
	if counts {
		f.offered++
	}
	return counts
}

// settle counts how a request ended. Latencies belong to the requests meant to be sent in the window of an open loop, or answered in the
// window of a closed one.
func (f *flow) settle(c *client, now time.Time, err error) {
	inWindow := f.inWindow(now)
	counts := inWindow
	if f.schedule != nil {
		counts = c.counted
	}
	if err == nil {
		f.total++
		if inWindow {
			f.completed++
		}
	}
	if !counts {
		return
	}
	f.settled++
	if err != nil {
		f.failed[reason(err)]++
		return
	}
	f.answered++
	f.latency.Add(now.Sub(c.intended))
}

func (f *flow) opened(c *client) {
	if f.inWindow(c.loop.now) {
		f.connections++
	}
}

func (f *flow) shaken(c *client, state tls.ConnectionState) {
	f.session = fmt.Sprintf("%s %s %s", tls.VersionName(state.Version), tls.CipherSuiteName(state.CipherSuite), state.CurveID)
	if !f.inWindow(c.loop.now) {
		return
	}
	f.handshakes++
	if state.DidResume {
		f.resumed++
	}
}

func (f *flow) result(window time.Duration) Result {
	r := Result{
		Flow:       f.Name,
		Bytes:      f.Bytes,
		Clients:    f.Flow.Clients,
		Seconds:    window.Seconds(),
		Completed:  f.completed,
		Reasons:    f.failed,
		Opened:     f.connections,
		Handshakes: f.handshakes,
		Resumed:    f.resumed,
		Holding:    f.holding,
		Session:    f.session,
		Latency:    f.latency.Summary(),
	}
	for _, n := range f.failed {
		r.Failed += n
	}
	if f.schedule != nil {
		r.Offered, r.Answered = f.offered, f.answered
		r.Late = f.late.Quantile(0.99).Seconds()
	}
	return r
}
