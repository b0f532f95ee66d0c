//go:build linux

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"lbd/bench/load"
)

// TestMain plays the lab's parts, as main does: the lab starts its own program again for them.
func TestMain(m *testing.M) {
	parts := map[string]func([]string) error{"backend": playBackend, "load": playLoad, "pinned": playPinned, "fakeproxy": playFakeProxy, "burn": playBurn}
	if len(os.Args) > 1 && parts[os.Args[1]] != nil {
		exit(parts[os.Args[1]](os.Args[2:]))
	}
	goleak.VerifyTestMain(m)
}

// burnTime is the CPU time that "burn" uses at least.
const burnTime = 100 * time.Millisecond

func playBurn([]string) error {
	var used unix.Rusage
	for used.Utime.Nano()+used.Stime.Nano() < burnTime.Nanoseconds() {
		if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
			return err
		}
	}
	return nil
}

// lie changes a byte of every answer but the small one that the lab asks for before it offers load.
func lie(r *http.Response) error {
	body, err := io.ReadAll(r.Body)
	if len(body) > 100 {
		body[len(body)/2] ^= 1
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	return err
}

// playFakeProxy is "fakeproxy HTTP HTTPS CHAIN KEY BACKEND CA [lie]": a contestant that every machine has.
func playFakeProxy(args []string) error {
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: args[4]})
	if args[5] != "" {
		ca, err := os.ReadFile(args[5])
		if err != nil {
			return err
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(ca)
		proxy = httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "https", Host: args[4]})
		proxy.Transport = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: backendName}}
	}
	if len(args) > 6 {
		proxy.ModifyResponse = lie
	}
	plain := &http.Server{Addr: args[0], Handler: proxy}
	encrypted := &http.Server{Addr: args[1], Handler: proxy, TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){}}
	failed := make(chan error, 2)
	go func() { failed <- plain.ListenAndServe() }()
	go func() { failed <- encrypted.ListenAndServeTLS(args[2], args[3]) }()
	return <-failed
}

func fakeProxy(name string) *proxy {
	return &proxy{name: name, version: "1", library: "crypto/tls", program: "/proc/self/exe", kind: &kind{
		name: "fake",
		arguments: func(s setup, _ string) []string {
			return []string{"fakeproxy", s.HTTP, s.HTTPS, s.Chain, s.Key, s.Backends[0], s.BackendCA}
		},
	}}
}

// testLab uses the cores that the test may use; with a single one, load and proxy share it.
func testLab(t *testing.T) *lab {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		t.Fatal(err)
	}
	var cores []int
	for i := range len(set) * 64 {
		if set.IsSet(i) {
			cores = append(cores, i)
		}
	}
	return &lab{
		options: options{scenarios: []string{"those of the test"}, repeats: 2, warm: 200 * time.Millisecond, measure: 300 * time.Millisecond, proxyCore: cores[0], loadCore: cores[len(cores)-1],
			idleClients: 20, inFlight: 20, out: t.TempDir(), metrics: true},
		self: self, work: t.TempDir(), openFiles: 1000, quotaProblem: errors.New("not in tests"), wire: loopback, stdout: io.Discard, say: t.Logf,
	}
}

// light is a scenario of the list with two clients in place of many: the tests' machine has other things to do.
func light(t *testing.T, name string, kind load.Kind, tls func() *load.TLS) *scenario {
	sc := *pick(t, name)
	sc.warm, sc.flows = 0, closedLoop(kind, 2, bodyBytes, tls)
	return &sc
}

