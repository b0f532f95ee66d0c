package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// buildWithLoops builds an lbd that takes the machine for one with so many cores: it has no setting for its loops, and the machine that
// runs the tests may have few.
func buildWithLoops(t *testing.T, n int) (binary string) {
	t.Helper()
	file, err := filepath.Abs(filepath.Join("..", "..", "lb", "loop", "procs.go"))
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const begin = "func cores() int {"
	if !strings.Contains(string(source), begin) {
		t.Fatalf("no %q in %s", begin, file)
	}
	dir := t.TempDir()
	changed, overlay := filepath.Join(dir, "procs.go"), filepath.Join(dir, "overlay.json")
	text := strings.Replace(string(source), begin, begin+fmt.Sprintf(" if true { return %d }; ", n), 1)
	if err := os.WriteFile(changed, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	content, err := json.Marshal(map[string]any{"Replace": map[string]string{file: changed}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(overlay, content, 0o600); err != nil {
		t.Fatal(err)
	}
	binary = fmt.Sprintf("lbd-%dloops", n)
	if err := goBuild(binaries, binary, "lbd", false, "-overlay", overlay); err != nil {
		t.Fatal(err)
	}
	return binary
}

// narrow is a backend that counts its connections, and answers when it is told to: at once while nobody holds it.
type narrow struct {
	*http.Server
	address   string
	open      atomic.Int64
	most      atomic.Int64
	came      chan string   // paths under /held, as they come
	let       chan struct{} // each lets one of them go
	requested atomic.Int64
}

func newNarrow(t *testing.T) *narrow {
	t.Helper()
	address, err := freeAddress()
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	n := &narrow{address: address, came: make(chan string, 100), let: make(chan struct{})}
	n.Server = &http.Server{Handler: http.HandlerFunc(n.serve), ConnState: func(_ net.Conn, s http.ConnState) {
		switch s {
		case http.StateNew:
			now := n.open.Add(1)
			for most := n.most.Load(); now > most && !n.most.CompareAndSwap(most, now); most = n.most.Load() {
			}
		case http.StateClosed, http.StateHijacked:
			n.open.Add(-1)
		}
	}}
	var group sync.WaitGroup
	group.Go(func() { _ = n.Server.Serve(l) })
	t.Cleanup(func() { n.Server.Close(); group.Wait() })
	return n
}

func (n *narrow) serve(w http.ResponseWriter, r *http.Request) {
	n.requested.Add(1)
	if !strings.HasPrefix(r.URL.Path, "/held/") {
		time.Sleep(5 * time.Millisecond) // the work of this backend
		return
	}
	n.came <- r.URL.Path
	select {
	case <-n.let:
	case <-r.Context().Done():
	}
}

const (
	narrowBackends = 20
	narrowLimit    = 10
	queueTimeout   = 3 * time.Second
)

func narrowDocument(backends []*narrow) string {
	var b strings.Builder
	fmt.Fprintf(&b, "api_version: lbd/v1\nowner: dev\npools:\n  - name: many\n    connections: { max_per_backend: %d }\n    queue: { length: 1000, timeout: 1m }\n    backends:\n", narrowLimit)
	for _, n := range backends[:narrowBackends] {
		fmt.Fprintf(&b, "      - { address: %q }\n", n.address)
	}
	fmt.Fprintf(&b, "  - { name: one, connections: { max_per_backend: 1 }, queue: { length: 10, timeout: %v }, backends: [{ address: %q }] }\n", queueTimeout, backends[narrowBackends].address)
	fmt.Fprintf(&b, "routes:\n  - { name: default, listeners: [http], forward: { pools: [{ pool: many }] } }\n"+
		"  - { name: one, listeners: [http], matches: [{ path: { prefix: /held } }], forward: { pools: [{ pool: one }] } }\n")
	return b.String()
}

// TestEightLoops: over 8 loops no backend sees an eleventh connection where 10 are allowed, and whoever waits for one is served in the
// order of coming, or told at the deadline that it was too long, whichever loop has the request and whichever the connection.
func TestEightLoops(t *testing.T) {
	binary := buildWithLoops(t, 8)
	var backends []*narrow
	for range narrowBackends + 1 {
		backends = append(backends, newNarrow(t))
	}
	metrics, err := freeAddress()
	if err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(t.TempDir(), "access.log")
	address, socket := startTroubleNode(t, "epoll", binary, narrowDocument(backends), "--metrics", metrics, "--access-log", log)
	n := &troubleNode{t: t, socket: socket}
	if loops := len(n.metric(metrics, `lbd_loop_connections\{loop="\d+"\} \d+`)); loops != 8 {
		t.Fatalf("the node has %d loops", loops)
	}
	crowdNarrow(t, address, backends[:narrowBackends])
	one := backends[narrowBackends]
	n.inOrder(address, metrics, one)
	n.tooLong(address, metrics, log, one)
	if most := one.most.Load(); most != 1 {
		t.Errorf("the backend that may have one connection has had %d", most)
	}
}

// crowdNarrow lets 500 clients ask at once, each on a connection of its own, so that the queues are never empty.
func crowdNarrow(t *testing.T, address string, backends []*narrow) {
	const clients, requests = 500, 20
	var group sync.WaitGroup
	var failed atomic.Int64
	for range clients {
		group.Go(func() {
			h, err := hold("http://" + address + "/")
			if err != nil {
				t.Error(err)
				return
			}
			defer h.c.Close()
			for range requests {
				if _, err := h.get(); err != nil && failed.Add(1) == 1 {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	full, all := 0, int64(0)
	for i, b := range backends {
		all += b.requested.Load()
		switch most := b.most.Load(); {
		case most > narrowLimit:
			t.Errorf("backend %d has seen %d connections at a time", i, most)
		case most == narrowLimit:
			full++
		}
	}
	if full == 0 {
		t.Error("no backend has come to its limit: the test is too weak")
	}
	t.Logf("%d requests, %d failed; %d of %d backends had %d connections, none more", all, failed.Load(), full, len(backends), narrowLimit)
}

// metric lists the node's metrics that match.
func (n *troubleNode) metric(address, pattern string) []string {
	n.t.Helper()
	resp, err := http.Get("http://" + address + "/metrics")
	if err != nil {
		n.t.Fatal(err)
	}
	defer resp.Body.Close()
	var b strings.Builder
	if err := resp.Write(&b); err != nil {
		n.t.Fatal(err)
	}
	return regexp.MustCompile("(?m)^"+pattern+"$").FindAllString(b.String(), -1)
}

// queued waits until so many requests wait for a backend.
func (n *troubleNode) queued(metrics string, b *narrow, want int) {
	n.t.Helper()
	n.until(fmt.Sprintf("%d requests wait", want), func() bool {
		return len(n.metric(metrics, `lbd_backend_queued\{backend="`+b.address+`"\} `+strconv.Itoa(want))) == 1
	})
}

// ask sends one request on a new connection, and hands over what it is answered.
func ask(t *testing.T, address, path string) <-chan string {
	t.Helper()
	answer := make(chan string, 1)
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", path); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer c.Close()
		var b strings.Builder
		buf := make([]byte, 4096)
		for {
			k, err := c.Read(buf)
			b.Write(buf[:k])
			if err != nil {
				break
			}
		}
		answer <- b.String()
	}()
	return answer
}

// inOrder holds the one connection while others come to wait, one after another, and lets them go.
func (n *troubleNode) inOrder(address, metrics string, b *narrow) {
	t := n.t
	const waiting = 10
	var answers []<-chan string
	for i := range waiting + 1 {
		answers = append(answers, ask(t, address, fmt.Sprint("/held/", i)))
		if i == 0 {
			<-b.came
		} else {
			n.queued(metrics, b, i)
		}
	}
	if late := <-ask(t, address, "/held/late"); !strings.Contains(late, " 503 ") || !strings.Contains(late, "queue_full") {
		t.Errorf("one too many is answered %q", late)
	}
	for i := 1; i <= waiting; i++ {
		b.let <- struct{}{}
		if got, want := <-b.came, fmt.Sprint("/held/", i); got != want {
			t.Errorf("%s was served where it was the turn of %s", got, want)
		}
	}
	b.let <- struct{}{}
	for i, answer := range answers {
		if text := <-answer; !strings.HasPrefix(text, "HTTP/1.1 200 ") {
			t.Errorf("/held/%d is answered %q", i, text)
		}
	}
}

// tooLong lets some wait for longer than they may.
func (n *troubleNode) tooLong(address, metrics, log string, b *narrow) {
	t := n.t
	const waiting = 5
	first := ask(t, address, "/held/first")
	<-b.came
	began := time.Now()
	var answers []<-chan string
	for i := range waiting {
		answers = append(answers, ask(t, address, fmt.Sprint("/held/long", i)))
	}
	for i, answer := range answers {
		if text := <-answer; !strings.Contains(text, " 503 ") || !strings.Contains(text, "queue_timeout") {
			t.Errorf("/held/long%d is answered %q", i, text)
		}
	}
	if took := time.Since(began); took < queueTimeout {
		t.Errorf("they were sent away after %v, before their time of %v", took, queueTimeout)
	}
	b.let <- struct{}{}
	if text := <-first; !strings.HasPrefix(text, "HTTP/1.1 200 ") {
		t.Errorf("the one that they waited for is answered %q", text)
	}
	for reason, want := range map[string]int{"queue_timeout": waiting, "queue_full": 1} {
		n.until(reason+" in metric and log", func() bool {
			text, err := os.ReadFile(log)
			if err != nil {
				t.Fatal(err)
			}
			return len(n.metric(metrics, fmt.Sprintf(`lbd_refused_total\{listener="http",reason="%s"\} %d`, reason, want))) == 1 &&
				strings.Count(string(text), `"status":503,"reason":"`+reason+`"`) == want
		})
	}
}
