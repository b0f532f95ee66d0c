package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"lbd/lb/vectest"
)

// lanesPerMode is how many vectors of one mode run at once.
const lanesPerMode = 2

// reallySent are the vectors that may be refused, but that clients in use send: they must be forwarded, and why.
var reallySent = map[string]string{
	"absolute-form-03": "every client that takes us for its proxy: curl -x, Python requests with http_proxy",
	"cl-valid-05":      "GET with a body: Elasticsearch clients, curl -X GET -d",
	"expect-05":        "curl for a body of 1 MiB and more, .NET's HttpWebRequest for every POST",
	"host-valid-05":    "health checks of older balancers ask in HTTP/1.0 without a Host",
	"hop-by-hop-07":    "Perl's LWP names its TE in Connection",
	"large-ok-01":      "SAML and OAuth redirects: browsers take targets of more than 8 kB",
	"large-ok-03":      "requests that came through several proxies and tracers",
	"leading-crlf-01":  "old clients end a POST's body with one line end too many (RFC 9112 2.2)",
	"method-09":        "fetch with method: 'patch' sends it in lower case; only six methods are put in capitals",
	"method-11":        "WebDAV, CalDAV and PURGE: methods that we do not know are none of our business",
	"path-segments-01": "curl --path-as-is, and most libraries: Go's net/http, Node's http, Python's http.client send a path as it was given",
	"path-segments-11": "encodeURIComponent done twice",
	"target-bytes-11":  "curl sends a quote as it was typed",
	"upgrade-01":       "curl --http2 and Java's HttpClient ask for h2c on plain HTTP by default",
	"upgrade-03":       "Java's HttpClient asks for it with a POST, too",
}

// otherwise are the vectors that end by what the parser alone does not see: that a connection is closed.
var otherwise = map[string][]string{
	"incomplete-01":     {"400 client_aborted body"},
	"incomplete-03":     {"0 client_aborted head"},
	"incomplete-05":     {"400 client_aborted body"},
	"backend-answer-09": {"200 backend_truncated ended_early"},
	"backend-answer-21": {"502 backend_aborted no_answer"},
}

// mode is one way to run all vectors.
type mode struct {
	engine      string
	secure, cut bool
}

func (m mode) String() string {
	return fmt.Sprintf("%s tls=%t cut=%t", m.engine, m.secure, m.cut)
}

// ran is a vector that was run, and where its lines in the log are to be found.
type ran struct {
	mode             mode
	vector           *vectest.Vector
	listener, client string
}

// TestVectors runs every HTTP/1 vector and every bad backend's answer against the real binary: on each engine, plain and over
// TLS, whole and octet by octet. The judge looks at what the client and the backend got; the access log must say of each
// refusal what the parser says of it (lb/http1/testdata/vectors.golden), in every mode.
func TestVectors(t *testing.T) {
	vectors, err := vectest.Load(filepath.Join("..", "..", "lb", "testdata", "vectors", "A"))
	if err != nil {
		t.Fatal(err)
	}
	outcomes := parserOutcomes(t)
	for id := range reallySent {
		if len(outcomes[id]) == 0 {
			t.Errorf("%s is really sent, and the parser alone does not pass it", id)
		}
	}
	for _, engine := range engines() {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			runVectors(t, engine, vectors, outcomes)
		})
	}
}

