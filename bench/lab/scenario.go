//go:build linux

package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"lbd/bench/load"
)

// scenario is one question to all proxies.
type scenario struct {
	name, about string
	site        site
	// quota is the share of its core that a proxy may use; zero is all of it. It keeps the load side from being the limit where a
	// client works as hard as a proxy.
	quota float64
	// warm is added to the usual warm-up.
	warm time.Duration
	// length of the measured window, where the usual one is too short for the question. -measure overrides it.
	length time.Duration
	// closed: the clients go as fast as the proxy lets them, so the proxy must be busy, or the figures are the load side's.
	closed bool
	// change is made four times a second during the window; quiet windows before it say what latency is without. Nil: none.
	change change
	// log: with an access log, whatever the options say; bare: without metrics.
	log, bare bool
	// How the scenario appears in a run of everything: with the Go peers as well, with one kind of proxy only, with one repeat.
	wide bool
	only string
	once bool
	// headline: a row of the README's table.
	headline bool
	// peak: first measure what the proxy can do in a closed loop; the flows are told.
	peak bool
	// short: part of the short mode.
	short bool
	unit  unit
	view  view
	// goal is the ratio to the better Debian peer that lbd must not exceed. Zero: none.
	goal  float64
	flows func(t target) []load.Flow
}

// change makes one change of a running proxy in its own way, and returns how long it took until it was served.
type change func(*bed, context.Context, *proxy) (time.Duration, error)

// unit is what the proxy's CPU time is divided by.
type unit string

const (
	perRequest    unit = "request"
	perConnection unit = "connection"
	perMebibyte   unit = "MiB"
	perMessage    unit = "message"
)

// target is what flows are made for.
type target struct {
	setup
	options
	peak float64 // requests per second, where the scenario asks for it
}

// flow is one on the plain or the TLS listener.
func (t target) flow(kind load.Kind, clients, bytes int, tls *load.TLS) load.Flow {
	f := load.Flow{Name: string(kind), Address: t.HTTP, Kind: kind, Clients: clients, Bytes: bytes, Hosts: t.Hosts, TLS: tls}
	if tls != nil {
		f.Address = t.HTTPS
		if len(t.Certificates) == 0 {
			f.TLS.LeafDER = t.leaf
		}
	}
	return f
}

func (t target) rated(f load.Flow, rate float64) load.Flow {
	f.Rate = rate
	if t.rate > 0 {
		f.Rate = t.rate
	}
	return f
}

// classic agrees on X25519. P-256 is offered as well because a TLS 1.2 server takes the list for the certificate's curve, too.
func classic(version string) *load.TLS {
	return &load.TLS{Version: version, Groups: []string{"X25519", "P256"}}
}

func hybrid() *load.TLS {
	return &load.TLS{Version: "1.3", Groups: []string{"X25519MLKEM768", "X25519", "P256"}}
}

const (
	bodyBytes = 1 << 10
	clients   = 64
	// cheapQuota is for requests that cost the load side about as much as the proxy: the one sends and receives what the other receives
	// and sends.
	cheapQuota = 0.75
	// dearQuota is for handshakes and large bodies, which cost the load side more than a good proxy.
	dearQuota = 0.5
)

// closedLoop is the usual question: what does a unit cost when the proxy is saturated?
func closedLoop(kind load.Kind, clients, bytes int, tls func() *load.TLS) func(target) []load.Flow {
	return func(t target) []load.Flow {
		var offer *load.TLS
		if tls != nil {
			offer = tls()
		}
		f := t.flow(kind, clients, bytes, offer)
		if t.rate > 0 {
			f.Rate = t.rate
		}
		return []load.Flow{f}
	}
}

func tls13() *load.TLS { return classic("1.3") }
func tls12() *load.TLS { return classic("1.2") }

