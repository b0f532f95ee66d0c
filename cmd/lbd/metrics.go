package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lbd/cluster/rpc"
	"lbd/lb"
	lbdv1 "lbd/proto/lbd/v1"
	tlsterm "lbd/tls"
)

// scrapesMax bounds the scrapes at a time. Two collectors at the same moment are usual, more is a mistake.
const scrapesMax = 4

// certificateWait is what a scrape waits for the node's first certificate.
const certificateWait = 5 * time.Second

// metricsServer answers /metrics: on loopback in the clear and to everybody, elsewhere with TLS and to viewers.
type metricsServer struct {
	secure   bool
	listener net.Listener // nil: off
	server   *http.Server // nil before serve
	done     sync.WaitGroup
}

func openMetrics(from *inherited, address string) (*metricsServer, error) {
	if address == "off" {
		return &metricsServer{}, nil
	}
	l, err := from.listen(forMetrics, address)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w; give --metrics HOST:PORT, or off", err)
	}
	return &metricsServer{listener: l, secure: !isLoopback(address)}, nil
}

// admitter finds out who asks, and whether they may: rpc.Server.
type admitter interface {
	Admit(ask rpc.Ask) error
}

// serve answers until close. The authority is asked for its certificate where the metrics are not on loopback.
func (m *metricsServer) serve(a *appliance, who admitter, shown *authority) {
	if m.listener == nil {
		return
	}
	handler := promhttp.HandlerFor(a.registry, promhttp.HandlerOpts{MaxRequestsInFlight: scrapesMax})
	listener := m.listener
	if m.secure {
		handler = viewersOnly(who, handler)
		listener = tls.NewListener(listener, metricsTLS(shown))
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", handler)
	m.server = &http.Server{
		Handler: mux, ErrorLog: slog.NewLogLogger(a.log.Handler(), slog.LevelWarn),
		ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute,
	}
	m.done.Go(func() {
		if err := m.server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			a.log.Error("metrics are no longer served", "err", err)
		}
	})
}

func metricsTLS(shown *authority) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		ClientAuth: tls.RequestClientCert,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			ctx, cancel := context.WithTimeout(context.Background(), certificateWait)
			defer cancel()
			return shown.certificate(ctx)
		},
	}
}

