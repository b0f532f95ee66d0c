package lb

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"lbd/lb/lbtest"
)

// counted is a backend that knows how many of its connections are open as its kernel sees it: those that the other side has ended do
// not count, whether or not anybody has read the end.
type counted struct {
	net.Listener
	mu    sync.Mutex
	conns map[*net.TCPConn]struct{}
	most  int
	group sync.WaitGroup
}

func newCounted(t *testing.T, serve func(c *net.TCPConn)) *counted {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &counted{Listener: l, conns: map[*net.TCPConn]struct{}{}}
	b.group.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conn := c.(*net.TCPConn)
			b.count(conn)
			b.group.Go(func() {
				serve(conn)
				b.mu.Lock()
				delete(b.conns, conn)
				b.mu.Unlock()
				conn.Close()
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		b.mu.Lock()
		for c := range b.conns {
			c.Close()
		}
		b.mu.Unlock()
		b.group.Wait()
	})
	return b
}

func (b *counted) count(c *net.TCPConn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.conns[c] = struct{}{}
	open := 0
	for c := range b.conns {
		if !endedBy(c) {
			open++
		}
	}
	b.most = max(b.most, open)
}

// endedBy looks whether the other side's end has come, behind whatever else has.
func endedBy(c *net.TCPConn) (ended bool) {
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	err = raw.Control(func(fd uintptr) {
		look := make([]byte, 64<<10)
		for {
			n, _, err := syscall.Recvfrom(int(fd), look, syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
			switch {
			case err == nil && n == len(look):
				look = make([]byte, 2*len(look))
				continue
			case err == syscall.EAGAIN:
			case err != nil || n == 0:
				ended = true
			}
			return
		}
	})
	return ended || err != nil
}

// moodily serves echo answers, some slowly, and breaks off now and then.
func moodily(seed uint64) func(c *net.TCPConn) {
	var served atomic.Uint64
	script := func(c *lbtest.Conn) {
		dice := rand.New(rand.NewPCG(seed, served.Add(1)))
		for {
			if _, err := c.ReadHead(); err != nil {
				return
			}
			time.Sleep(time.Duration(dice.IntN(3)) * time.Millisecond)
			switch dice.IntN(20) {
			case 0:
				c.Reset()
				return
			case 1:
				return
			case 2:
				c.Say("HTTP/1.1 200 OK\r\nContent-Length: 200\r\n\r\nnot so many")
				return
			}
			c.Say(ok2)
		}
	}
	return func(c *net.TCPConn) { script(lbtest.Wrap(c)) }
}

// TestNoEleventhConnection: 8 loops, 20 backends and 10 connections each: under load, with backends that break off, clients that leave,
// a backend that refuses and one that is not there, none ever sees an eleventh, and all slots come back.
func TestNoEleventhConnection(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		cfg := setup{kind: kind, loops: 8, unlogged: true, pool: PoolConfig{
			MaxPerBackend: 10, Queue: &Queue{Length: 1000, Timeout: patience}, ConnectionRequests: 20, IdleTimeout: 20 * time.Millisecond,
		}}
		var all []*counted
		for i := range 19 {
			b := newCounted(t, moodily(seed+uint64(i)))
			all = append(all, b)
			cfg.backends = append(cfg.backends, b.Addr().(*net.TCPAddr).AddrPort())
		}
		cfg.backends = append(cfg.backends, lbtest.Closed(t))
		n := start(t, cfg)
		var right atomic.Int64
		var group sync.WaitGroup
		for i := range 300 {
			group.Go(func() { right.Add(crowd(n, rand.New(rand.NewPCG(seed, uint64(i))))) })
		}
		group.Wait()
		if right.Load() < 300 {
			t.Errorf("%d right answers", right.Load())
		}
		most := 0
		for i, b := range all {
			b.mu.Lock()
			if most = max(most, b.most); b.most > 10 {
				t.Errorf("backend %d saw %d connections", i, b.most)
			}
			b.mu.Unlock()
		}
		if most < 10 {
			t.Errorf("no backend came to its limit: %d connections at most", most)
		}
		eventually(t, "all slots are free", func() bool {
			return !slices.ContainsFunc(n.Stats().Pools[0].Backends, func(b PoolBackendStats) bool {
				return b.Connections != 0 || b.Queued != 0 || b.InFlight != 0
			})
		})
	})
}

