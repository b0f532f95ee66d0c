//go:build linux

package main

import (
	"fmt"
	"strings"
	"time"

	"lbd/bench/load"
)

// The mixes: flows that are more than one closed loop.

// heads are what browsers send: 20 fields beside Host, Connection and the like, and 2 kB of cookies.
func heads(t target) []load.Flow {
	f := t.flow(load.KeepAlive, clients, bodyBytes, nil)
	for i := range 19 {
		f.Fields = append(f.Fields, fmt.Sprintf("X-Field-%d: %s", i, strings.Repeat("v", 10+4*i)))
	}
	f.Fields = append(f.Fields, "Cookie: session="+strings.Repeat("0123456789abcdef", 128))
	return []load.Flow{f}
}

func mix(t target) []load.Flow {
	full := t.flow(load.Fresh, clients/10, bodyBytes, tls13())
	resumed := t.flow(load.Resumed, clients-clients/10, bodyBytes, tls13())
	return []load.Flow{resumed, full}
}

// In overload every offered request needs a client of its own for up to a second, and so do the proxy's descriptors: the quota keeps
// "four times what it can serve" within them.
const (
	overloadQuota   = 0.03
	overloadFactor  = 4
	overloadTimeout = time.Second
	overloadClients = 8000
)

func overload(t target) []load.Flow {
	f := t.rated(t.flow(load.KeepAlive, overloadClients, bodyBytes, nil), overloadFactor*t.peak)
	f.Timeout = overloadTimeout
	return []load.Flow{f}
}

const (
	stormEstablished = 1000.0
	stormNew         = 500.0
	// stormQuota makes so many more than any proxy can take, and leaves the load side time for all of them.
	stormQuota = 0.1
	// stormAfter is when the first of them arrives: the established connections are there by then.
	stormAfter = time.Second
	// stormPatience is how long an arriving client waits.
	stormPatience = 5 * time.Second
	stormClients  = 6000
)

func storm(t target) []load.Flow {
	established := t.flow(load.KeepAlive, clients, bodyBytes, tls13())
	established.Rate = stormEstablished
	arriving := t.rated(t.flow(load.Fresh, stormClients, bodyBytes, tls13()), stormNew)
	arriving.Timeout, arriving.After = stormPatience, stormAfter
	return []load.Flow{established, arriving}
}

// Every upload is longer than the window, so that what counts is the others' latency and the cost of holding the slow ones.
const (
	uploadClients = 1000
	uploadPace    = 1000
	uploadBytes   = 60 * uploadPace
)

func uploads(t target) []load.Flow {
	steady := t.rated(t.flow(load.KeepAlive, clients, bodyBytes, nil), 1000)
	slow := t.flow(load.Upload, uploadClients, 0, nil)
	slow.Sends, slow.Pace, slow.Timeout = uploadBytes, uploadPace, 2*time.Minute
	return []load.Flow{steady, slow}
}

func changes(t target) []load.Flow {
	steady := t.rated(t.flow(load.KeepAlive, clients, bodyBytes, tls13()), 1000)
	arriving := t.flow(load.Fresh, clients, bodyBytes, tls13())
	arriving.Rate = 100
	return []load.Flow{steady, arriving}
}

func idle(tls func() *load.TLS) func(target) []load.Flow {
	return func(t target) []load.Flow { return closedLoop(load.Idle, t.idleClients, bodyBytes, tls)(t) }
}

// soak is a little of everything that must go on. The uploads are short and end: each is a request that counts.
func soak(t target) []load.Flow {
	flows := changes(t)
	body := t.flow(load.KeepAlive, clients, 100<<10, nil)
	body.Name, body.Rate = "bodies", 50
	upload := t.flow(load.Upload, clients, bodyBytes, nil)
	upload.Sends, upload.Rate = 64<<10, 20
	resumed := t.flow(load.Resumed, clients, bodyBytes, tls13())
	resumed.Rate = 50
	return append(flows, body, upload, resumed)
}
