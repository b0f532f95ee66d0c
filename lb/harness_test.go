package lb

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"lbd/lb/lbtest"
	"lbd/lb/loop"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait of a test: only a failing one reaches it.
const patience = 10 * time.Second

// onEngines runs a test on every engine that this system has, one loop each.
func onEngines(t *testing.T, test func(t *testing.T, kind string)) {
	kinds := []string{loop.KindGoroutine}
	if runtime.GOOS == "linux" {
		kinds = append(kinds, loop.KindEpoll)
	}
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) { test(t, kind) })
	}
}

// node is a server with one listener "main" and its journal.
type node struct {
	*Server
	t      *testing.T
	engine *loop.Engine

	mu      sync.Mutex
	records []Record
	logged  chan struct{} // one token for each record
	before  func(*Record)
}

// setup says what a node serves. Backends become the pool "p" of a route that takes everything, unless routes are given.
type setup struct {
	kind     string
	loops    int // 1
	backends []netip.AddrPort
	pool     PoolConfig
	forward  RouteTimeouts
	routes   []RouteConfig
	listener ListenerConfig
	tls      Terminator
	log      func(*Record) // before the journal's
	unlogged bool          // no journal, only log
	logger   *slog.Logger  // of the server
	events   func(Event)
	clock    *clock // the real one
}

// clock is the time of a server, which a test sets forward.
type clock struct{ ahead atomic.Int64 }

func (c *clock) now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

// pass sets it forward and lets the server see it.
func (c *clock) pass(n *node, d time.Duration) {
	c.ahead.Add(int64(d))
	n.tick(c.now())
}

func start(t *testing.T, cfg setup) *node {
	t.Helper()
	engine, err := loop.New(loop.Options{Kind: cfg.kind, Loops: max(1, cfg.loops), Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, engine: engine, before: cfg.log, logged: make(chan struct{}, 1<<16)}
	options := Options{Engine: engine, Terminator: cfg.tls, AccessLog: n.log, Node: "n1", Logger: cfg.logger, OnEvent: cfg.events}
	if cfg.clock != nil {
		options.now = cfg.clock.now
	}
	if cfg.unlogged {
		options.AccessLog = cfg.log
	}
	n.Server = NewServer(options)
	t.Cleanup(n.stop)
	n.serve(cfg)
	l := cfg.listener
	l.Name, l.TLS = "main", cfg.tls != nil
	if l.Addresses == nil {
		l.Addresses = []string{"127.0.0.1:0"}
	}
	if err := n.Listen(l); err != nil {
		t.Fatal(err)
	}
	return n
}

// serve sets pool and table.
func (n *node) serve(cfg setup) {
	n.t.Helper()
	pool := cfg.pool
	pool.Name = "p"
	if pool.Backends == nil {
		for _, address := range cfg.backends {
			pool.Backends = append(pool.Backends, BackendConfig{Key: address.String(), Name: address.String(), Address: address, Weight: 1})
		}
	}
	routes := cfg.routes
	if routes == nil {
		routes = []RouteConfig{{Name: "all", Listeners: []string{"main"}, Forward: &Forward{Pools: []WeightedPool{{Pool: "p", Weight: 1}}, Timeouts: cfg.forward}}}
	}
	table, err := NewTable(routes, []*Pool{n.NewPool(pool)})
	if err != nil {
		n.t.Fatal(err)
	}
	n.SetTable(table)
}

func (n *node) log(r *Record) {
	if n.before != nil {
		n.before(r)
	}
	kept := *r
	for _, field := range []*[]byte{&kept.Method, &kept.Host, &kept.Path, &kept.Query, &kept.RequestID, &kept.Line, &kept.Target, &kept.UserAgent, &kept.Referer} {
		*field = bytes.Clone(*field)
	}
	n.mu.Lock()
	n.records = append(n.records, kept)
	n.mu.Unlock()
	n.logged <- struct{}{}
}

func (n *node) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	n.Drain(ctx)
	n.engine.Close()
	if in := n.inFlight(); in != 0 {
		n.t.Errorf("%d requests still count as in flight", in)
	}
	if c := n.Stats().Connections; c != 0 {
		n.t.Errorf("%d connections still counted", c)
	}
}

func (n *node) inFlight() int64 {
	sum := int64(0)
	for _, p := range n.Stats().Pools {
		for _, b := range p.Backends {
			sum += b.InFlight + b.Queued
		}
	}
	return sum
}