// viewersOnly asks for a token or a client certificate, as the control port does.
func viewersOnly(who admitter, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := who.Admit(rpc.Ask{
			Method: "metrics", Source: r.RemoteAddr, Authorization: r.Header.Values("Authorization"), Chain: r.TLS.PeerCertificates,
			Least: lbdv1.Role_ROLE_VIEWER,
		})
		if err == nil {
			next.ServeHTTP(w, r)
			return
		}
		code := http.StatusForbidden
		switch status.Code(err) {
		case codes.Unauthenticated:
			w.Header().Set("WWW-Authenticate", `Bearer realm="lbd"`)
			code = http.StatusUnauthorized
		case codes.ResourceExhausted:
			w.Header().Set("Retry-After", "3")
			code = http.StatusTooManyRequests
		}
		http.Error(w, status.Convert(err).Message(), code)
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
	descRequests = desc("requests_total", "Requests by class of the status that was sent (none: no answer was); pool and backend are those of the last try.",
		"listener", "route", "pool", "backend", "code")
	descSeconds     = desc("request_seconds", "From the first byte of a request to the last of its answer, or to the 101 of a tunnel.", "listener", "route")
	descRefused     = desc("refused_total", "Requests and connections that did not end well, by reason.", "listener", "reason")
	descConnections = desc("client_connections", "Client connections now.", "listener")
	descProgrammed  = desc("listener_programmed", "Whether a listener is served as it is stored; 0 where an address cannot be had, for one.", "listener")
	descBackendUp   = desc("backend_up", "Whether a backend takes requests, or would as a backup: it is healthy, not ejected, not taken out, and has an address.", "pool", "backend")
	descInFlight    = desc("backend_inflight", "Requests at a backend now, of all pools; none that wait for a connection.", "backend")
	descBackendReqs = desc("backend_requests_total", "Tries sent to a backend.", "backend")
	descBackendFail = desc("backend_failures_total", "Tries that brought no whole answer, by the backend's fault.", "backend")
	descBackendConn = desc("backend_connections_total", "Connections made to a backend (new), and tries that found one idle (reused).", "backend", "kind")
	descBackendOpen = desc("backend_connections", "Connections to a backend now, idle ones included.", "backend")
	descQueued      = desc("backend_queued", "Requests that wait for a connection to a backend now, of all pools.", "backend")
	descQueueLost   = desc("queue_refused_total", "Requests of a pool that found no place in its queue for a backend (full), or no turn in time (timeout).", "pool", "backend", "reason")
	descEjections   = desc("backend_ejections_total", "How often a backend was taken out because requests to it failed.", "pool", "backend")
	descEligible    = desc("pool_eligible_backends", "Backends of a pool that take requests now.", "pool")
	descFailOpen    = desc("pool_fail_open", "Whether so few backends are eligible that all take requests.", "pool")
	descRetries     = desc("retries_total", "Tries after the first.")
	descHandshakes  = desc("handshakes_total", "TLS handshakes.", "version", "kind", "result")
	descNotAfter    = desc("certificate_not_after_seconds", "The end of a certificate's validity, in seconds since 1970.", "certificate")
	descRevision    = desc("revision", "The newest revision, stored and served.", "kind")
	descStateBytes  = desc("state_bytes", "What the replicated state takes, encoded, by kind.", "kind")
	descStateBudget = desc("state_budget_bytes", "What state_bytes of cluster_settings grants the replicated state.")
	descLoopBusy    = desc("loop_busy_ratio", "Share of a loop's time that it did not wait.", "loop")
	descLoopConns   = desc("loop_connections", "Connections of a loop now.", "loop")
	descLoopClients = desc("loop_client_connections", "Client connections of a loop now.", "loop")
	descLoopStall   = desc("loop_stall_seconds", "For how long a loop has not come back from its tasks, once that is over a second; else 0.", "loop")
	descLoopStalls  = desc("loop_stalls_total", "How often a loop did not come back for over a second.", "loop")
	descLogDropped  = desc("access_log_dropped_total", "Lines that the access log could not take.")
	descRaftLeader  = desc("raft_leader", "Whether this node leads.")
	descRaftTerm    = desc("raft_term", "The term of the last election.")
	descRaftIndex   = desc("raft_index", "Entries of the log: the last one there, committed, and applied.", "kind")
	descBackupLast  = desc("backup_last_success_seconds", "When the newest scheduled backup of this node was made, in seconds since 1970.")
	descBackupFails = desc("backup_failures_total", "Scheduled backups that failed.")
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
	for _, l := range c.a.listenerStatuses(c.a.Progress()) {
		programmed := 0.0
		if l.GetProgrammed() {
			programmed = 1
		}
		gauge(out, descProgrammed, programmed, l.GetName())
	}
	collectTraffic(out, c.a.server.Traffic())
	c.collectUp(out, stats.Pools)
	collectBackends(out, stats.Pools)
	counter(out, descRetries, stats.Retries)
	collectHandshakes(out, c.a.terminator.Stats())
	for cert := range c.a.certificates.Current().All() {
		gauge(out, descNotAfter, float64(cert.NotAfter().Unix()), cert.Name())
	}
	if b := c.a.backups; b != nil {
		if at := b.succeeded.Load(); at > 0 {
			gauge(out, descBackupLast, float64(at))
		}
		counter(out, descBackupFails, b.failures.Load())
	}
	gauge(out, descRevision, float64(c.a.node.State().Revision()), "stored")
	gauge(out, descRevision, float64(c.a.Progress().Revision), "served")
	c.collectState(out)
	for i, l := range c.a.engine.Stats().Loops {
		n := strconv.Itoa(i)
		gauge(out, descLoopBusy, l.Busy, n)
		gauge(out, descLoopConns, float64(l.Connections), n)
		gauge(out, descLoopClients, float64(l.Served), n)
		gauge(out, descLoopStall, l.StalledFor.Seconds(), n)
		counter(out, descLoopStalls, l.Stalls, n)
	}
	counter(out, descLogDropped, c.a.access.droppedLines())
	c.collectRaft(out)
	c.collectTickets(out)
	c.collectNode(out)
	b := readBuild()
	gauge(out, descBuild, 1, b.version, b.commit, b.goVersion)
}

var codeClasses = [...]string{"none", "1xx", "2xx", "3xx", "4xx", "5xx"}

func collectListener(out chan<- prometheus.Metric, l *lb.ListenerStats) {
	gauge(out, descConnections, float64(l.Connections), l.Name)
	for _, reason := range lb.Reasons() {
		if reason != lb.OK {
			counter(out, descRefused, l.Ended[reason], l.Name, reason.String())
		}
	}
}

