package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"lbd/lb"
)

// scrapesMax bounds the scrapes at a time. Two collectors at the same moment are usual, more is a mistake.
const scrapesMax = 4

// metricsServer answers /metrics in the clear, on loopback only.
type metricsServer struct {
	listener net.Listener // nil: off
	server   *http.Server // nil before serve
	done     sync.WaitGroup
}

func openMetrics(address string) (*metricsServer, error) {
	if address == "off" {
		return &metricsServer{}, nil
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w; give --metrics HOST:PORT, or off", err)
	}
	return &metricsServer{listener: l}, nil
}

func (m *metricsServer) serve(a *appliance) {
	if m.listener == nil {
		return
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collector{a})
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: scrapesMax}))
	m.server = &http.Server{
		Handler: mux, ErrorLog: slog.NewLogLogger(a.log.Handler(), slog.LevelWarn),
		ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute,
	}
	m.done.Go(func() {
		if err := m.server.Serve(m.listener); !errors.Is(err, http.ErrServerClosed) {
			a.log.Error("metrics are no longer served", "err", err)
		}
	})
}

func (m *metricsServer) close() {
	if m.server == nil {
		if m.listener != nil {
			_ = m.listener.Close()
		}
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if m.server.Shutdown(ctx) != nil {
		_ = m.server.Close()
	}
	m.done.Wait()
}

// collector reads the node's counters when it is asked: nothing is kept twice, and the hot path knows nothing of Prometheus.
type collector struct{ a *appliance }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("lbd_"+name, help, labels, nil)
}

var (
	descRequests    = desc("requests_total", "Requests by class of the status that was sent.", "listener", "code")
	descRefused     = desc("refused_total", "Requests and connections that did not end well, by reason.", "listener", "reason")
	descConnections = desc("client_connections", "Client connections now.", "listener")
	descBackendUp   = desc("backend_up", "Whether a backend takes requests.", "pool", "backend")
	descInFlight    = desc("backend_inflight", "Requests at a backend now.", "pool", "backend")
	descBackendReqs = desc("backend_requests_total", "Tries sent to a backend.", "pool", "backend")
	descBackendFail = desc("backend_failures_total", "Tries that brought no whole answer, by the backend's fault.", "pool", "backend")
	descBackendConn = desc("backend_connections_total", "Tries on a new connection and on a kept one.", "pool", "backend", "kind")
	descRetries     = desc("retries_total", "Tries after the first.")
	descHandshakes  = desc("handshakes_total", "TLS handshakes.", "version", "kind", "result")
	descNotAfter    = desc("certificate_not_after_seconds", "The end of a certificate's validity, in seconds since 1970.", "certificate")
	descRevision    = desc("revision", "The newest revision, stored and served.", "kind")
	descLoopBusy    = desc("loop_busy_ratio", "Share of a loop's time that it did not wait.", "loop")
	descLoopConns   = desc("loop_connections", "Connections of a loop now.", "loop")
	descLoopStalls  = desc("loop_stalls_total", "How often a loop did not come back for over a second.", "loop")
	descBuild       = desc("build_info", "The build.", "version", "commit", "go_version")
)

// Describe says nothing: what is collected follows the configuration.
func (c collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collector) Collect(out chan<- prometheus.Metric) {
	stats := c.a.server.Stats()
	for i := range stats.Listeners {
		collectListener(out, &stats.Listeners[i])
	}
	for i := range stats.Pools {
		c.collectPool(out, &stats.Pools[i])
	}
	counter(out, descRetries, stats.Retries)
	for _, h := range c.a.terminator.Stats() {
		counter(out, descHandshakes, int64(h.Count), h.Version, h.Kind, h.Result)
	}
	for cert := range c.a.certificates.Current().All() {
		gauge(out, descNotAfter, float64(cert.NotAfter().Unix()), cert.Name())
	}
	gauge(out, descRevision, float64(c.a.node.State().Revision()), "stored")
	gauge(out, descRevision, float64(c.a.Progress().Revision), "served")
	for i, l := range c.a.engine.Stats().Loops {
		n := strconv.Itoa(i)
		gauge(out, descLoopBusy, l.Busy, n)
		gauge(out, descLoopConns, float64(l.Connections), n)
		counter(out, descLoopStalls, l.Stalls, n)
	}
	b := readBuild()
	gauge(out, descBuild, 1, b.version, b.commit, b.goVersion)
}

var codeClasses = [...]string{"none", "1xx", "2xx", "3xx", "4xx", "5xx"}

func collectListener(out chan<- prometheus.Metric, l *lb.ListenerStats) {
	gauge(out, descConnections, float64(l.Connections), l.Name)
	for class, n := range l.Requests {
		counter(out, descRequests, n, l.Name, codeClasses[class])
	}
	for _, reason := range lb.Reasons() {
		if reason != lb.OK {
			counter(out, descRefused, l.Ended[reason], l.Name, reason.String())
		}
	}
}

func (c collector) collectPool(out chan<- prometheus.Metric, p *lb.PoolStats) {
	for i := range p.Backends {
		b := &p.Backends[i]
		up := 0.0
		if b.Eligible && c.a.resolver.address(b.Name).IsValid() {
			up = 1
		}
		gauge(out, descBackendUp, up, p.Name, b.Name)
		gauge(out, descInFlight, float64(b.InFlight), p.Name, b.Name)
		counter(out, descBackendReqs, b.Requests, p.Name, b.Name)
		counter(out, descBackendFail, b.Failures, p.Name, b.Name)
		counter(out, descBackendConn, b.NewConnections, p.Name, b.Name, "new")
		counter(out, descBackendConn, b.Reused, p.Name, b.Name, "reused")
	}
}

func counter(out chan<- prometheus.Metric, d *prometheus.Desc, v int64, labels ...string) {
	out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
}

func gauge(out chan<- prometheus.Metric, d *prometheus.Desc, v float64, labels ...string) {
	out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}
