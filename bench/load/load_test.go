//go:build linux

package load

import (
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"lbd/bench/backend"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func startBackend(t *testing.T, delay time.Duration) string {
	t.Helper()
	address := deadAddress(t)
	stop, ready, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		done <- backend.Run(backend.Config{Listen: []string{address}, Delay: delay, Stop: stop, Ready: func() { close(ready) }})
	}()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		close(stop)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return address
}

// deadAddress is one on which nobody listens.
func deadAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// startServer serves h, with TLS if the configuration is not nil, and returns its address and leaf certificate.
func startServer(t *testing.T, h http.HandlerFunc, config *tls.Config) (address string, leaf []byte) {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	if config != nil {
		s.TLS = config
		s.StartTLS()
		leaf = s.Certificate().Raw
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return s.Listener.Addr().String(), leaf
}

func serveBody(w http.ResponseWriter, r *http.Request) {
	size := 0
	fmt.Sscanf(r.URL.Path, "/%d", &size)
	w.Header().Set("Content-Length", fmt.Sprint(size))
	w.Write(backend.Body(size))
}

// one runs a single flow and returns its result.
func one(t *testing.T, measure time.Duration, f Flow) Result {
	t.Helper()
	if f.Hosts == nil {
		f.Hosts = []string{"a.test"}
	}
	var events []Event
	results, err := Run(Spec{Warm: 50 * time.Millisecond, Measure: measure, Flows: []Flow{f}}, func(p Progress) {
		if p.Event != Tick {
			events = append(events, p.Event)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(events) != 2 || events[0] != Begin || events[1] != End {
		t.Errorf("events %v", events)
	}
	return results[0]
}

func TestClosedLoopPlain(t *testing.T) {
	for _, size := range []int{0, 1024, 300 << 10} {
		r := one(t, 500*time.Millisecond, Flow{Address: startBackend(t, 0), Kind: KeepAlive, Clients: 2, Bytes: size})
		if r.Completed == 0 || r.Failed != 0 || r.Opened > 2 {
			t.Errorf("body of %d: %+v", size, r)
		}
	}
}

func TestHostsTakeTurns(t *testing.T) {
	var mu sync.Mutex
	seen := map[string]int{}
	address, _ := startServer(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		seen[r.Host]++
		mu.Unlock()
		serveBody(w, r)
	}, nil)
	one(t, 100*time.Millisecond, Flow{Address: address, Kind: KeepAlive, Clients: 1, Hosts: []string{"a.test", "b.test", "c.test"}})
	mu.Lock()
	defer mu.Unlock()
	if len(seen) != 3 || seen["a.test"]-seen["c.test"] > 1 {
		t.Fatalf("requests by host: %v", seen)
	}
}

func TestOpenLoopOffersItsRate(t *testing.T) {
	r := one(t, 500*time.Millisecond, Flow{Address: startBackend(t, 0), Kind: KeepAlive, Clients: 4, Rate: 1000, Bytes: 10})
	if r.Offered != 500 || r.Answered != 500 || r.Failed != 0 {
		t.Fatalf("offered %d (want 500), answered %d, failed %v", r.Offered, r.Answered, r.Reasons)
	}
}

// One client that needs 50 ms per request is offered 100 a second. Measured from the moment of sending every latency would be 50 ms.
func TestOpenLoopCountsTheWaitForAFreeClient(t *testing.T) {
	r := one(t, 500*time.Millisecond, Flow{Address: startBackend(t, 50*time.Millisecond), Kind: KeepAlive, Clients: 1, Rate: 100})
	if r.Latency.Max < 0.2 || r.Latency.P50 < 0.1 {
		t.Fatalf("latencies %+v: the queue in front of the client is not in them", r.Latency)
	}
	if r.Answered != 50 {
		t.Fatalf("answered %d of %d", r.Answered, r.Offered)
	}
}

func TestRequestsThatFindNoClientInTimeFail(t *testing.T) {
	results, err := Run(Spec{Measure: 500 * time.Millisecond, Flows: []Flow{{
		Address: startBackend(t, 50*time.Millisecond), Kind: KeepAlive, Clients: 1, Rate: 200, Timeout: 150 * time.Millisecond, Hosts: []string{"a.test"},
	}}}, func(Progress) {})
	if err != nil {
		t.Fatal(err)
	}
	r := results[0]
	if r.Offered != 100 || r.Answered+r.Failed != 100 {
		t.Fatalf("%d offered, %d answered, %d failed", r.Offered, r.Answered, r.Failed)
	}
	// The first answers are in time, then the queue in front of the only client is longer than the timeout.
	if r.Reasons["no free client"] == 0 || r.Answered == 0 {
		t.Fatalf("answered %d, failed %v", r.Answered, r.Reasons)
	}
}

func TestWrongAnswers(t *testing.T) {
	const size = 1000
	for want, handler := range map[string]http.HandlerFunc{
		"status 503": func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(503) },
		"wrong length": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "999")
			w.Write(backend.Body(999))
		},
		"wrong body": func(w http.ResponseWriter, r *http.Request) {
			body := backend.Body(size)
			body[size-1] ^= 1
			w.Header().Set("Content-Length", fmt.Sprint(size))
			w.Write(body)
		},
		"closed before the answer was whole": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(size))
			w.Write(backend.Body(size / 2))
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		},
		"timeout": func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	} {
		address, _ := startServer(t, handler, nil)
		patience := time.Minute
		if want == "timeout" {
			patience = 60 * time.Millisecond
		}
		r := one(t, 200*time.Millisecond, Flow{Address: address, Kind: KeepAlive, Clients: 2, Bytes: size, Timeout: patience})
		if r.Completed != 0 || r.Reasons[want] == 0 || len(r.Reasons) != 1 {
			t.Errorf("%s: completed %d, failed %v", want, r.Completed, r.Reasons)
		}
	}
}

