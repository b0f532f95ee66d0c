package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// mood is what a backend does with requests.
type mood string

const (
	well   mood = "well"
	killed mood = "killed" // its connections break, nobody listens
	hung   mood = "hung"   // the kernel takes its connections and what comes on them, and that is all
	slow   mood = "slow"   // answers after slowAnswer
	refuse mood = "refusing"
	fails  mood = "answering 500"
	resets mood = "resetting mid-body"
)

const (
	slowAnswer = time.Second
	moodyBody  = 64 << 10 // more than one segment, so that a reset finds it under way
)

// moody is a backend that can fall ill and get well, on one address.
type moody struct {
	address string
	mu      sync.Mutex
	mood    mood
	changed chan struct{} // closed when the mood changes
	l       net.Listener
	conns   map[net.Conn]bool
	group   sync.WaitGroup
}

func newMoody(t *testing.T, address string) *moody {
	m := &moody{address: address, mood: killed, changed: make(chan struct{}), conns: map[net.Conn]bool{}}
	m.feel(t, well)
	t.Cleanup(func() { m.feel(t, killed); m.group.Wait() })
	return m
}

// feel changes the mood. What was open in the one before breaks, unless the backend was well then and goes on.
func (m *moody) feel(t *testing.T, next mood) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.mood
	m.mood = next
	close(m.changed)
	m.changed = make(chan struct{})
	if next == killed || before != well {
		for c := range m.conns {
			_ = c.(*net.TCPConn).SetLinger(0)
			c.Close()
		}
	}
	switch listens := next != killed && next != refuse; {
	case listens && m.l == nil:
		var err error
		if m.l, err = net.Listen("tcp", m.address); err != nil {
			t.Fatal(err)
		}
		m.group.Go(func() { m.accept(m.l) })
	case !listens && m.l != nil:
		m.l.Close()
		m.l = nil
	}
}

func (m *moody) now() (mood, <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mood, m.changed
}

func (m *moody) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		m.mu.Lock()
		if m.l != l { // it came when nobody listened any more
			m.mu.Unlock()
			c.Close()
			continue
		}
		m.conns[c] = true
		m.mu.Unlock()
		m.group.Go(func() {
			defer func() {
				c.Close()
				m.mu.Lock()
				delete(m.conns, c)
				m.mu.Unlock()
			}()
			m.serve(c)
		})
	}
}

func (m *moody) serve(c net.Conn) {
	body := strings.Repeat("x", moodyBody)
	for r := bufio.NewReader(c); ; {
		if _, err := http.ReadRequest(r); err != nil {
			return
		}
		status := "200 OK"
		switch mood, changed := m.now(); mood {
		case killed:
			return
		case hung:
			<-changed
			return
		case slow:
			select {
			case <-time.After(slowAnswer):
			case <-changed:
			}
		case fails:
			status = "500 Oops"
		case resets:
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", moodyBody, body[:moodyBody/2])
			_ = c.(*net.TCPConn).SetLinger(0)
			return
		case refuse: // it answers what it has taken, and goes
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", moodyBody, body)
			return
		}
		if _, err := fmt.Fprintf(c, "HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s", status, moodyBody, body); err != nil {
			return
		}
	}
}

// troublePools are the four balancers. Three of them are told by requests alone who is ill, and one is told by its checks, too.
var troublePools = map[string]string{
	"round-robin": "balance: ROUND_ROBIN",
	"least":       "balance: LEAST_CONNECTIONS",
	"p2c":         "balance: P2C_EWMA, health_check: { http: { path: /healthz }, interval: 200ms, timeout: 150ms, rise: 1, fall: 2 }",
	"maglev":      "balance: MAGLEV, hash_on: { header: X-Client }",
}

func troubleDocument(backends []*moody) string {
	var b strings.Builder
	b.WriteString("api_version: lbd/v1\nowner: dev\npools:\n")
	for name, settings := range troublePools {
		fmt.Fprintf(&b, "  - { name: %s, %s, connect_timeout: 500ms, ejection: { consecutive_errors: 3, base_time: 2s }, backends: [", name, settings)
		for _, m := range backends {
			fmt.Fprintf(&b, "{ address: %q },", m.address)
		}
		b.WriteString("] }\n")
	}
	b.WriteString("routes:\n")
	for name := range troublePools {
		fmt.Fprintf(&b, `  - name: %s
    listeners: [http]
    matches: [{ path: { prefix: /%s } }]
    forward:
      pools: [{ pool: %s }]
      retry: { attempts: 3, budget_percent: 100, per_try_timeout: 300ms, on: [CONNECT_FAILURE, RESET_BEFORE_RESPONSE, FIRST_BYTE_TIMEOUT, STATUS_5XX] }
`, name, name, name)
	}
	return b.String()
}

