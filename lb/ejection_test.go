package lb

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lbd/lb/lbtest"
	"lbd/lb/loop"
)

// journal collects events.
type journal struct {
	mu     sync.Mutex
	events []Event
}

func (j *journal) add(e Event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.events = append(j.events, e)
}

// take returns what has come since, as "type backend".
func (j *journal) take() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	var words []string
	for _, e := range j.events {
		words = append(words, string(e.Type)+" "+e.Backend)
	}
	j.events = nil
	return words
}

// messages is the text of all events since the last take.
func (j *journal) messages() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	var all []string
	for _, e := range j.events {
		all = append(all, e.Message)
	}
	return strings.Join(all, "; ")
}

// sickly answers 200 while it is well, else it does what sick does.
func sickly(ill *atomic.Bool, sick func(c *lbtest.Conn)) lbtest.Script {
	return func(c *lbtest.Conn) {
		for {
			if _, err := c.ReadRequest(); err != nil {
				return
			}
			if ill.Load() {
				sick(c)
				return
			}
			c.Say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		}
	}
}

// sicknesses are all that counts as an error.
var sicknesses = map[string]func(c *lbtest.Conn){
	"500":       func(c *lbtest.Conn) { c.Say("HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n") },
	"599":       func(c *lbtest.Conn) { c.Say("HTTP/1.1 599 No\r\nContent-Length: 0\r\n\r\n") },
	"reset":     func(c *lbtest.Conn) { c.Reset() },
	"closed":    func(c *lbtest.Conn) {},
	"truncated": func(c *lbtest.Conn) { c.Say("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf") },
	"garbage":   func(c *lbtest.Conn) { c.Say("220 mail.test ESMTP\r\n\r\n") },
	"silent":    func(c *lbtest.Conn) { c.Read(make([]byte, 1)) },
}

// TestEjection: each kind of error, so many in a row, takes a backend out; it comes back by itself.
func TestEjection(t *testing.T) {
	for name, sick := range sicknesses {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onEngines(t, func(t *testing.T, kind string) { ejects(t, kind, name, sick) })
		})
	}
}

// sicknessWords are what an operator hears of them.
var sicknessWords = map[string]string{
	"500": "status 500", "599": "status 599", "reset": "no answer: connection reset by peer", "closed": "no answer: connection closed",
	"truncated": "answer ended early", "garbage": "answer: bad_version", "silent": "no answer in time",
}

func ejects(t *testing.T, kind, name string, sick func(*lbtest.Conn)) {
	var ill atomic.Bool
	ill.Store(true)
	bad, good := lbtest.New(t, sickly(&ill, sick)), lbtest.New(t, lbtest.OK("ok"))
	var events journal
	clock := &clock{}
	n := start(t, setup{
		kind: kind, backends: addrs(bad, good), events: events.add, clock: clock, unlogged: true,
		pool:   PoolConfig{Ejection: &Ejection{ConsecutiveErrors: 3, BaseTime: time.Hour, MaxPercent: 50}},
		routes: []RouteConfig{{Name: "all", Listeners: []string{"main"}, Forward: &Forward{Pools: []WeightedPool{{Pool: "p", Weight: 1}}, Retry: Retry{Attempts: -1}, Timeouts: RouteTimeouts{FirstByte: 50 * time.Millisecond}}}},
	})
	ask := func(requests int) {
		for range requests {
			c := n.dial()
			c.say(get("/"))
			c.tryAnswer("GET")
			c.Close()
		}
	}
	ask(6)
	eventually(t, "the ejection", func() bool { return n.poolBackend(0).Ejections == 1 })
	last := sicknessWords[name]
	if got, want := events.messages(), "3 errors in a row, the last: "+last+"; no requests for 1h0m0s"; got != want {
		t.Errorf("message %q, want %q", got, want)
	}
	if b := n.poolBackend(0); b.LastFailure != last || time.Since(b.LastFailureTime) > patience || n.poolBackend(1).LastFailure != "" {
		t.Errorf("last failure %q at %v", b.LastFailure, b.LastFailureTime)
	}
	if got := fmt.Sprint(events.take()); got != fmt.Sprintf("[backend_ejected %v]", bad.Addr()) {
		t.Errorf("events %s", got)
	}
	before := len(bad.Requests())
	if before < 3 || before > 4 {
		t.Errorf("%d requests at the bad one, want about 3", before)
	}
	ask(10)
	if got := len(bad.Requests()); got != before {
		t.Errorf("%d requests while it was ejected", got-before)
	}
	if b := n.poolBackend(0); b.Takes || b.Why != "ejected until "+b.EjectedUntil.UTC().Format(time.RFC3339) {
		t.Errorf("status %+v", b)
	}
	ill.Store(false)
	clock.pass(n, time.Hour)
	if got := fmt.Sprint(events.take()); got != fmt.Sprintf("[backend_restored %v]", bad.Addr()) {
		t.Errorf("events %s", got)
	}
	ask(10)
	if got := len(bad.Requests()); got != before+5 {
		t.Errorf("%d requests of 10 once it was back", got-before)
	}
}

