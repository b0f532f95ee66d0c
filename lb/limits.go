package lb

import (
	"cmp"
	"time"

	"lbd/lb/http1"
	"lbd/lb/loop"
)

// Off, in a configuration, is a timeout that never ends. What guards a listener against its clients cannot be Off: a wait
// or a size without an end is how one of them harms the others.
const Off time.Duration = -1

// Defaults of what a configuration may set. Zero in a configuration means the default.
const (
	// A handshake is two round trips and a few KiB; 10 s serves a phone on a bad line, not one that plays dead.
	handshakeTimeout = 10 * time.Second
	// From the first byte of a head to its end.
	requestHeadTimeout = 10 * time.Second
	// Between two pieces of a body, either way. Counts idle time, so a slow but steady upload may take hours.
	bodyIdleTimeout = 30 * time.Second
	// From the last byte of the request to the first of the answer: as long as common backends' own limit.
	firstByteTimeout = 60 * time.Second
	// A kept-alive client connection costs a socket and a few hundred bytes while it waits for its next request.
	keepAliveIdleTimeout = 60 * time.Second
	// A client that does not take a byte for this long is gone or hostile.
	writeStallTimeout = 30 * time.Second
	// A tunnel (WebSocket) without traffic either way. Pings usually come every 30 s, but nothing demands them.
	tunnelIdleTimeout = time.Hour
	// A backend is in the same data centre: one lost SYN is sent again after 1 s, the next 2 s later.
	connectTimeout = 3 * time.Second
	// Less than the shortest keep-alive time of common backends (5 s), so that we close first.
	backendIdleTimeout = 4 * time.Second
	// Idle connections per backend over all loops. With thousands of requests in flight at a slow backend fewer would mean a new
	// connection for every second request; they cost us a socket each and end after their idle time.
	idlePerBackend = 4096
	// Connections of one listener on this node.
	listenerConnectionsMax = 1 << 20
	// What a client that is bound to a draining backend has to finish, and an open request there.
	drainTimeout = 60 * time.Second
	// Retries of one request; the first try and a fresh connection for a stale one are not counted.
	retryAttempts = 1
	// Retries may be a fifth of the requests in flight at a pool, else a pool in trouble gets twice its load.
	retryBudgetPercent = 20
)

// What no configuration sets.
const (
	// How much sooner than the backend's own announced time an idle connection is closed: its close and our request would
	// cross on the wire.
	keepAliveMargin = time.Second
	// A request that fails this often fails everywhere.
	retryAttemptsMax = 5
	// However few requests are in flight: a pool with little traffic may retry.
	retryBudgetMin = 3
	// A trusted peer's request id goes into logs and answers of ours: long enough for two UUIDs or a trace id with a span.
	requestIDBytesMax = 128
	// Interim answers (1xx) before the final one. Real ones send a 100, a 103 or progress every few seconds.
	interimAnswersMax = 64
	// How often within its time a client that takes nothing is asked what it has acknowledged: it is given up at most that
	// part of its time too late.
	stallLooks = 4
	// What a client may be as slow as and still be served: each byte that it acknowledges buys it the time to read it at this
	// rate, up to so many times the write stall's time. A client that reads nothing is given up after at most
	// 1 + stallCredits times, and a slow one is served if its kernel takes no more ahead of it than it reads in that time.
	fairBytesPerSecond = 1000
	stallCredits       = 2
	// How long and how much we read from a client after an answer that closes the connection, so that its unread bytes do not
	// make the kernel reset the connection and destroy the answer.
	lingerTimeout  = 2 * time.Second
	lingerBytesMax = 256 << 10
	// tls.Conn.Close writes an alert; a peer that does not read must not hold it.
	closeTimeout = 100 * time.Millisecond
	// How long a backend that has answered may take the rest of its request before its connection is given up. The client has
	// its answer by then, but the next request on its connection waits.
	settleTimeout = 100 * time.Millisecond
	// What a queued write may hold while both directions of a connection move: one large buffer in records, of which the first of
	// a connection are small. Who fills it all the same makes us write without reading (RFC 8446 4.6.3) and is cut off.
	queuedBytesMax = loop.BulkBytes + loop.BufferBytes
	// The longest last piece of an answer over TLS that is kept until the farewell is behind it: with that it fits into a buffer.
	lastBytesMax = loop.BufferBytes / 2
	// How often it is looked at what a backend has acknowledged of a connection that is to be closed and to have its slot free.
	settlePause = 5 * time.Millisecond
	// Backends with room that a request asks whose own has none, before it waits: others may see the same room.
	roomTriesMax = 3
	// How soon the first in a backend's line asks other loops again for an idle connection that they say they have.
	stealAgain = 10 * time.Millisecond
	// What is wrong with a backend's TLS is wrong with each of its connections: one line a minute says so.
	backendWarningSeconds = 60
	// Retry-After of an answer that says no backend is eligible: about the time checks need to see one come back.
	retryAfterSeconds = "5"
	// Retry-After of a route in maintenance that says nothing else.
	maintenanceRetryAfter = time.Minute
	// A path, a query or a field's values for which a host has a regular expression, or conditions on the query. The longest that other
	// servers take; each regular expression may cost 100 ns an octet, and a head may have 64 KiB of them.
	testedBytesMax = 8 << 10
	// Lines of X-Forwarded-For that are looked at for a client's address: each proxy of ours has added at most one.
	forwardedLinesMax = 16
	// The longest form of an address in there: IPv6 that holds IPv4, with brackets and a port, and some room for a zone.
	forwardedAddressBytesMax = 80
	// How long it is waited for what a loop says of its connections: one that is stalled is not worth more.
	askTimeout = 2 * time.Second
	// Connections that are looked at before other tasks have a turn: some 20 µs.
	visitPause = 1024
	// Exchanges kept for reuse by each loop; a few KiB each.
	spareExchangesMax = 256
	// What the log shows of a head that was refused: enough to recognise it.
	refusedLineBytesMax = 512
	// Backends that one request may be sent to.
	triedBackendsMax = retryAttemptsMax + 1
	// How often what only time changes is looked at: a ramp then has steps of a tenth in its shortest form, and whoever is ejected
	// for the shortest time is out for twice that at most.
	keepInterval = time.Second
	// The share of its weight with which a backend starts slowly, and the steps in which whole weights are counted meanwhile.
	slowStartLeast = 0.1
	rampSteps      = 100
	// An ejection lasts for so many times the pool's base time at most, however often the backend fails again.
	ejectionRowMax = 10
	// In an idle time a session's cookie is written anew so often at most: an answer with a cookie is not cached.
	sessionRenewals = 10
)