const troubleClients = 4 // of each pool: they ask again and again

// failedGet is a GET that brought no whole answer.
type failedGet struct {
	pool       string
	began, end time.Time
	err        error
}

// crowdOf asks a route for as long as it is there.
type crowdOf struct {
	pool  string
	url   string
	right *atomic.Int64
	fail  func(failedGet)
	quit  chan struct{}
}

func (c *crowdOf) run(client int) {
	transport := &http.Transport{MaxIdleConnsPerHost: 1}
	defer transport.CloseIdleConnections()
	h := &http.Client{Transport: transport, Timeout: patience}
	for n := 0; ; n++ {
		select {
		case <-c.quit:
			return
		default:
		}
		began := time.Now()
		if err := getWhole(h, c.url, fmt.Sprint(client, " ", n)); err != nil {
			c.fail(failedGet{c.pool, began, time.Now(), err})
			continue
		}
		c.right.Add(1)
		time.Sleep(time.Millisecond) // that much every client needs; a crowd without it only heats the machine
	}
}

func getWhole(h *http.Client, url, client string) error {
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	req.Header.Set("X-Client", client)
	resp, err := h.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	n, err := io.Copy(io.Discard, resp.Body)
	if err == nil && (resp.StatusCode != http.StatusOK || n != moodyBody) {
		err = fmt.Errorf("%s with %d bytes", resp.Status, n)
	}
	return err
}

// troubleNode is a node under four crowds.
type troubleNode struct {
	t      *testing.T
	socket string
	right  map[string]*atomic.Int64
	mu     sync.Mutex
	failed []failedGet
}

func (n *troubleNode) fail(f failedGet) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.failed = append(n.failed, f)
}

func (n *troubleNode) failures() []failedGet {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]failedGet(nil), n.failed...)
}

type troubleEvent struct {
	Time     time.Time
	Type     string
	Resource string
}

func (n *troubleNode) lbctl(arguments ...string) []byte {
	n.t.Helper()
	cmd := exec.Command(filepath.Join(binaries, "lbctl"), arguments...)
	cmd.Env = append(os.Environ(), "LBCTL_ENDPOINTS=unix:"+n.socket)
	out, err := cmd.Output()
	if err != nil {
		n.t.Fatalf("%v: %v", arguments, err)
	}
	return out
}

// events are those of one backend after a moment, by pool, in the order in which they came.
func (n *troubleNode) events(after time.Time, backend string) map[string][]troubleEvent {
	n.t.Helper()
	all := map[string][]troubleEvent{}
	for line := range strings.Lines(string(n.lbctl("events", "-o", "jsonl"))) {
		var e troubleEvent
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			n.t.Fatalf("%v: %s", err, line)
		}
		if pool, of := strings.CutSuffix(strings.TrimPrefix(e.Resource, "pools/"), "/"+backend); of && e.Time.After(after) {
			all[pool] = append(all[pool], e)
		}
	}
	return all
}

// first is the first event after a moment with one of these types; the zero event if there is none.
func first(events []troubleEvent, after time.Time, types ...string) troubleEvent {
	for _, e := range events {
		if e.Time.After(after) && slices.Contains(types, e.Type) {
			return e
		}
	}
	return troubleEvent{}
}

// leftOut reports whether a pool left the backend out from one moment to another, all the time.
func leftOut(events []troubleEvent, from, to time.Time) bool {
	ejected, down := false, false
	for _, e := range events {
		if e.Time.After(to) {
			break
		}
		if e.Time.After(from) {
			return false
		}
		switch e.Type {
		case "backend_ejected", "backend_restored":
			ejected = e.Type == "backend_ejected"
		case "backend_down", "backend_up":
			down = e.Type == "backend_down"
		}
	}
	return ejected || down
}

// until waits for something, with a bound.
func (n *troubleNode) until(what string, ok func() bool) {
	n.t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			n.t.Fatalf("waited %v: %s\n%s%s", patience, what, n.lbctl("backend", "status"), n.lbctl("events"))
		}
	}
}

// more waits until each crowd has had so many right answers more.
func (n *troubleNode) more(count int64) {
	n.t.Helper()
	for pool, right := range n.right {
		until := right.Load() + count
		n.until("answers of "+pool, func() bool { return right.Load() >= until })
	}
}

// TestTrouble lets one backend of three fall ill in every way, one after another, under load of all four balancers. Nobody's GET fails
// but those that were under way at the ill backend, and of these only what cannot be asked for again: an answer that has begun. The
// events tell when it was left out and when it was taken back.
func TestTrouble(t *testing.T) {
	for _, engine := range engines() {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			testTrouble(t, engine)
		})
	}
}