func (n *node) poolBackend(i int) PoolBackendStats { return n.Stats().Pools[0].Backends[i] }

// TestEjectionRow: who fails again at once is out longer, up to ten times; a success makes it good.
func TestEjectionRow(t *testing.T) {
	n, clock, fail, succeed := tried(t, 3)
	for i := range 12 {
		fail(0, 2)
		b := n.poolBackend(0)
		want := time.Duration(min(i+1, 10)) * time.Minute
		if left := b.EjectedUntil.Sub(clock.now()).Round(time.Second); left != want {
			t.Fatalf("ejection %d lasts %v, want %v", i+1, left, want)
		}
		clock.pass(n, want)
		if b := n.poolBackend(0); !b.Takes || !b.EjectedUntil.IsZero() {
			t.Fatalf("not back: %+v", b)
		}
	}
	succeed(0)
	fail(0, 2)
	if left := n.poolBackend(0).EjectedUntil.Sub(clock.now()).Round(time.Second); left != time.Minute {
		t.Errorf("after a success it lasts %v", left)
	}
}

// TestEndEjection: an operator's word ends an ejection before its time, in that pool alone; what was counted begins anew.
func TestEndEjection(t *testing.T) {
	n, clock, fail, _ := tried(t, 3)
	var events journal
	n.Server.options.OnEvent = events.add
	if n.EndEjection("p", "a") || n.EndEjection("p", "none") || n.EndEjection("none", "a") || events.messages() != "" {
		t.Errorf("ended what there is not: %s", events.messages())
	}
	for range 3 { // each would be longer than the one before
		fail(0, 2)
		if left := n.poolBackend(0).EjectedUntil.Sub(clock.now()).Round(time.Second); left != time.Minute {
			t.Fatalf("ejected for %v", left)
		}
		events.take()
		if !n.EndEjection("p", "a") {
			t.Fatal("nothing to end")
		}
		if got := events.messages(); got != "takes requests again: its ejection was ended by an operator" {
			t.Errorf("message %q", got)
		}
		if got := fmt.Sprint(events.take()); got != "[backend_restored a]" {
			t.Errorf("events %s", got)
		}
		b := n.poolBackend(0)
		if !b.Takes || !b.EjectedUntil.IsZero() || b.LastFailure != "status 500" {
			t.Errorf("not back: %+v", b)
		}
	}
	clock.pass(n, time.Minute)
	if got := events.take(); len(got) != 0 {
		t.Errorf("its time is over, and it is told again: %v", got)
	}
	fail(0, 1)
	if b := n.poolBackend(0); !b.Takes {
		t.Errorf("old errors count: %+v", b)
	}
	// Who has found the row full, and comes to say so when all that is over, ejects nobody.
	p := n.table.Load().pools[0]
	n.eject(p, p.members[0])
	if b := n.poolBackend(0); !b.Takes || b.Ejections != 3 {
		t.Errorf("ejected for what is over: %+v", b)
	}
	if fail(0, 1); n.poolBackend(0).Takes {
		t.Error("two errors in a row, and it is still there")
	}
}