// collectTraffic leaves out what is zero: ten thousand routes of which a hundred are asked for are a hundred in the answer.
func collectTraffic(out chan<- prometheus.Metric, traffic []lb.TrafficStats) {
	for i := range traffic {
		t := &traffic[i]
		for _, line := range t.Lines {
			for class, n := range line.Requests {
				if n > 0 {
					counter(out, descRequests, n, t.Listener, t.Route, line.Pool, line.Backend, codeClasses[class])
				}
			}
		}
		buckets := make(map[float64]uint64, len(t.Seconds.Bounds))
		count := uint64(0)
		for i, bound := range t.Seconds.Bounds {
			count += uint64(t.Seconds.Buckets[i])
			buckets[bound.Seconds()] = count
		}
		count += uint64(t.Seconds.Buckets[len(t.Seconds.Bounds)])
		out <- prometheus.MustNewConstHistogram(descSeconds, count, t.Seconds.Sum.Seconds(), buckets, t.Listener, t.Route)
	}
}

func (c collector) collectUp(out chan<- prometheus.Metric, pools []lb.PoolStats) {
	for i := range pools {
		eligible := 0.0
		for j := range pools[i].Backends {
			b := &pools[i].Backends[j]
			up := 0.0
			if b.Takes || b.Why == "backup" {
				up = 1
			}
			if b.Takes {
				eligible++
			}
			gauge(out, descBackendUp, up, pools[i].Name, b.Name)
			counter(out, descEjections, b.Ejections, pools[i].Name, b.Name)
			counter(out, descQueueLost, b.QueueFull, pools[i].Name, b.Name, "full")
			counter(out, descQueueLost, b.QueueTimeouts, pools[i].Name, b.Name, "timeout")
		}
		failOpen := 0.0
		if pools[i].FailOpen {
			failOpen = 1
		}
		gauge(out, descEligible, eligible, pools[i].Name)
		gauge(out, descFailOpen, failOpen, pools[i].Name)
	}
}

// collectBackends adds up what has the same address: pools share a backend, or have it with checks of their own. Who waits is counted
// by pool.
func collectBackends(out chan<- prometheus.Metric, pools []lb.PoolStats) {
	type sum struct {
		lb.BackendStats
		queued int64
	}
	counted, sums := map[string]bool{}, map[string]sum{}
	for i := range pools {
		for j := range pools[i].Backends {
			b := &pools[i].Backends[j]
			s := sums[b.Name]
			s.queued += b.Queued
			if counted[b.Key] {
				sums[b.Name] = s
				continue
			}
			counted[b.Key] = true
			s.InFlight += b.InFlight
			s.Requests += b.Requests
			s.Failures += b.Failures
			s.NewConnections += b.NewConnections
			s.Reused += b.Reused
			s.Connections += b.Connections
			sums[b.Name] = s
		}
	}
	for name, s := range sums {
		gauge(out, descInFlight, float64(s.InFlight), name)
		counter(out, descBackendReqs, s.Requests, name)
		counter(out, descBackendFail, s.Failures, name)
		counter(out, descBackendConn, s.NewConnections, name, "new")
		counter(out, descBackendConn, s.Reused, name, "reused")
		gauge(out, descBackendOpen, float64(s.Connections), name)
		gauge(out, descQueued, float64(s.queued), name)
	}
}

func collectHandshakes(out chan<- prometheus.Metric, counts []tlsterm.HandshakeCount) {
	for _, h := range counts {
		counter(out, descHandshakes, int64(h.Count), h.Version, h.Kind, h.Result)
	}
}

func (c collector) collectState(out chan<- prometheus.Metric) {
	s := c.a.node.State()
	used := s.Usage()
	gauge(out, descStateBytes, float64(used.Resources), "resources")
	gauge(out, descStateBytes, float64(used.History), "history")
	gauge(out, descStateBytes, float64(used.Other), "other")
	gauge(out, descStateBudget, float64(s.StateBytes()))
}

// newPublishTimes measures publishes, which one goroutine does and nobody waits for but the operator.
func newPublishTimes() *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "lbd_publish_seconds", Help: "How long the phases of a change took on this node, from what is stored to what is served.",
		Buckets: []float64{.0001, .001, .01, .1, 1, 10},
	}, []string{"phase"})
}

// phaseClock observes one phase after the other.
type phaseClock struct {
	times *prometheus.HistogramVec
	began time.Time
}

// ended says which phase has just come to its end.
func (c *phaseClock) ended(phase string) {
	now := time.Now()
	c.times.WithLabelValues(phase).Observe(now.Sub(c.began).Seconds())
	c.began = now
}

func counter(out chan<- prometheus.Metric, d *prometheus.Desc, v int64, labels ...string) {
	out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
}

func gauge(out chan<- prometheus.Metric, d *prometheus.Desc, v float64, labels ...string) {
	out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}