func TestNobodyListens(t *testing.T) {
	const clients, window = 3, 200 * time.Millisecond
	r := one(t, window, Flow{Address: deadAddress(t), Kind: KeepAlive, Clients: clients})
	// Every client rests after a failure: it does not spin.
	if n := r.Reasons["connect"]; n == 0 || n != r.Failed || n > clients*uint64(window/restAfterFailure+2) {
		t.Fatalf("failed %v", r.Reasons)
	}
}

func TestFreshConnections(t *testing.T) {
	r := one(t, 200*time.Millisecond, Flow{Address: startBackend(t, 0), Kind: Fresh, Clients: 4, Bytes: 100})
	if r.Failed != 0 || r.Completed == 0 || r.Opened < r.Completed-4 || r.Opened > r.Completed+4 {
		t.Fatalf("%d requests on %d connections, failed %v", r.Completed, r.Opened, r.Reasons)
	}
}

func TestTunnel(t *testing.T) {
	address := startBackend(t, 0)
	r := one(t, 200*time.Millisecond, Flow{Address: address, Kind: Tunnel, Clients: 4})
	if r.Completed == 0 || r.Failed != 0 || r.Opened > 4 {
		t.Errorf("%+v", r)
	}
	if r := one(t, 200*time.Millisecond, Flow{Address: address, Kind: IdleTunnel, Clients: 50}); r.Holding != 50 {
		t.Errorf("%d tunnels held of 50, failed %v", r.Holding, r.Reasons)
	}
}

func TestTunnelThatIsRefused(t *testing.T) {
	address, _ := startServer(t, serveBody, nil)
	if r := one(t, 100*time.Millisecond, Flow{Address: address, Kind: Tunnel, Clients: 1}); r.Completed != 0 || r.Reasons["status 200"] == 0 {
		t.Errorf("completed %d, failed %v", r.Completed, r.Reasons)
	}
}