// TestLastFailure: a pool that does not eject remembers what was no answer, but not a status: there it is none of its business.
func TestLastFailure(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		bad := lbtest.New(t, lbtest.Answer("HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n"))
		n := start(t, setup{kind: kind, backends: []netip.AddrPort{bad.Addr()}, unlogged: true})
		c := n.dial()
		c.say(get("/"))
		c.expect("GET", 500, "")
		if b := n.poolBackend(0); b.LastFailure != "" || !b.LastFailureTime.IsZero() {
			t.Errorf("a status: %+v", b)
		}
		n = start(t, setup{kind: kind, backends: []netip.AddrPort{lbtest.Closed(t)}, unlogged: true})
		c = n.dial()
		c.say(get("/"))
		c.expectStatus(502)
		if b := n.poolBackend(0); b.LastFailure != "connect: connection refused" || b.LastFailureTime.IsZero() {
			t.Errorf("a refused connection: %q at %v", b.LastFailure, b.LastFailureTime)
		}
	})
}

// TestKeeper: time alone brings an ejected backend back; nobody has to ask.
func TestKeeper(t *testing.T) {
	n, clock, fail, _ := tried(t, 2)
	fail(0, 2)
	if b := n.poolBackend(0); b.Takes {
		t.Fatalf("not ejected: %+v", b)
	}
	clock.ahead.Add(int64(time.Minute))
	eventually(t, "it is back", func() bool { return n.poolBackend(0).Takes })
}

// tried is a pool of backends without servers, with 2 errors for an ejection of a minute, and how requests to one of them end.
func tried(t *testing.T, backends int) (n *node, c *clock, fail func(i, times int), succeed func(i int)) {
	c = &clock{}
	n = &node{t: t, Server: idleServer(t, Options{now: c.now})}
	cfg := PoolConfig{Name: "p", Ejection: &Ejection{ConsecutiveErrors: 2, BaseTime: time.Minute, MaxPercent: 50}, Backends: someBackends(backends)}
	n.servePool(cfg)
	end := func(i int, status int) {
		done := make(chan struct{})
		n.Server.options.Engine.Go(func(t *loop.Task) {
			defer close(done)
			p := n.Server.table.Load().pools[0]
			x := &exchange{server: n.Server, t: t, pool: p, member: p.members[i], backend: p.members[i].backend}
			x.resp.Status = status
			x.judge(nil)
		})
		<-done
	}
	fail = func(i, times int) {
		for range times {
			end(i, 500)
		}
	}
	return n, c, fail, func(i int) { end(i, 200) }
}

func someBackends(n int) []BackendConfig {
	var all []BackendConfig
	for i := range n {
		name := string(rune('a' + i))
		all = append(all, BackendConfig{Key: name, Name: name, Address: netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(i+1)), Weight: 1})
	}
	return all
}

// servePool serves one pool by a route for everything.
func (n *node) servePool(cfg PoolConfig) *Pool {
	n.t.Helper()
	p := n.NewPool(cfg)
	table, err := NewTable([]RouteConfig{{Name: "all", Listeners: []string{"main"}, Forward: &Forward{Pools: []WeightedPool{{Pool: cfg.Name, Weight: 1}}}}}, []*Pool{p})
	if err != nil {
		n.t.Fatal(err)
	}
	n.SetTable(table)
	return p
}