func TestSeriesFromEndToEnd(t *testing.T) {
	l := testLab(t)
	picked := []*scenario{light(t, "tls-resumed", load.Resumed, tls13), light(t, "reencrypt", load.KeepAlive, tls13), light(t, "idle", load.Idle, nil)}
	f := gatherFacts(l.out, l.openFiles)
	if err := f.save(l.out); err != nil {
		t.Fatal(err)
	}
	if err := l.series(t.Context(), picked, []*proxy{fakeProxy("one"), fakeProxy("two")}); err != nil {
		t.Fatal(err)
	}
	records, err := loadRecords(l.out)
	if err != nil || len(records) != 3*2*2 {
		t.Fatalf("%d records, %v", len(records), err)
	}
	for _, r := range records {
		if r.Error != "" || len(r.Flows) != 1 || r.failures() != 0 || r.Start <= 0 || r.MemoryAfter <= 0 {
			t.Errorf("%+v", r)
			continue
		}
		if r.Scenario == "idle" && r.holding() != 2 {
			t.Errorf("%v connections held", r.holding())
		}
		if r.Scenario != "idle" && (r.completed() == 0 || r.CPU.Total <= 0 || r.cost() <= 0) {
			t.Errorf("%s: %v requests, %v s of CPU", r.Scenario, r.completed(), r.CPU.Total)
		}
	}
	if first, second := records[0].Proxy, records[len(records)/2].Proxy; first == second {
		t.Errorf("%s goes first in both repeats", first)
	}
	if left, _ := os.ReadDir(l.work); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestInterruptedSeriesKeepsWhatItHas(t *testing.T) {
	l := testLab(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	l.say = func(format string, a ...any) {
		if strings.HasPrefix(format, "[%d/%d") {
			cancel() // after the first run
		}
	}
	if err := (facts{}).save(l.out); err != nil {
		t.Fatal(err)
	}
	err := l.series(ctx, []*scenario{light(t, "single", load.KeepAlive, nil)}, []*proxy{fakeProxy("one")})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v", err)
	}
	records, err := loadRecords(l.out)
	if err != nil || len(records) != 1 || records[0].Error != "" {
		t.Fatalf("%+v, %v", records, err)
	}
	if _, err := os.Stat(filepath.Join(l.out, "table.md")); err != nil {
		t.Error(err)
	}
}

func TestProxyThatDoesNotServe(t *testing.T) {
	l := testLab(t)
	p := fakeProxy("broken")
	p.kind.arguments = func(setup, string) []string { return []string{"backend", "no address"} }
	r := l.measure(t.Context(), pick(t, "single"), p, 1)
	if r.Verdict != failed || !strings.Contains(r.Error, "broken") || !strings.Contains(r.Error, "no address") {
		t.Fatalf("verdict %s, error %q", r.Verdict, r.Error)
	}
}

func TestWrongAnswersAreFound(t *testing.T) {
	l := testLab(t)
	p := fakeProxy("liar")
	honest := p.kind.arguments
	p.kind.arguments = func(s setup, log string) []string { return append(honest(s, log), "lie") }
	r := l.measure(t.Context(), light(t, "single", load.KeepAlive, nil), p, 1)
	if r.Verdict != failed || r.completed() != 0 || r.Flows[0].Reasons["wrong body"] == 0 {
		t.Fatalf("%+v", r)
	}
}

func TestChangesAndMortalBackend(t *testing.T) {
	l := testLab(t)
	l.root, l.measureGiven = filepath.Join("..", ".."), true
	l.options.measure = time.Second
	sc := light(t, "soak", load.KeepAlive, tls13)
	sc.site.hosts, sc.site.certificates = 1, false
	p := fakeProxy("one")
	made := 0
	p.kind.rotate = func(context.Context, *bed, *proxy, certificateFiles) error { return nil }
	p.kind.reroute = func(context.Context, *bed, *proxy, string) error { return nil }
	sc.change = func(*bed, context.Context, *proxy) (time.Duration, error) {
		made++
		return 5 * time.Millisecond, nil
	}
	r := l.measure(t.Context(), sc, p, 1)
	if r.Error != "" || r.failures() != 0 || r.completed() == 0 {
		t.Fatalf("%+v", r)
	}
	if r.Changes == 0 || made-r.Changes < 0 || made-r.Changes > 1 || // one may be under way at the end
		r.ChangeTime.Median != 0.005 || len(r.QuietP99) != quietWindows || r.p99ToQuiet() <= 0 {
		t.Errorf("%d changes of %d, %+v, quiet %v", r.Changes, made, r.ChangeTime, r.QuietP99)
	}
}

func TestPlanLeavesOut(t *testing.T) {
	l := testLab(t)
	l.scenarios = nil
	var proxies []*proxy
	for _, name := range []string{"lbd", "nginx", "caddy"} {
		proxies = append(proxies, &proxy{name: name, kind: &kind{name: name}})
	}
	picked := []*scenario{{name: "usual"}, {name: "wide", wide: true}, {name: "own", only: "lbd", once: true}}
	count := map[string]int{}
	for _, r := range l.plan(picked, proxies) {
		count[r.scenario.name+" "+r.proxy.name]++
	}
	want := map[string]int{"usual lbd": 2, "usual nginx": 2, "wide lbd": 2, "wide nginx": 2, "wide caddy": 2, "own lbd": 1}
	if !maps.Equal(count, want) {
		t.Errorf("planned %v, want %v", count, want)
	}
	if l.scenarios = []string{"usual"}; len(l.plan(picked[:1], proxies)) != 2*3 {
		t.Error("a scenario that was asked for is left out somewhere")
	}
}

func TestFullRunTakesUnderFortyMinutes(t *testing.T) {
	o, err := parseOptions(nil, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{options: o}
	var proxies []*proxy
	for _, k := range kinds {
		proxies = append(proxies, &proxy{name: k.name, kind: k})
	}
	runs := l.plan(scenarios, proxies)
	if took := l.remaining(runs, 0, 0); took > 36*time.Minute {
		t.Errorf("%d runs take %v", len(runs), took)
	} else {
		t.Logf("%d runs, %v", len(runs), took)
	}
}

func TestMissingProxy(t *testing.T) {
	l := testLab(t)
	t.Setenv("PATH", t.TempDir())
	l.proxies = []string{"nginx", "haproxy"}
	if _, missing, err := l.findAll(t.Context()); err == nil || missing != nil {
		t.Fatalf("%v, %v", missing, err)
	}
	if _, err := l.find(t.Context(), "nginx"); !errors.Is(err, errMissing) {
		t.Fatalf("error %v", err)
	}
	if _, err := l.find(t.Context(), "apache"); err == nil || errors.Is(err, errMissing) {
		t.Fatalf("error %v", err)
	}
}

func TestProcessIsPinned(t *testing.T) {
	l := testLab(t)
	cmd := place{core: l.loadCore}.command(l.self, "cat", "/proc/self/status")
	p, out, err := startReading("cat", cmd)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	content, err := io.ReadAll(out)
	if err != nil {
		t.Fatal(err)
	}
	<-p.done
	want := "Cpus_allowed_list:\t" + itoa(l.loadCore) + "\n"
	if !slices.Contains(strings.SplitAfter(string(content), "\n"), want) {
		t.Fatalf("%q is not in\n%s", want, content)
	}
}

func itoa(n int) string { return commas([]int{n}) }