// crowd makes some requests, and leaves in the midst of some.
func crowd(n *node, dice *rand.Rand) (right int64) {
	for range 3 {
		c, err := net.Dial("tcp", n.addr())
		if err != nil {
			return right
		}
		c.SetDeadline(time.Now().Add(patience))
		for range 4 {
			if _, err := io.WriteString(c, get("/")); err != nil {
				break
			}
			if dice.IntN(10) == 0 {
				break // gone
			}
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				break
			}
			if body, err := io.ReadAll(resp.Body); err == nil && resp.StatusCode == 200 && string(body) == "hi" {
				right++
			}
			if resp.Close {
				break
			}
		}
		c.Close()
	}
	return right
}

// held is a backend that answers a request when it is told to.
func held() (script lbtest.Script, came chan string, answer chan struct{}) {
	came, answer = make(chan string, 1000), make(chan struct{})
	return func(c *lbtest.Conn) {
		for {
			r, err := c.ReadRequest()
			if err != nil {
				return
			}
			came <- r.Line()
			select {
			case <-answer:
				c.Say(ok2)
			case <-time.After(patience): // the test has failed
				return
			}
		}
	}, came, answer
}

// queued waits until so many requests wait in line.
func (n *node) queued(want int64) {
	n.t.Helper()
	eventually(n.t, fmt.Sprintf("%d in line", want), func() bool { return n.backend(0).Queued == want })
}

// TestQueueInOrder: with one connection, requests of all loops are served in the order in which they came.
func TestQueueInOrder(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		for _, idle := range []int{0, -1} { // handed over while open, and by a new one each
			script, came, answer := held()
			b := lbtest.New(t, script)
			n := start(t, setup{kind: kind, loops: 4, backends: addrs(b), pool: PoolConfig{
				MaxPerBackend: 1, IdlePerBackend: idle, Queue: &Queue{Length: 20, Timeout: patience},
			}})
			var group sync.WaitGroup
			for i := range 21 {
				c := n.dial()
				c.say(get(fmt.Sprint("/", i)))
				if i == 0 {
					<-came
				} else {
					n.queued(int64(i))
				}
				group.Go(func() { c.expect("GET", 200, "hi") })
			}
			late := n.dial()
			late.say(get("/late"))
			late.expectStatus(503)
			if r := n.record(); r.Reason != QueueFull {
				t.Errorf("one too many: %s", r.Reason)
			}
			for i := 1; i <= 20; i++ {
				answer <- struct{}{}
				if got, want := <-came, fmt.Sprintf("GET /%d HTTP/1.1", i); got != want {
					t.Fatalf("next is %q, want %q", got, want)
				}
			}
			answer <- struct{}{}
			group.Wait()
			if s := n.backend(0); s.Queued != 0 || s.QueueFull != 1 || idle == 0 && s.NewConnections != 1 || idle < 0 && s.NewConnections != 21 {
				t.Errorf("%+v", s)
			}
		}
	})
}

// TestQueueTimeout: who waits too long is told when to come again, and its place is free; the time is in the record.
func TestQueueTimeout(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		script, came, answer := held()
		n := start(t, setup{kind: kind, loops: 2, backends: addrs(lbtest.New(t, script)), pool: PoolConfig{
			MaxPerBackend: 1, Queue: &Queue{Length: 1, Timeout: 50 * time.Millisecond},
		}})
		first, second := n.dial(), n.dial()
		first.say(get("/first"))
		<-came
		second.say(get("/second"))
		resp, _ := second.answer("GET")
		if resp.StatusCode != 503 || resp.Header.Get("Retry-After") == "" {
			t.Errorf("%d %v", resp.StatusCode, resp.Header)
		}
		if r := n.want(503, QueueTimeout); r.Queued < 40*time.Millisecond || r.Backend == "" || r.Tries != 0 {
			t.Errorf("queued %v at %q, %d tries", r.Queued, r.Backend, r.Tries)
		}
		if s := n.backend(0); s.Queued != 0 || s.QueueTimeouts != 1 {
			t.Errorf("%+v", s)
		}
		answer <- struct{}{}
		first.expect("GET", 200, "hi")
		second.say(get("/second")) // its connection lives
		<-came
		answer <- struct{}{}
		second.expect("GET", 200, "hi")
	})
}

