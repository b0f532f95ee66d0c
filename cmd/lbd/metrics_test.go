package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/protobuf/proto"

	"lbd/lb"
)

// collectFunc is an unchecked collector.
type collectFunc func(chan<- prometheus.Metric)

func (collectFunc) Describe(chan<- *prometheus.Desc) {}

func (f collectFunc) Collect(out chan<- prometheus.Metric) { f(out) }

// scrape returns the sorted lines of what collectors say, without comments. It fails on whatever Prometheus would not take.
func scrape(t testing.TB, collect func(chan<- prometheus.Metric)) []string {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(collectFunc(collect))
	answer := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if answer.Code != http.StatusOK {
		t.Fatalf("%d %s", answer.Code, answer.Body)
	}
	var lines []string
	for line := range strings.Lines(answer.Body.String()) {
		if !strings.HasPrefix(line, "#") {
			lines = append(lines, strings.TrimSuffix(line, "\n"))
		}
	}
	slices.Sort(lines)
	return lines
}

// TestMetricsOfSharedBackends: a backend in two pools is counted once, but for who waits there; one address with two checks is one backend.
func TestMetricsOfSharedBackends(t *testing.T) {
	stats := func(key string, n int64) lb.PoolBackendStats {
		return lb.PoolBackendStats{BackendStats: lb.BackendStats{Key: key, Name: "b:80", InFlight: n, Requests: 10 * n, Failures: n, NewConnections: 2 * n, Reused: 8 * n, Connections: 3 * n}, Queued: 4 * n}
	}
	pools := []lb.PoolStats{
		{Name: "one", Backends: []lb.PoolBackendStats{stats("shared", 1)}},
		{Name: "two", Backends: []lb.PoolBackendStats{stats("shared", 1)}},
		{Name: "three", Backends: []lb.PoolBackendStats{stats("own check", 2)}},
	}
	got := scrape(t, func(out chan<- prometheus.Metric) { collectBackends(out, pools) })
	want := []string{
		`lbd_backend_connections_total{backend="b:80",kind="new"} 6`,
		`lbd_backend_connections_total{backend="b:80",kind="reused"} 24`,
		`lbd_backend_connections{backend="b:80"} 9`,
		`lbd_backend_failures_total{backend="b:80"} 3`,
		`lbd_backend_inflight{backend="b:80"} 3`,
		`lbd_backend_queued{backend="b:80"} 16`,
		`lbd_backend_requests_total{backend="b:80"} 30`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s", strings.Join(got, "\n"))
	}
}

// TestMetricsOfQueues: what a queue has refused is its pool's, also where others have the same backend.
func TestMetricsOfQueues(t *testing.T) {
	stats := func(full, timeouts int64) []lb.PoolBackendStats {
		return []lb.PoolBackendStats{{BackendStats: lb.BackendStats{Key: "shared", Name: "b:80"}, QueueFull: full, QueueTimeouts: timeouts}}
	}
	pools := []lb.PoolStats{{Name: "one", Backends: stats(3, 0)}, {Name: "two", Backends: stats(0, 5)}}
	got := scrape(t, func(out chan<- prometheus.Metric) { collector{}.collectUp(out, pools) })
	for _, want := range []string{
		`lbd_queue_refused_total{backend="b:80",pool="one",reason="full"} 3`,
		`lbd_queue_refused_total{backend="b:80",pool="one",reason="timeout"} 0`,
		`lbd_queue_refused_total{backend="b:80",pool="two",reason="full"} 0`,
		`lbd_queue_refused_total{backend="b:80",pool="two",reason="timeout"} 5`,
	} {
		if !slices.Contains(got, want) {
			t.Errorf("no %s in\n%s", want, strings.Join(got, "\n"))
		}
	}
}

func trafficOf(routes int) []lb.TrafficStats {
	all := make([]lb.TrafficStats, routes)
	bounds := make([]time.Duration, 14)
	for i := range bounds {
		bounds[i] = time.Duration(i+1) * time.Millisecond
	}
	for i := range all {
		all[i] = lb.TrafficStats{
			Listener: "https", Route: fmt.Sprint("route-", i),
			Seconds: lb.Histogram{Bounds: bounds, Buckets: make([]int64, 15)},
			Lines:   []lb.TrafficLine{{Pool: "p", Backend: "10.0.0.1:80", Requests: [6]int64{2: 7, 4: 1}}, {Pool: "p", Backend: "10.0.0.2:80"}},
		}
	}
	return all
}