// setEligible says of a backend what the checks of all served pools would.
func (n *node) setEligible(key string, eligible bool) {
	for _, p := range n.Stats().Pools {
		n.SetEligible(p.Name, key, eligible)
	}
}

func (n *node) addr() string { return n.Addresses("main")[0].String() }

// record waits for the next exchange to end.
func (n *node) record() Record {
	n.t.Helper()
	select {
	case <-n.logged:
	case <-time.After(patience):
		n.t.Fatal("no exchange ended")
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	r := n.records[0]
	n.records = n.records[1:]
	return r
}

// want checks how the next exchange ends.
func (n *node) want(status int, reason Reason) Record {
	n.t.Helper()
	r := n.record()
	if r.Status != status || r.Reason != reason {
		n.t.Errorf("ended %d %s (%s), want %d %s", r.Status, r.Reason, r.Detail, status, reason)
	}
	return r
}

func (n *node) backend(i int) PoolBackendStats { return n.Stats().Pools[0].Backends[i] }

// eventually waits until a counter that moves after the client has its answer is right.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// client is a raw connection to a node.
type client struct {
	net.Conn
	t *testing.T
	r *bufio.Reader
}

func (n *node) dial() *client {
	n.t.Helper()
	c, err := net.Dial("tcp", n.addr())
	if err != nil {
		n.t.Fatal(err)
	}
	return newClient(n.t, c)
}

func newClient(t *testing.T, c net.Conn) *client {
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	return &client{Conn: c, t: t, r: bufio.NewReader(c)}
}

func (c *client) say(s string) {
	c.t.Helper()
	if _, err := io.WriteString(c.Conn, s); err != nil {
		c.t.Fatal(err)
	}
}

func get(path string) string { return "GET " + path + " HTTP/1.1\r\nHost: a.test\r\n\r\n" }

func post(path, body string) string {
	return "POST " + path + " HTTP/1.1\r\nHost: a.test\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body
}

// answer reads the answer to a request of the given method, whole.
func (c *client) answer(method string) (*http.Response, string) {
	c.t.Helper()
	resp, body, err := c.tryAnswer(method)
	if err != nil {
		c.t.Fatalf("read answer: %v (%q so far)", err, body)
	}
	return resp, body
}

func (c *client) tryAnswer(method string) (*http.Response, string, error) {
	resp, err := http.ReadResponse(c.r, &http.Request{Method: method})
	if err != nil {
		return nil, "", err
	}
	body, err := io.ReadAll(resp.Body)
	return resp, string(body), err
}

// expect reads one answer and checks it.
func (c *client) expect(method string, status int, body string) *http.Response {
	c.t.Helper()
	resp, got := c.answer(method)
	if resp.StatusCode != status || got != body {
		c.t.Fatalf("got %d %q, want %d %q", resp.StatusCode, got, status, body)
	}
	return resp
}

// expectEnd checks that the connection ends here, in an orderly way or not.
func (c *client) expectEnd() {
	c.t.Helper()
	rest, err := io.ReadAll(c.r)
	if len(rest) > 0 || os.IsTimeout(err) {
		c.t.Errorf("connection goes on with %q, %v", rest, err)
	}
}

func addrs(backends ...*lbtest.Backend) []netip.AddrPort {
	var all []netip.AddrPort
	for _, b := range backends {
		all = append(all, b.Addr())
	}
	return all
}

// onlyTLS is a terminator with one certificate.
type onlyTLS struct{ config *tls.Config }

func (o onlyTLS) Handshake(c net.Conn, _ string) (*tls.Conn, error) {
	conn := tls.Server(c, o.config)
	if err := conn.Handshake(); err != nil {
		return nil, err
	}
	return conn, nil
}

// expectText reads exactly want.
func (c *client) expectText(want string) {
	c.t.Helper()
	got := make([]byte, len(want))
	if k, err := io.ReadFull(c.r, got); err != nil || string(got) != want {
		c.t.Fatalf("got %q, %v; want %q", got[:k], err, want)
	}
}

// expectStatus checks the status of an answer of ours.
func (c *client) expectStatus(status int) {
	c.t.Helper()
	if resp, _ := c.answer("GET"); resp.StatusCode != status {
		c.t.Fatalf("status %d, want %d", resp.StatusCode, status)
	}
}
