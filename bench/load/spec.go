//go:build linux

// Package load offers HTTP/1.1 load to a proxy and checks every answer: one epoll loop, and one coroutine per simulated client that reads
// as straight code, also through TLS. It says when it was itself the limit.
package load

import (
	"errors"
	"fmt"
	"time"

	"lbd/bench/stats"
)

// Spec is one run: flows that go on side by side. It travels as JSON from the lab to the generator's process.
type Spec struct {
	// Warm passes before anything counts, and until the idle connections are there, then Measure is what counts.
	Warm, Measure time.Duration
	Flows         []Flow
}

// Kind is what a client does with its connection.
type Kind string

const (
	// KeepAlive sends request after request on one connection.
	KeepAlive Kind = "keep-alive"
	// Fresh opens a connection for each request, with a full handshake if there is TLS.
	Fresh Kind = "fresh"
	// Resumed is Fresh, but a client that holds a session ticket resumes with it. Every client has a ticket store of its own, and a
	// TLS 1.3 ticket is used once.
	Resumed Kind = "resumed"
	// Idle sends one request and then holds its connection open until the end.
	Idle Kind = "idle"
	// Tunnel upgrades its connection to websocket; a request is then a message and its echo.
	Tunnel Kind = "tunnel"
	// IdleTunnel sends one message and then holds the tunnel open until the end.
	IdleTunnel Kind = "idle tunnel"
	// Upload sends a body with each request, on a kept-alive connection.
	Upload Kind = "upload"
)

// Flow is a number of like clients.
type Flow struct {
	Name    string
	Address string // IPv4 "host:port" of the proxy
	Kind    Kind
	Clients int
	// Rate is offered requests per second over all clients: an open loop, in which a latency counts from the moment at which the
	// request was meant to be sent. Zero: a closed loop, in which each client sends when it has its answer.
	Rate float64
	// After is how long after the start of the run the first request of an open loop is due.
	After time.Duration
	// Timeout ends a request, counted from the same moment as its latency. Its connection is closed. Zero: 10 s.
	Timeout time.Duration
	// Bytes is the size of the body asked for.
	Bytes int
	// Sends is the size of an Upload's body, and Pace how many bytes of it are sent each second. No pace: as fast as it goes.
	Sends, Pace int
	// Fields are further header fields of each request, "Name: value".
	Fields []string
	// Hosts are used in turn: one per request, with TLS one per connection, if Resumed one per client.
	Hosts []string
	// TLS is nil for plain.
	TLS *TLS
}

// TLS says what the clients offer.
type TLS struct {
	Version string   // "1.2" or "1.3"; the one version offered
	Groups  []string // "X25519", "P256", "X25519MLKEM768"; offered in this order
	LeafDER []byte   // the certificate that the proxy must show; empty: one for the host
}

const (
	defaultTimeout = 10 * time.Second
	clientsMax     = 50_000
)

func (f Flow) idle() bool { return f.Kind == Idle || f.Kind == IdleTunnel }

func (f Flow) timeout() time.Duration {
	if f.Timeout == 0 {
		return defaultTimeout
	}
	return f.Timeout
}

func (s Spec) check() error {
	if s.Measure <= 0 || len(s.Flows) == 0 {
		return errors.New("nothing to measure")
	}
	for _, f := range s.Flows {
		switch f.Kind {
		case KeepAlive, Fresh, Resumed, Idle, Tunnel, IdleTunnel, Upload:
		default:
			return fmt.Errorf("flow %q: unknown kind %q", f.Name, f.Kind)
		}
		if f.Clients < 1 || f.Clients > clientsMax {
			return fmt.Errorf("flow %q: %d clients, not 1 to %d", f.Name, f.Clients, clientsMax)
		}
		if len(f.Hosts) == 0 {
			return fmt.Errorf("flow %q: no host", f.Name)
		}
		if f.Rate < 0 || f.After < 0 || f.Bytes < 0 || f.Sends < 0 || f.Pace < 0 {
			return fmt.Errorf("flow %q: negative rate or size", f.Name)
		}
	}
	return nil
}

// Result is what one flow saw. Everything counts in the measured window only.
type Result struct {
	Flow string
	// Bytes is the size of each body, Clients how many there were.
	Bytes, Clients int
	// Seconds is the length of the window.
	Seconds float64
	// Completed requests had their whole, right answer inside the window.
	Completed uint64
	// Offered requests were meant to be sent inside the window, and Answered of those had their right answer before their timeout,
	// possibly after the window. Open loop only.
	Offered, Answered uint64
	// Failed requests by reason; not in Completed.
	Failed  uint64
	Reasons map[string]uint64
	// Opened connections, and the handshakes among them that resumed a session.
	Opened, Handshakes, Resumed uint64
	// Holding is how many idle connections were open at the end.
	Holding uint64
	// Session is what the last handshake agreed on.
	Session string
	Latency stats.Latency
	// Late is how long after the intended moment the generator itself sent, at its 99th percentile, in seconds: requests that
	// waited for a free client are not in it. Open loop only.
	Late float64
}