func testTrouble(t *testing.T, engine string) {
	var backends []*moody
	for range 3 {
		address, err := freeAddress()
		if err != nil {
			t.Fatal(err)
		}
		backends = append(backends, newMoody(t, address))
	}
	n := &troubleNode{t: t, right: map[string]*atomic.Int64{}}
	var address string
	address, n.socket = startTroubleNode(t, engine, "lbd-plain", troubleDocument(backends), "--metrics", "off")
	quit := make(chan struct{})
	var group sync.WaitGroup
	for pool := range troublePools {
		n.right[pool] = &atomic.Int64{}
		c := &crowdOf{pool, "http://" + address + "/" + pool, n.right[pool], n.fail, quit}
		for client := range troubleClients {
			group.Go(func() { c.run(client) })
		}
	}
	n.more(50)
	for _, ill := range []mood{killed, hung, slow, refuse, fails, resets} {
		n.fallIll(backends[0], ill)
	}
	close(quit)
	group.Wait()
}

// fallIll makes a backend ill until every pool leaves it out, and well until every pool has taken it back.
func (n *troubleNode) fallIll(b *moody, ill mood) {
	t, began, before := n.t, time.Now(), len(n.failures())
	b.feel(t, ill)
	n.until(string(ill)+": every pool leaves it out", func() bool {
		events := n.events(began, b.address)
		for pool := range troublePools {
			if first(events[pool], began, "backend_ejected", "backend_down").Type == "" {
				return false
			}
		}
		return true
	})
	n.more(20)
	restored := time.Now()
	b.feel(t, well)
	n.until(string(ill)+": every pool takes it back", func() bool {
		return len(eligible.FindAll(n.lbctl("backend", "status", "-o", "json"), -1)) == 3*len(troublePools)
	})
	n.more(20)
	n.judge(b, ill, began, restored, n.failures()[before:])
}

var eligible = regexp.MustCompile(`"eligible": *true`)

// judge looks at what has failed, and at what the events tell.
func (n *troubleNode) judge(b *moody, ill mood, began, restored time.Time, failures []failedGet) {
	t, events, failed := n.t, n.events(began, b.address), map[string]int{}
	for _, f := range failures {
		failed[f.pool]++
		switch {
		case ill != resets:
			t.Errorf("%s: a GET of %s failed %v after the start: %v", ill, f.pool, f.began.Sub(began), f.err)
		case leftOut(events[f.pool], f.began, f.end):
			t.Errorf("%s: a GET of %s failed %v after the start, while the backend was left out: %v", ill, f.pool, f.began.Sub(began), f.err)
		}
	}
	var out, back time.Duration
	for pool := range troublePools {
		is := first(events[pool], restored, "backend_restored", "backend_up")
		if is.Type == "" { // an ejection may have ended a moment before the backend was well
			is = troubleEvent{Time: restored}
			if leftOut(events[pool], restored, restored) {
				t.Errorf("%s: no event tells that %s has taken it back", ill, pool)
			}
		}
		times := 0
		for _, e := range events[pool] {
			if e.Type == "backend_ejected" || e.Type == "backend_down" {
				times++
			}
		}
		if most := times * (3 + troubleClients); failed[pool] > most { // three in a row, and what was under way then
			t.Errorf("%s: %d GETs of %s failed, want at most %d: it was left out %d times", ill, failed[pool], pool, most, times)
		}
		out = max(out, first(events[pool], began, "backend_ejected", "backend_down").Time.Sub(began))
		back = max(back, is.Time.Sub(restored))
	}
	t.Logf("%-18s left out after %v, taken back %v after it was well, %d GETs failed", ill, out.Round(time.Millisecond), back.Round(time.Millisecond), len(failures))
}

// startTroubleNode runs a dev node and applies a document. It returns where HTTP is, and the control socket.
func startTroubleNode(t *testing.T, engine, binary, document string, flags ...string) (address, socket string) {
	t.Helper()
	dir := t.TempDir()
	address, err := freeAddress()
	if err != nil {
		t.Fatal(err)
	}
	socket = filepath.Join(dir, "data", "control.sock")
	node := &node{name: "n", binary: binary, log: filepath.Join(dir, "log"), args: append([]string{
		"run", "--dev", "--data-dir", filepath.Join(dir, "data"), "--node", "n", "--listen", "http=" + address, "--listen", "https=127.0.0.1:0",
	}, flags...)}
	t.Cleanup(node.kill)
	if _, err := node.start(append(os.Environ(), "LBD_ENGINE="+engine)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(binaries, "lbctl"), "apply", "-f", "-", "--wait")
	cmd.Env, cmd.Stdin = append(os.Environ(), "LBCTL_ENDPOINTS=unix:"+socket), strings.NewReader(document)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return address, socket
}