var scenarios = []*scenario{
	{name: "single", about: "one backend, kept-alive, 1 KiB", wide: true, headline: true, quota: cheapQuota, goal: 0.90, closed: true, short: true, unit: perRequest, flows: closedLoop(load.KeepAlive, clients, bodyBytes, nil)},
	{name: "lb", about: "three backends", wide: true, quota: cheapQuota, goal: 0.90, site: site{backends: 3}, closed: true, unit: perRequest, flows: closedLoop(load.KeepAlive, clients, bodyBytes, nil)},
	{name: "routes", about: "1,000 hosts with a route each", wide: true, headline: true, quota: cheapQuota, goal: 0.90, site: site{hosts: 1000}, closed: true, short: true, unit: perRequest, flows: closedLoop(load.KeepAlive, clients, bodyBytes, nil)},
	{name: "tls", about: "TLS 1.3, kept-alive", wide: true, headline: true, quota: cheapQuota, goal: 0.85, closed: true, short: true, unit: perRequest, flows: closedLoop(load.KeepAlive, clients, bodyBytes, tls13)},
	{name: "reencrypt", about: "as tls, with TLS 1.3 to the backend, too, which is verified", quota: dearQuota, site: site{encrypted: true}, closed: true, unit: perRequest, flows: closedLoop(load.KeepAlive, clients, bodyBytes, tls13)},
	{name: "reencrypt-1m", about: "the same with bodies of 1 MiB", quota: dearQuota, site: site{encrypted: true}, closed: true, unit: perMebibyte, flows: closedLoop(load.KeepAlive, clients/4, 1<<20, tls13)},
	{name: "many-routes", about: "10,000 hosts with a route each", once: true, quota: cheapQuota, site: site{hosts: 10_000}, closed: true, view: viewStart, unit: perRequest, flows: closedLoop(load.KeepAlive, clients, bodyBytes, nil)},
	{name: "many-certificates", about: "10,000 hosts with a route and a certificate each, TLS 1.3, kept-alive", once: true, quota: cheapQuota, site: site{hosts: 10_000, certificates: true}, closed: true, view: viewStart, unit: perRequest, flows: closedLoop(load.KeepAlive, clients, bodyBytes, tls13)},
	{name: "many-backends", about: "200 backends that close after 10 s idle, one request each a second, 8 loops, workers or threads", once: true, site: site{backends: 200, backendIdle: 10 * time.Second, loops: 8},
		warm: 12 * time.Second, length: 12 * time.Second, view: viewRate, unit: perRequest,
		flows: func(t target) []load.Flow {
			return []load.Flow{t.rated(t.flow(load.KeepAlive, clients, bodyBytes, nil), 200)}
		}},
	{name: "long-lived", about: "64 connections kept for long, 4,000 requests/s over all, 8 loops, workers or threads", site: site{loops: 8}, view: viewLoops, unit: perRequest,
		flows: func(t target) []load.Flow {
			return []load.Flow{t.rated(t.flow(load.KeepAlive, clients, bodyBytes, nil), 4000)}
		}},
	{name: "single-log", about: "as single, with an access log", quota: cheapQuota, log: true, closed: true, unit: perRequest, flows: closedLoop(load.KeepAlive, clients, bodyBytes, nil)},
	{name: "single-bare", about: "as single, without metrics", quota: cheapQuota, bare: true, closed: true, unit: perRequest, flows: closedLoop(load.KeepAlive, clients, bodyBytes, nil)},
	{name: "tls-log", about: "as tls, with an access log", quota: cheapQuota, log: true, closed: true, unit: perRequest, flows: closedLoop(load.KeepAlive, clients, bodyBytes, tls13)},
	{name: "tls-bare", about: "as tls, without metrics", quota: cheapQuota, bare: true, closed: true, unit: perRequest, flows: closedLoop(load.KeepAlive, clients, bodyBytes, tls13)},
	{name: "heads", about: "requests with 20 fields and 2 kB of cookies", quota: cheapQuota, closed: true, unit: perRequest, flows: heads},
	{name: "new", about: "a plain connection for each request", wide: true, quota: cheapQuota, closed: true, unit: perConnection, flows: closedLoop(load.Fresh, clients, bodyBytes, nil)},
	{name: "tls-new", about: "TLS 1.3, a full handshake for each request", wide: true, headline: true, goal: 0.60, quota: dearQuota, closed: true, short: true, unit: perConnection, flows: closedLoop(load.Fresh, clients, bodyBytes, tls13)},
	{name: "tls-new-12", about: "TLS 1.2, a full handshake for each request", goal: 0.80, site: site{tlsVersion: "1.2"}, quota: dearQuota, closed: true, unit: perConnection, flows: closedLoop(load.Fresh, clients, bodyBytes, tls12)},
	{name: "tls-new-rsa", about: "TLS 1.3 with an RSA-2048 certificate", once: true, site: site{rsa: true}, quota: dearQuota, closed: true, unit: perConnection, flows: closedLoop(load.Fresh, clients, bodyBytes, tls13)},
	{name: "tls-new-mlkem", about: "TLS 1.3, clients offer X25519MLKEM768 first", once: true, quota: dearQuota, closed: true, unit: perConnection, flows: closedLoop(load.Fresh, clients, bodyBytes, hybrid)},
	{name: "tls-resumed", about: "TLS 1.3, a resumed handshake for each request", wide: true, headline: true, goal: 0.65, quota: dearQuota, closed: true, short: true, unit: perConnection, flows: closedLoop(load.Resumed, clients, bodyBytes, tls13)},
	{name: "tls-resumed-12", about: "TLS 1.2, a resumed handshake for each request", goal: 0.95, site: site{tlsVersion: "1.2"}, quota: dearQuota, closed: true, unit: perConnection, flows: closedLoop(load.Resumed, clients, bodyBytes, tls12)},
	{name: "tls-resumed-mlkem", about: "TLS 1.3, resumed, clients offer X25519MLKEM768 first", once: true, quota: dearQuota, closed: true, unit: perConnection, flows: closedLoop(load.Resumed, clients, bodyBytes, hybrid)},
	{name: "mix", about: "TLS 1.3, a handshake for each request, 90 % resumed", quota: dearQuota, closed: true, unit: perConnection, flows: mix},
	{name: "slow", about: "a backend that takes 100 ms, thousands in flight", headline: true, quota: cheapQuota, goal: 1.00, site: site{delay: 100 * time.Millisecond}, warm: 2 * time.Second, closed: true, unit: perRequest,
		flows: func(t target) []load.Flow { return closedLoop(load.KeepAlive, t.inFlight, bodyBytes, nil)(t) }},
	{name: "body-100k", about: "bodies of 100 KiB", quota: dearQuota, goal: 1.00, closed: true, unit: perMebibyte, flows: closedLoop(load.KeepAlive, clients, 100<<10, nil)},
	{name: "body-1m", about: "bodies of 1 MiB", wide: true, headline: true, quota: dearQuota, goal: 1.00, closed: true, unit: perMebibyte, flows: closedLoop(load.KeepAlive, clients/4, 1<<20, nil)},
	{name: "tls-body-100k", about: "bodies of 100 KiB over TLS 1.3", quota: dearQuota, goal: 1.00, closed: true, unit: perMebibyte, flows: closedLoop(load.KeepAlive, clients, 100<<10, tls13)},
	{name: "tls-body-1m", about: "bodies of 1 MiB over TLS 1.3", quota: dearQuota, goal: 1.00, closed: true, unit: perMebibyte, flows: closedLoop(load.KeepAlive, clients/4, 1<<20, tls13)},
	{name: "overload", about: "four times what the proxy can serve, clients that leave after 1 s", quota: overloadQuota, peak: true, view: viewOverload, short: true, unit: perRequest, flows: overload},
	{name: "storm", about: "1,000 requests/s on established TLS connections while 500 new ones arrive each second", goal: 1.00, quota: stormQuota, warm: stormAfter, view: viewStorm, short: true, unit: perRequest, flows: storm},
	{name: "rotation", about: "1,000 requests/s over TLS and 100 new connections/s, while a certificate is changed four times a second", wide: true, once: true, site: site{hosts: 10, certificates: true},
		length: 10 * time.Second, change: (*bed).rotate, view: viewChanges, unit: perRequest, flows: changes},
	{name: "apply", about: "the same load, while a route is changed four times a second", wide: true, once: true, site: site{hosts: 10, certificates: true},
		length: 10 * time.Second, change: (*bed).reroute, view: viewChanges, unit: perRequest, flows: changes},
	{name: "changes", about: "the same load for 5 minutes, while a route and a certificate are changed in turn, four times a second", only: "lbd", once: true, site: site{hosts: 10, certificates: true},
		length: 5 * time.Minute, change: (*bed).changeInTurn, view: viewChanges, unit: perRequest, flows: changes},
	{name: "soak", about: "requests, handshakes, large bodies and uploads for a minute, while routes and certificates change and one backend of three dies again and again", only: "lbd", once: true,
		site: site{hosts: 10, certificates: true, backends: 3, mortal: true}, length: time.Minute, change: (*bed).changeInTurn, view: viewChanges, unit: perRequest, flows: soak},
	{name: "tunnels", about: "websocket messages of 38 bytes and their echo", quota: cheapQuota, closed: true, unit: perMessage, flows: closedLoop(load.Tunnel, clients, 0, nil)},
	{name: "uploads", about: "1,000 requests/s while 1,000 clients upload at 1 kB/s", once: true, warm: time.Second, view: viewRate, unit: perRequest, flows: uploads},
	{name: "idle-tunnels", about: "idle websocket tunnels, after one message", once: true, warm: time.Second, view: viewIdle, unit: perConnection,
		flows: func(t target) []load.Flow { return closedLoop(load.IdleTunnel, t.idleClients/2, 0, nil)(t) }},
	{name: "idle", about: "idle kept-alive connections, after one GET", once: true, short: true, warm: time.Second, view: viewIdle, unit: perConnection, flows: idle(nil)},
	{name: "idle-tls", about: "idle kept-alive TLS 1.3 connections, after one GET", wide: true, headline: true, warm: time.Second, view: viewIdle, unit: perConnection, flows: idle(tls13)},
}