func TestUpload(t *testing.T) {
	var bytes, requests atomic.Int64
	address, _ := startServer(t, func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		bytes.Add(n)
		requests.Add(1)
		serveBody(w, r)
	}, nil)
	r := one(t, 200*time.Millisecond, Flow{Address: address, Kind: Upload, Clients: 2, Sends: 100_000, Bytes: 10})
	if r.Completed == 0 || r.Failed != 0 || bytes.Load() < int64(r.Completed)*100_000 {
		t.Errorf("%+v, %d bytes in %d requests", r, bytes.Load(), requests.Load())
	}
}

// 3,000 bytes at 10,000 a second are three pieces with a pause of 100 ms after the first and the second.
func TestPacedUploadTakesItsTime(t *testing.T) {
	r := one(t, 600*time.Millisecond, Flow{Address: startBackend(t, 0), Kind: Upload, Clients: 1, Sends: 3000, Pace: 10_000})
	if r.Completed == 0 || r.Completed > 4 || r.Latency.P50 < 0.2 {
		t.Errorf("%d uploads, the median took %v s", r.Completed, r.Latency.P50)
	}
}

func TestIdleConnectionsAreHeld(t *testing.T) {
	r := one(t, 200*time.Millisecond, Flow{Address: startBackend(t, 0), Kind: Idle, Clients: 200, Bytes: 100})
	if r.Holding != 200 {
		t.Fatalf("%d held of 200, failed %v", r.Holding, r.Reasons)
	}
}

func TestIdleConnectionsThatEndAreNotCounted(t *testing.T) {
	address, _ := startServer(t, func(w http.ResponseWriter, r *http.Request) {
		serveBody(w, r)
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}, nil)
	if r := one(t, 200*time.Millisecond, Flow{Address: address, Kind: Idle, Clients: 5, Bytes: 100}); r.Holding != 0 {
		t.Fatalf("%d held", r.Holding)
	}
}

func TestTLS(t *testing.T) {
	address, leaf := startServer(t, serveBody, &tls.Config{})
	for _, version := range []string{"1.2", "1.3"} {
		for _, kind := range []Kind{KeepAlive, Fresh, Resumed} {
			r := one(t, 700*time.Millisecond, Flow{Address: address, Kind: kind, Clients: 2, Bytes: 20_000,
				TLS: &TLS{Version: version, Groups: []string{"X25519"}, LeafDER: leaf}})
			if r.Completed == 0 || r.Failed != 0 {
				t.Errorf("TLS %s, %s: %+v", version, kind, r)
			}
			if kind == Fresh && (r.Handshakes == 0 || r.Resumed != 0) {
				t.Errorf("TLS %s: %d of %d fresh handshakes were resumed", version, r.Resumed, r.Handshakes)
			}
			// Each client's first handshake may fall into the window: that one is full.
			if kind == Resumed && (r.Resumed == 0 || r.Resumed+2 < r.Handshakes) {
				t.Errorf("TLS %s: only %d of %d handshakes were resumed", version, r.Resumed, r.Handshakes)
			}
		}
	}
}

func TestTLSNamesTakeTurns(t *testing.T) {
	var mu sync.Mutex
	names := map[string]int{}
	config := &tls.Config{}
	config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		mu.Lock()
		defer mu.Unlock()
		names[hello.ServerName]++
		return nil, nil
	}
	// The server's certificate is for example.com and what is below it.
	address, _ := startServer(t, serveBody, config)
	r := one(t, time.Second, Flow{Address: address, Kind: Fresh, Clients: 1, Hosts: []string{"example.com", "a.example.com", "a.test"}, TLS: &TLS{Version: "1.3"}})
	mu.Lock()
	defer mu.Unlock()
	if names["example.com"] == 0 || names["a.example.com"] == 0 || names["a.test"] == 0 {
		t.Errorf("asked for %v", names)
	}
	if r.Completed == 0 || r.Reasons["handshake"] == 0 || r.Reasons["handshake"] != r.Failed {
		t.Errorf("completed %d, failed %v: the certificate is not for a.test alone", r.Completed, r.Reasons)
	}
}