// TestQueueLeft: a client that goes while it waits, by a FIN or a reset, frees its place at once.
func TestQueueLeft(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		for name, leave := range map[string]func(c *client){
			"end":   func(c *client) { c.Close() },
			"reset": func(c *client) { c.Conn.(*net.TCPConn).SetLinger(0); c.Close() },
		} {
			t.Run(name, func(t *testing.T) {
				script, came, answer := held()
				n := start(t, setup{kind: kind, loops: 2, backends: addrs(lbtest.New(t, script)), pool: PoolConfig{
					MaxPerBackend: 1, Queue: &Queue{Length: 1, Timeout: patience},
				}})
				first, second, third := n.dial(), n.dial(), n.dial()
				first.say(get("/first"))
				<-came
				second.say(get("/second"))
				n.queued(1)
				leave(second)
				n.want(0, ClientAborted)
				n.queued(0)
				third.say(get("/third"))
				n.queued(1)
				answer <- struct{}{}
				first.expect("GET", 200, "hi")
				if got := <-came; !strings.HasPrefix(got, "GET /third") {
					t.Errorf("%q after the first", got)
				}
				answer <- struct{}{}
				third.expect("GET", 200, "hi")
			})
		}
	})
}

// TestNoQueue: at its limit, another backend is asked; with none that has room the request is refused at once.
func TestNoQueue(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		script, came, answer := held()
		n := start(t, setup{kind: kind, backends: addrs(lbtest.New(t, script), lbtest.New(t, script), lbtest.New(t, script)), pool: PoolConfig{MaxPerBackend: 1}})
		var clients []*client
		for range 3 {
			c := n.dial()
			c.say(get("/"))
			<-came
			clients = append(clients, c)
		}
		c := n.dial()
		c.say(get("/"))
		c.expectStatus(503)
		if r := n.want(503, Limited); r.Detail != "connections" || r.Tries != 0 {
			t.Errorf("detail %q after %d tries", r.Detail, r.Tries)
		}
		if s := n.backend(0); s.QueueFull != 0 {
			t.Errorf("a queue that is not there was full %d times", s.QueueFull)
		}
		for range clients {
			answer <- struct{}{}
		}
		for _, c := range clients {
			c.expect("GET", 200, "hi")
		}
	})
}

// TestStaleAtTheLimit: an idle connection that has died in the backend's hands gives its slot to the fresh one.
func TestStaleAtTheLimit(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		b := lbtest.New(t, func(c *lbtest.Conn) {
			for i := range 2 {
				if _, err := c.ReadRequest(); err != nil || i == 1 && c.Index() == 0 {
					return // the second request on the first connection finds it dead
				}
				c.Say(ok2)
			}
		})
		n := start(t, setup{kind: kind, backends: addrs(b), pool: PoolConfig{MaxPerBackend: 1}})
		c := n.dial()
		for range 2 {
			c.say(get("/"))
			c.expect("GET", 200, "hi")
		}
		if s := n.backend(0); s.Connections != 1 || s.NewConnections != 2 || s.Failures != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// TestConnectionRequestsAndAge: a connection to a backend ends after so many requests, or when it is so old.
func TestConnectionRequestsAndAge(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		b := lbtest.New(t, lbtest.OK("hi"))
		n := start(t, setup{kind: kind, backends: addrs(b), pool: PoolConfig{ConnectionRequests: 3}})
		c := n.dial()
		for range 9 {
			c.say(get("/"))
			c.expect("GET", 200, "hi")
		}
		if b.Accepted() != 3 {
			t.Errorf("%d connections for 9 requests, 3 each", b.Accepted())
		}
		b = lbtest.New(t, lbtest.OK("hi"))
		n = start(t, setup{kind: kind, backends: addrs(b), pool: PoolConfig{ConnectionAge: 50 * time.Millisecond, IdleTimeout: patience}})
		c = n.dial()
		c.say(get("/"))
		c.expect("GET", 200, "hi")
		eventually(t, "an old connection is closed", func() bool { return n.backend(0).Connections == 0 })
		c.say(get("/"))
		c.expect("GET", 200, "hi")
		if b.Accepted() != 2 {
			t.Errorf("%d connections, one too old", b.Accepted())
		}
	})
}

// TestLowerLimit: connections above a new limit end with their requests.
func TestLowerLimit(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		script, came, answer := held()
		cfg := setup{kind: kind, backends: addrs(lbtest.New(t, script)), pool: PoolConfig{MaxPerBackend: 4, IdleTimeout: patience}}
		n := start(t, cfg)
		var clients []*client
		for range 4 {
			c := n.dial()
			c.say(get("/"))
			<-came
			clients = append(clients, c)
		}
		cfg.pool.MaxPerBackend = 2
		n.serve(cfg)
		for range clients {
			answer <- struct{}{}
		}
		for _, c := range clients {
			c.expect("GET", 200, "hi")
		}
		c := n.dial()
		for range 4 {
			eventually(t, "idle", func() bool {
				s := n.backend(0)
				return s.InFlight == 0 && s.Idle == s.Connections && s.Connections == 2
			})
			c.say(get("/"))
			<-came
			answer <- struct{}{}
			c.expect("GET", 200, "hi")
		}
		if s := n.backend(0); s.NewConnections != 4 {
			t.Errorf("%+v", s)
		}
	})
}