// after returns when a timeout that begins now ends; the zero time if it is Off.
func after(now time.Time, timeout time.Duration) time.Time {
	if timeout < 0 {
		return time.Time{}
	}
	return now.Add(timeout)
}

// earliest returns the first of two deadlines, of which zero times are none.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// Timeouts of a listener. Zero fields mean the defaults.
type Timeouts struct {
	Handshake     time.Duration // TLS handshake; 10 s
	RequestHead   time.Duration // from a head's first byte to its last; 10 s
	KeepAliveIdle time.Duration // between two requests, and from accept to the first byte; 60 s
	WriteStall    time.Duration // a client that takes no byte of its answer; 30 s
}

func (t Timeouts) withDefaults() Timeouts {
	return Timeouts{
		Handshake:     cmp.Or(t.Handshake, handshakeTimeout),
		RequestHead:   cmp.Or(t.RequestHead, requestHeadTimeout),
		KeepAliveIdle: cmp.Or(t.KeepAliveIdle, keepAliveIdleTimeout),
		WriteStall:    cmp.Or(t.WriteStall, writeStallTimeout),
	}
}

// Limits of a listener. Zero fields mean the defaults.
type Limits struct {
	Connections   int           // open at once on this node; 1,048,576
	Requests      int           // on one connection; no limit
	ConnectionAge time.Duration // at which no further request is begun; no limit
	HeadBytes     int           // of a request; 64 KiB
	Fields        int           // of a request head; 128
}

// ofHeads are the limits of what a client sends.
func (l Limits) ofHeads() http1.Limits {
	return http1.Limits{
		HeadBytes: cmp.Or(max(l.HeadBytes, 0), http1.DefaultLimits.HeadBytes),
		Fields:    cmp.Or(max(l.Fields, 0), http1.DefaultLimits.Fields),
	}
}

// RouteTimeouts are a route's own. Zero fields mean the defaults; any may be Off.
type RouteTimeouts struct {
	FirstByte time.Duration // from the request's last byte to the answer's first; 60 s
	BodyIdle  time.Duration // between two pieces of a body, either way; 30 s
	Request   time.Duration // from the head's first byte to the answer's last, retries included; Off
	Try       time.Duration // from a try's connect, or the request's last byte if that is later, to the answer's head; Off
	Tunnel    time.Duration // without traffic either way after an upgrade; 1 h
}

func (t RouteTimeouts) withDefaults() RouteTimeouts {
	return RouteTimeouts{
		FirstByte: cmp.Or(t.FirstByte, firstByteTimeout),
		BodyIdle:  cmp.Or(t.BodyIdle, bodyIdleTimeout),
		Request:   cmp.Or(t.Request, Off),
		Try:       cmp.Or(t.Try, Off),
		Tunnel:    cmp.Or(t.Tunnel, tunnelIdleTimeout),
	}
}