func runVectors(t *testing.T, engine string, vectors []*vectest.Vector, outcomes map[string][]string) {
	modes := []mode{{engine, false, false}, {engine, false, true}, {engine, true, false}, {engine, true, true}}
	backends := make([]*vectest.Backend, len(modes)*lanesPerMode)
	addresses := make([]string, len(backends))
	for i := range backends {
		backends[i] = vectest.NewBackend(t)
		addresses[i] = backends[i].Address()
	}
	accessLog := filepath.Join(t.TempDir(), "access.log")
	n, lanes := startLanes(t, "lbd", engine, addresses, "--access-log", accessLog, "--access-log-format", "json")
	results := make([][]ran, len(lanes))
	var wg sync.WaitGroup
	for i, lane := range lanes {
		m := modes[i/lanesPerMode]
		wg.Go(func() {
			for k := i % lanesPerMode; k < len(vectors); k += lanesPerMode {
				if v := vectors[k]; v.Proto != "h2" {
					results[i] = append(results[i], runVector(t, m, v, lane, backends[i]))
				}
			}
		})
	}
	wg.Wait()
	if err := n.signal(syscall.SIGTERM); err != nil {
		t.Fatalf("the node's end: %v\n%s", err, n.tail())
	}
	checkLog(t, accessLog, results, outcomes)
}

// runVector runs one and reports what the judge says.
func runVector(t *testing.T, m mode, v *vectest.Vector, lane *lane, backend *vectest.Backend) ran {
	listener, target := lane.target(m.secure)
	target.Cut = m.cut
	r, err := vectest.Run(v, backend, target)
	if err != nil {
		t.Errorf("%v: %s: %v", m, v.ID, err)
		return ran{m, v, listener, ""}
	}
	if len(r.Faults) > 0 {
		t.Errorf("%v: %s (%s; %s): %v", m, v.ID, v.Expect, v.Why, r)
	}
	if why, sent := reallySent[v.ID]; sent && (r.Requests < v.Requests || len(r.Statuses) < v.Requests || r.Statuses[0] != 200) {
		t.Errorf("%v: %s is really sent (%s) and was not forwarded: %v", m, v.ID, why, r)
	}
	return ran{m, v, listener, r.Client}
}

// checkLog compares how requests ended with how they should have, connection by connection. A client's port may come again
// for a later vector: both are compared in the order in which they ran.
func checkLog(t *testing.T, path string, results [][]ran, outcomes map[string][]string) {
	all, err := readAccessLog(path)
	if err != nil {
		t.Fatal(err)
	}
	slices.SortStableFunc(all, func(a, b logged) int { return strings.Compare(a.Time, b.Time) })
	got, want, about := map[string][]string{}, map[string][]string{}, map[string][]string{}
	for _, l := range all {
		if key := l.Listener + " " + l.Client; !strings.HasPrefix(l.Path, "/probe/") {
			got[key] = append(got[key], ending(l.Status, l.Reason, l.Detail))
		}
	}
	for _, lane := range results {
		for _, r := range lane {
			key := r.listener + " " + r.client
			lines, listed := otherwise[r.vector.ID]
			if !listed {
				lines = outcomes[r.vector.ID]
			}
			want[key] = append(want[key], lines...)
			about[key] = append(about[key], r.vector.ID+" "+r.mode.String())
		}
	}
	for key, vectors := range about {
		if !slices.Equal(got[key], want[key]) {
			t.Errorf("%s: logged %q, want %q", vectors, got[key], want[key])
		}
	}
}

func ending(status int, reason, detail string) string {
	if reason == "ok" {
		return "ok"
	}
	return strings.TrimSpace(fmt.Sprintf("%d %s %s", status, reason, detail))
}

// parserOutcomes turns the parser's golden file into what the log must say: "ok" for each message that passes, then the
// status, whose fault it was, and the parser's reason.
func parserOutcomes(t *testing.T) map[string][]string {
	text, err := os.ReadFile(filepath.Join("..", "..", "lb", "http1", "testdata", "vectors.golden"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		id, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		fields := strings.Fields(rest) // class, count, "passed"
		var passed, status int
		var reason string
		if _, err := fmt.Sscan(fields[1], &passed); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		lines := []string{}
		for range passed {
			lines = append(lines, "ok")
		}
		_, end, _ := strings.Cut(rest, "then ")
		if k, _ := fmt.Sscan(end, &status, &reason); k == 2 {
			blame := "bad_request"
			if status == 502 {
				blame = "backend_aborted"
			}
			lines = append(lines, ending(status, blame, reason))
		}
		all[id] = lines
	}
	return all
}