// TestPanicAtTheLimit: an exchange that a panic ends gives its slot back.
func TestPanicAtTheLimit(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		var once atomic.Bool
		b := lbtest.New(t, lbtest.OK("hi"))
		n := start(t, setup{kind: kind, backends: addrs(b), pool: PoolConfig{MaxPerBackend: 1, IdlePerBackend: -1}, unlogged: true, log: func(r *Record) {
			if !once.Swap(true) {
				panic("log")
			}
		}})
		n.dial().say(get("/"))
		c := n.dial()
		eventually(t, "the slot is free", func() bool { return once.Load() && n.backend(0).Connections == 0 })
		c.say(get("/"))
		c.expect("GET", 200, "hi")
	})
}

// lineUp holds a connection of each backend, and puts requests into the line of the first.
func lineUp(t *testing.T, n *node, came chan string, backends, waiting int) (inFlight, inLine []*client) {
	t.Helper()
	for range backends {
		c := n.dial()
		c.say(get("/held"))
		<-came
		inFlight = append(inFlight, c)
	}
	for range waiting {
		c := n.dial()
		c.say(get("/waits"))
		inLine = append(inLine, c)
	}
	eventually(t, "the line", func() bool {
		sum := int64(0)
		for _, b := range n.Stats().Pools[0].Backends {
			sum += b.Queued
		}
		return sum == int64(waiting)
	})
	return inFlight, inLine
}

// TestHigherLimit: who waits when the limit is raised, or falls away, is served by what that allows.
func TestHigherLimit(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		for limit, most := range map[int]int64{3: 3, 0: 6} {
			script, came, answer := held()
			cfg := setup{kind: kind, loops: 2, backends: addrs(lbtest.New(t, script)), pool: PoolConfig{MaxPerBackend: 1, Queue: &Queue{Length: 10, Timeout: patience}}}
			n := start(t, cfg)
			inFlight, inLine := lineUp(t, n, came, 1, 5)
			cfg.pool.MaxPerBackend = limit
			n.serve(cfg)
			eventually(t, "more are served", func() bool { return n.backend(0).Connections == most && n.backend(0).Queued == 6-most })
			go func() {
				for range 6 {
					answer <- struct{}{}
				}
			}()
			for _, c := range append(inFlight, inLine...) {
				c.expect("GET", 200, "hi")
			}
		}
	})
}

// TestLimitUnderChange: while the limit goes up and down under load, no more connections are made than the highest allows, and
// nothing is left behind.
func TestLimitUnderChange(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		b := newCounted(t, moodily(seed))
		cfg := setup{kind: kind, loops: 4, unlogged: true, backends: []netip.AddrPort{b.Addr().(*net.TCPAddr).AddrPort()}, pool: PoolConfig{
			Queue: &Queue{Length: 1000, Timeout: patience}, IdleTimeout: 20 * time.Millisecond, MaxPerBackend: 5,
		}}
		n := start(t, cfg)
		var right atomic.Int64
		var group sync.WaitGroup
		for i := range 60 {
			group.Go(func() { right.Add(crowd(n, rand.New(rand.NewPCG(seed, uint64(i))))) })
		}
		done := make(chan struct{})
		go func() { group.Wait(); close(done) }()
		for i := 0; ; i++ {
			select {
			case <-done:
				b.mu.Lock()
				if b.most > 5 {
					t.Errorf("%d connections", b.most)
				}
				b.mu.Unlock()
				if right.Load() < 60 {
					t.Errorf("%d right answers", right.Load())
				}
				eventually(t, "all slots are free", func() bool {
					s := n.backend(0)
					return s.Connections == 0 && s.Queued == 0 && s.InFlight == 0
				})
				return
			default:
				cfg.pool.MaxPerBackend = 1 + i%5
				n.serve(cfg)
				time.Sleep(time.Millisecond) // the load goes on meanwhile
			}
		}
	})
}