// rates are the open-loop rates that "all" includes; any other rate-N works too.
var rates = []int{2000, 4000, 8000, 16000}

func init() {
	for _, rate := range rates {
		scenarios = append(scenarios, rateScenario(rate))
	}
}

func rateScenario(rate int) *scenario {
	s := &scenario{
		name: fmt.Sprintf("rate-%d", rate), about: fmt.Sprintf("%d requests/s, plain, kept-alive", rate), view: viewRate, unit: perRequest, short: rate == 4000, headline: rate == 4000, wide: true,
		flows: func(t target) []load.Flow {
			return []load.Flow{t.rated(t.flow(load.KeepAlive, clients, bodyBytes, nil), float64(rate))}
		},
	}
	if rate == 4000 || rate == 8000 {
		s.goal = 1
	}
	return s
}

// planned says whether a run of everything has this proxy in this repeat.
func (sc *scenario) planned(p *proxy, repeat int) bool {
	goPeer := p.kind.name == "caddy" || p.kind.name == "traefik"
	return (repeat == 1 || !sc.once) && (sc.wide || !goPeer) && (sc.only == "" || sc.only == p.kind.name)
}

// pickScenarios returns those that the options ask for, in the order of the list.
func pickScenarios(o options) ([]*scenario, error) {
	names := o.scenarios
	if len(names) == 0 && !o.short || slices.Equal(names, []string{"all"}) {
		return scenarios, nil
	}
	var picked []*scenario
	for _, s := range scenarios {
		if slices.Contains(names, s.name) || len(names) == 0 && s.short {
			picked = append(picked, s)
		}
	}
	for _, name := range names {
		if slices.ContainsFunc(picked, func(s *scenario) bool { return s.name == name }) {
			continue
		}
		rate, err := strconv.Atoi(strings.TrimPrefix(name, "rate-"))
		if err != nil || !strings.HasPrefix(name, "rate-") || rate < 1 {
			return nil, fmt.Errorf("unknown scenario %q; -list shows them", name)
		}
		picked = append(picked, rateScenario(rate))
	}
	return picked, nil
}