// TestEjectionCap: no more than the share, never the last, and never one that is alone.
func TestEjectionCap(t *testing.T) {
	n, _, fail, _ := tried(t, 5)
	for i := range 5 {
		fail(i, 10)
	}
	out := 0
	for i := range 5 {
		if !n.poolBackend(i).EjectedUntil.IsZero() {
			out++
		}
	}
	if out != 2 {
		t.Errorf("%d of 5 ejected, want 2 (50 %%)", out)
	}

	n, _, fail, _ = tried(t, 1)
	fail(0, 10)
	if b := n.poolBackend(0); !b.Takes || b.Ejections != 0 {
		t.Errorf("the only one: %+v", b)
	}

	n, _, fail, _ = tried(t, 2)
	n.setEligible("b", false)
	fail(0, 10)
	if b := n.poolBackend(0); !b.Takes || b.Ejections != 0 {
		t.Errorf("the last that is up: %+v", b)
	}
	n.setEligible("b", true)
	fail(0, 2)
	if b := n.poolBackend(0); b.Takes {
		t.Errorf("one of two: %+v", b)
	}
	n.setEligible("b", false)
	if b := n.poolBackend(0); !b.Takes || b.Why == "" {
		t.Errorf("ejected, but the last: %+v", b)
	}
}

// TestEjectionSurvives: a change of the pool, and of others, resets neither what is out nor what has been counted.
func TestEjectionSurvives(t *testing.T) {
	n, clock, fail, _ := tried(t, 3)
	fail(0, 2)
	fail(1, 1)
	cfg := PoolConfig{Name: "p", Ejection: &Ejection{ConsecutiveErrors: 2, BaseTime: time.Minute, MaxPercent: 67}, Backends: someBackends(4), ConnectTimeout: time.Second}
	n.servePool(cfg)
	if b := n.poolBackend(0); b.Takes || b.Ejections != 1 {
		t.Errorf("after a change: %+v", b)
	}
	fail(1, 1)
	if b := n.poolBackend(1); b.Takes {
		t.Errorf("errors are not counted on: %+v", b)
	}
	clock.pass(n, time.Minute)
	if b := n.poolBackend(0); !b.Takes {
		t.Errorf("not back: %+v", b)
	}
	cfg.Ejection = nil
	fail(0, 2)
	n.servePool(cfg)
	if b := n.poolBackend(0); !b.Takes {
		t.Errorf("out of a pool that ejects no more: %+v", b)
	}
}

// TestFailOpen is case A42: below the threshold, and only there, all take requests, and it is said.
func TestFailOpen(t *testing.T) {
	var events journal
	n := &node{t: t, Server: idleServer(t, Options{OnEvent: events.add})}
	p := n.servePool(PoolConfig{Name: "p", FailOpen: 50, Backends: someBackends(4)})
	n.setEligible("a", false)
	n.setEligible("b", false)
	if p.FailOpen() || len(events.take()) != 0 {
		t.Error("fails open at the threshold")
	}
	n.setEligible("c", false)
	stats := n.Stats().Pools[0]
	if got := fmt.Sprint(events.take()); !p.FailOpen() || !stats.FailOpen || got != "[fail_open ]" {
		t.Errorf("events %s, status %v", got, stats.FailOpen)
	}
	if b := stats.Backends[0]; !b.Takes || b.Why != "down, but the pool fails open" {
		t.Errorf("status %+v", b)
	}
	// A change of the pool is no new event.
	n.servePool(PoolConfig{Name: "p", FailOpen: 50, Backends: someBackends(4), IdlePerBackend: 7})
	if got := events.take(); len(got) != 0 {
		t.Errorf("events %v", got)
	}
	n.setEligible("a", true)
	if got := fmt.Sprint(events.take()); got != "[fail_open_ended ]" {
		t.Errorf("events %s", got)
	}
	if b := n.poolBackend(1); b.Takes || b.Why != "down" {
		t.Errorf("status %+v", b)
	}
}

// TestNoFailOpen: without a threshold a pool whose backends are all down serves nobody.
func TestNoFailOpen(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		b := lbtest.New(t, lbtest.OK("ok"))
		n := start(t, setup{kind: kind, backends: addrs(b)})
		n.setEligible(b.Addr().String(), false)
		c := n.dial()
		c.say(get("/"))
		if resp, _ := c.answer("GET"); resp.StatusCode != 503 || resp.Header.Get("Retry-After") == "" {
			t.Errorf("status %d, headers %v", resp.StatusCode, resp.Header)
		}
		n.want(503, NoBackend)
	})
}