func TestTLSOfAStranger(t *testing.T) {
	address, _ := startServer(t, serveBody, &tls.Config{})
	r := one(t, 100*time.Millisecond, Flow{Address: address, Kind: Fresh, Clients: 1, TLS: &TLS{Version: "1.3", LeafDER: []byte("another")}})
	if r.Reasons["handshake"] == 0 || r.Completed != 0 {
		t.Fatalf("completed %d, failed %v", r.Completed, r.Reasons)
	}
}

func TestTLSGroupIsTheOneOffered(t *testing.T) {
	address, leaf := startServer(t, serveBody, &tls.Config{})
	for _, group := range []string{"X25519", "P256", "X25519MLKEM768"} {
		r := one(t, 50*time.Millisecond, Flow{Address: address, Kind: KeepAlive, Clients: 1, TLS: &TLS{Version: "1.3", Groups: []string{group}, LeafDER: leaf}})
		if want := "TLS 1.3 TLS_AES_128_GCM_SHA256 " + tlsGroups[group].String(); r.Session != want {
			t.Errorf("group %s: session %q, want %q", group, r.Session, want)
		}
	}
}

func TestFlowsRunSideBySide(t *testing.T) {
	address := startBackend(t, 0)
	results, err := Run(Spec{Measure: 300 * time.Millisecond, Flows: []Flow{
		{Name: "steady", Address: address, Kind: KeepAlive, Clients: 2, Rate: 100, Hosts: []string{"a.test"}},
		{Name: "storm", Address: address, Kind: Fresh, Clients: 20, Rate: 300, Hosts: []string{"a.test"}},
	}}, func(Progress) {})
	if err != nil {
		t.Fatal(err)
	}
	if results[0].Flow != "steady" || results[0].Answered != 30 || results[1].Answered != 90 {
		t.Fatalf("%+v", results)
	}
}

func TestTicksCountUp(t *testing.T) {
	var ticks []Progress
	results, err := Run(Spec{Measure: 450 * time.Millisecond, Flows: []Flow{
		{Address: startBackend(t, 0), Kind: KeepAlive, Clients: 2, Rate: 1000, Hosts: []string{"a.test"}},
	}}, func(p Progress) { ticks = append(ticks, p) })
	if err != nil {
		t.Fatal(err)
	}
	last := ticks[len(ticks)-1]
	if len(ticks) < 3 || last.Total == 0 || last.Total > results[0].Answered {
		t.Fatalf("%d reports, the last %+v, answered %d", len(ticks), last, results[0].Answered)
	}
	for i := 1; i < len(ticks); i++ {
		if ticks[i].Total < ticks[i-1].Total || ticks[i].Time.Before(ticks[i-1].Time) {
			t.Fatalf("report %d goes backwards: %+v after %+v", i, ticks[i], ticks[i-1])
		}
	}
}

func TestSpecIsChecked(t *testing.T) {
	good := Flow{Address: "127.0.0.1:1", Kind: KeepAlive, Clients: 1, Hosts: []string{"x"}}
	for name, change := range map[string]func(*Flow){
		"kind":    func(f *Flow) { f.Kind = "other" },
		"clients": func(f *Flow) { f.Clients = 0 },
		"hosts":   func(f *Flow) { f.Hosts = nil },
		"rate":    func(f *Flow) { f.Rate = -1 },
		"size":    func(f *Flow) { f.Sends = -1 },
		"address": func(f *Flow) { f.Address = "localhost:80" },
		"version": func(f *Flow) { f.TLS = &TLS{Version: "1.1"} },
		"group":   func(f *Flow) { f.TLS = &TLS{Version: "1.3", Groups: []string{"P-7"}} },
	} {
		f := good
		change(&f)
		if _, err := Run(Spec{Measure: time.Millisecond, Flows: []Flow{f}}, func(Progress) {}); err == nil {
			t.Errorf("a wrong %s was accepted", name)
		}
	}
}