func TestMetricsOfTraffic(t *testing.T) {
	r := newRig(t)
	for range 3 {
		r.serves("http://"+r.address("http"), 200)
	}
	eventually(t, "three counted", func() bool {
		got := scrape(t, func(out chan<- prometheus.Metric) { collectTraffic(out, r.server.Traffic()) })
		return slices.Contains(got, `lbd_requests_total{backend="",code="2xx",listener="http",pool="",route="default"} 3`) &&
			slices.Contains(got, `lbd_request_seconds_bucket{listener="http",route="default",le="+Inf"} 3`) &&
			slices.Contains(got, `lbd_request_seconds_bucket{listener="http",route="default",le="30"} 3`) &&
			slices.Contains(got, `lbd_request_seconds_count{listener="http",route="default"} 3`)
	})
}

// TestMetricsOfManyRoutes: routes that nobody asks for cost nothing.
func TestMetricsOfManyRoutes(t *testing.T) {
	r := newRig(t)
	count := func() int { return len(scrape(t, collector{r.appliance}.Collect)) }
	before := count()
	var routes []proto.Message
	for i := range 500 {
		route := respondRoute(fmt.Sprint("route-", i), 200, "http")
		route.Hosts = []string{fmt.Sprintf("h%d.test", i)}
		routes = append(routes, route)
	}
	r.propose(routes...)
	r.publish()
	r.wantServed(2)
	if after := count(); after != before {
		t.Errorf("%d lines with 500 routes more, %d without", after, before)
	}
}

func TestMetricsOfHandshakes(t *testing.T) {
	r := newRig(t)
	r.serves("https://"+r.address("https"), 200)
	got := scrape(t, func(out chan<- prometheus.Metric) { collectHandshakes(out, r.terminator.Stats()) })
	want := []string{
		`lbd_handshakes_total{kind="full",result="ok",version="1.3"} 1`,
		`lbd_tls_resumption_total{result="miss_no_ticket"} 1`,
		`lbd_tls_resumption_total{result="hit_local"} 0`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s", strings.Join(got, "\n"))
	}
}

// TestObservingIsWritten: every metric of ours, every field of the log and every reason is in the operators' page.
func TestObservingIsWritten(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "observing.md"))
	if err != nil {
		t.Fatal(err)
	}
	var words []string
	r := newRig(t)
	r.serves("https://"+r.address("https"), 200)
	for _, line := range scrape(t, func(out chan<- prometheus.Metric) { r.publishTimes.Collect(out); collector{r.appliance}.Collect(out) }) {
		name := line[:strings.IndexAny(line, "{ ")]
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			name = strings.TrimSuffix(name, suffix)
		}
		words = append(words, name)
	}
	for _, record := range []*lb.Record{fullRecord(), refusedRecord()} {
		var fields map[string]any
		if err := json.Unmarshal(appendJSON(nil, record), &fields); err != nil {
			t.Fatal(err)
		}
		words = slices.AppendSeq(words, maps.Keys(fields))
	}
	for _, reason := range lb.Reasons() {
		words = append(words, reason.String())
	}
	slices.Sort(words)
	for _, word := range slices.Compact(words) {
		if !strings.Contains(string(page), "`"+word+"`") {
			t.Errorf("docs/observing.md does not name `%s`", word)
		}
	}
}

// BenchmarkScrape answers with 10,000 routes that have all been asked for.
func BenchmarkScrape(b *testing.B) {
	traffic := trafficOf(10_000)
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectFunc(func(out chan<- prometheus.Metric) { collectTraffic(out, traffic) }))
	handler := promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
	b.ReportAllocs()
	for b.Loop() {
		handler.ServeHTTP(discardAnswer{}, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	}
}

type discardAnswer struct{}

func (discardAnswer) Header() http.Header         { return http.Header{} }
func (discardAnswer) WriteHeader(int)             {}
func (discardAnswer) Write(p []byte) (int, error) { return io.Discard.Write(p) }