// TestBackendAwayAndBack: a backend that no pool has for a moment still has the connections that it had.
func TestBackendAwayAndBack(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		script, came, answer := held()
		b, other := lbtest.New(t, script), lbtest.New(t, lbtest.OK("hi"))
		cfg := setup{kind: kind, backends: addrs(b), pool: PoolConfig{MaxPerBackend: 1, IdleTimeout: 50 * time.Millisecond}}
		away := setup{kind: kind, backends: addrs(other)}
		n := start(t, cfg)
		n.setEligible(b.Addr().String(), false)
		n.setEligible(b.Addr().String(), true)
		inFlight, _ := lineUp(t, n, came, 1, 0)
		n.setEligible(b.Addr().String(), false)
		n.serve(away)
		n.serve(cfg)
		c := n.dial()
		c.say(get("/"))
		c.expectStatus(503)
		if s := n.backend(0); s.Connections != 1 {
			t.Errorf("%+v", s)
		}
		n.serve(away)
		answer <- struct{}{}
		inFlight[0].expect("GET", 200, "hi")
		eventually(t, "it is forgotten", func() bool {
			n.tick(time.Now())
			n.mu.Lock()
			defer n.mu.Unlock()
			return len(n.backends) == 1
		})
	})
}

// TestLineOfOneThatGoes: who waits at a backend that goes out of service moves to another, or is told that there is none.
func TestLineOfOneThatGoes(t *testing.T) {
	for name, out := range map[string]func(n *node, cfg setup, backends []BackendConfig){
		"down": func(n *node, cfg setup, backends []BackendConfig) { n.setEligible(backends[0].Key, false) },
		"drained": func(n *node, cfg setup, backends []BackendConfig) {
			backends[0].State, backends[0].DrainSince = Drain, time.Now()
			n.serve(cfg)
		},
		"in maintenance": func(n *node, cfg setup, backends []BackendConfig) {
			backends[0].State, backends[0].CutOff = InMaintenance, true
			n.serve(cfg)
		},
		"removed": func(n *node, cfg setup, backends []BackendConfig) {
			cfg.pool.Backends = backends[1:]
			n.serve(cfg)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onEngines(t, func(t *testing.T, kind string) { lineOfOneThatGoes(t, kind, out) })
		})
	}
}

func lineOfOneThatGoes(t *testing.T, kind string, out func(*node, setup, []BackendConfig)) {
	script, came, answer := held()
	hung, well := lbtest.New(t, open), lbtest.New(t, script)
	backends := configs(hung, well)
	cfg := setup{kind: kind, loops: 2, pool: PoolConfig{Backends: backends, MaxPerBackend: 1, Queue: &Queue{Length: 10, Timeout: time.Minute}}}
	n := start(t, cfg)
	var held []*client
	for range 2 {
		c := n.dial()
		c.say(get("/held"))
		held = append(held, c)
	}
	<-came
	eventually(t, "both are busy", func() bool { return len(hung.Requests()) == 1 })
	var waiting []*client
	for range 6 {
		c := n.dial()
		c.say(get("/waits"))
		waiting = append(waiting, c)
	}
	eventually(t, "a line at each", func() bool { return n.backend(0).Queued == 3 && n.backend(1).Queued == 3 })
	out(n, cfg, backends)
	eventually(t, "all wait at the other", func() bool {
		all := n.Stats().Pools[0].Backends
		return all[len(all)-1].Queued >= 6
	})
	done := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		for {
			select {
			case answer <- struct{}{}:
			case <-done:
				return
			}
		}
	})
	for _, c := range waiting {
		c.expect("GET", 200, "hi")
	}
	for _, c := range held { // one of them is answered, or both
		c.Conn.(*net.TCPConn).SetLinger(0)
		c.Close()
	}
	eventually(t, "no request is left", func() bool { return n.inFlight() == 0 })
	close(done)
	group.Wait()
}

// TestLineOfTheLastOne: with nobody else they hear at once what a new request would hear.
func TestLineOfTheLastOne(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		script, came, answer := held()
		b := lbtest.New(t, script)
		n := start(t, setup{kind: kind, unlogged: true, backends: addrs(b), pool: PoolConfig{MaxPerBackend: 1, Queue: &Queue{Length: 10, Timeout: time.Minute}}})
		inFlight, inLine := lineUp(t, n, came, 1, 3)
		n.setEligible(b.Addr().String(), false)
		for _, c := range inLine {
			c.expectStatus(503)
		}
		answer <- struct{}{}
		inFlight[0].expect("GET", 200, "hi")
	})
}
