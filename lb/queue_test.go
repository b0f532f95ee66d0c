package lb

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"lbd/lb/lbtest"
)

// serveTwo sets a table of the pools a and b, by path, which have one backend in common.
func (n *node) serveTwo(backend BackendConfig, lengthA, lengthB int) {
	n.t.Helper()
	var pools []*Pool
	var routes []RouteConfig
	for name, length := range map[string]int{"a": lengthA, "b": lengthB} {
		pools = append(pools, n.NewPool(PoolConfig{
			Name: name, Backends: []BackendConfig{backend}, MaxPerBackend: 1, Queue: &Queue{Length: length, Timeout: patience},
		}))
		routes = append(routes, RouteConfig{
			Name: name, Listeners: []string{"main"}, Matches: []Match{{Prefix: "/" + name}},
			Forward: &Forward{Pools: []WeightedPool{{Pool: name, Weight: 1}}},
		})
	}
	table, err := NewTable(routes, pools)
	if err != nil {
		n.t.Fatal(err)
	}
	n.SetTable(table)
}

// sharers returns what the pools a and b know of their backend.
func (n *node) sharers() (a, b PoolBackendStats) {
	for _, p := range n.Stats().Pools {
		if p.Name == "a" {
			a = p.Backends[0]
		} else {
			b = p.Backends[0]
		}
	}
	return a, b
}

// TestQueueOfEachPool: pools with one backend in common have one line there, served as they came, but none takes a place from the
// other, whatever forms of the pools come meanwhile.
func TestQueueOfEachPool(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		script, came, answer := held()
		b := lbtest.New(t, script)
		backend := configs(b)[0]
		n := start(t, setup{kind: kind, loops: 2, backends: addrs(b)})
		n.serveTwo(backend, 2, 3)
		var clients []*client
		ask := func(path string, waitA, waitB int64) {
			t.Helper()
			c := n.dial()
			c.say(get(path))
			clients = append(clients, c)
			eventually(t, path+" in line", func() bool {
				a, b := n.sharers()
				return a.Queued == waitA && b.Queued == waitB && a.InFlight == 1 && b.InFlight == 1
			})
		}
		refused := func(pool string) {
			t.Helper()
			c := n.dial()
			c.say(get("/" + pool + "/late"))
			c.expectStatus(503)
			if r := n.want(503, QueueFull); r.Tries != 0 || r.Pool != pool || r.Backend != backend.Name {
				t.Errorf("%d tries, pool %s, backend %q", r.Tries, r.Pool, r.Backend)
			}
		}
		ask("/a/0", 0, 0)
		ask("/b/1", 0, 1)
		ask("/b/2", 0, 2)
		ask("/a/3", 1, 2)
		ask("/b/4", 1, 3)
		ask("/a/5", 2, 3)
		refused("a")
		refused("b")
		n.serveTwo(backend, 3, 3)
		refused("b")
		ask("/a/6", 3, 3)
		refused("a")
		if a, b := n.sharers(); a.QueueFull != 2 || b.QueueFull != 2 {
			t.Errorf("refused: %d of a, %d of b", a.QueueFull, b.QueueFull)
		}
		for i := range clients {
			if got, want := <-came, fmt.Sprintf("/%d HTTP/1.1", i); !strings.HasSuffix(got, want) {
				t.Errorf("next is %q, want %q", got, want)
			}
			answer <- struct{}{}
			clients[i].expect("GET", 200, "hi")
		}
		eventually(t, "nobody waits", func() bool { a, b := n.sharers(); return a.Queued == 0 && b.Queued == 0 && a.InFlight == 0 })
	})
}

// heldAs is held with answers that name the backend.
func heldAs(t *testing.T, name string) (b *lbtest.Backend, came chan string, answer chan struct{}) {
	came, answer = make(chan string, 100), make(chan struct{})
	b = lbtest.New(t, func(c *lbtest.Conn) {
		for {
			r, err := c.ReadRequest()
			if err != nil {
				return
			}
			came <- r.Line()
			select {
			case <-answer:
				c.Say("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n" + name)
			case <-time.After(patience): // the test has failed
				return
			}
		}
	})
	return b, came, answer
}

// TestWaiterMoves: who waits at a backend that hangs is served by another one once nobody waits there, in the order in which they came.
// Who is bound to the first stays, and holds up nobody.
func TestWaiterMoves(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		a, cameA, answerA := heldAs(t, "a")
		b, cameB, answerB := heldAs(t, "b")
		n := start(t, setup{kind: kind, loops: 2, pool: PoolConfig{
			Backends: configs(a, b), MaxPerBackend: 1, Queue: &Queue{Length: 10, Timeout: patience}, Persistence: &SessionPersistence{Cookie: "stay"},
		}})
		asks := func(path, lines string, inLine int64) *client {
			t.Helper()
			c := n.dial()
			c.say("GET " + path + " HTTP/1.1\r\nHost: a.test\r\n" + lines + "\r\n")
			eventually(t, path+" in line", func() bool { return n.backend(0).Queued+n.backend(1).Queued == inLine })
			return c
		}
		busy := []*client{asks("/busy", "", 0), asks("/busy", "", 0)}
		<-cameA
		<-cameB
		bound := asks("/bound", fmt.Sprintf("Cookie: stay=%016x\r\n", sessionMark("p", n.backend(0).Name)), 1)
		var waiting []*client
		for i := range 6 {
			waiting = append(waiting, asks(fmt.Sprint("/", i), "", int64(i+2)))
		}
		if at := n.backend(0).Queued; at != 4 {
			t.Errorf("%d wait at the first, want 4", at)
		}
		order := ""
		for range waiting {
			answerB <- struct{}{}
			order += strings.Fields(<-cameB)[1]
		}
		answerB <- struct{}{}
		if order != "/0/2/4/1/3/5" && order != "/1/3/5/0/2/4" { // its own line, and then the other's
			t.Errorf("served in the order %s", order)
		}
		for _, c := range waiting {
			c.expect("GET", 200, "b")
		}
		eventually(t, "the bound one waits alone", func() bool {
			return n.backend(0).Queued == 1 && n.backend(0).InFlight == 1 && n.backend(1).Queued == 0 && n.backend(1).InFlight == 0
		})
		answerA <- struct{}{}
		<-cameA
		answerA <- struct{}{}
		bound.expect("GET", 200, "a")
		for _, c := range busy {
			if resp, _ := c.answer("GET"); resp.StatusCode != 200 {
				t.Errorf("status %d of one that did not wait", resp.StatusCode)
			}
		}
	})
}

// TestWaiterMovesToNewcomer: who waits goes to a backend that comes up or is added.
func TestWaiterMovesToNewcomer(t *testing.T) {
	for name, come := range map[string]func(n *node, cfg setup, all []BackendConfig){
		"up": func(n *node, _ setup, all []BackendConfig) { n.setEligible(all[1].Key, true) },
		"added": func(n *node, cfg setup, all []BackendConfig) {
			cfg.pool.Backends = append(all[:2:2], configs(lbtest.New(n.t, lbtest.OK("well")))...)
			n.serve(cfg)
		},
	} {
		t.Run(name, func(t *testing.T) {
			onEngines(t, func(t *testing.T, kind string) {
				script, came, answer := held()
				all := configs(lbtest.New(t, script), lbtest.New(t, lbtest.OK("well")))
				all[1].Down = true
				cfg := setup{kind: kind, loops: 2, pool: PoolConfig{Backends: all, MaxPerBackend: 1, Queue: &Queue{Length: 10, Timeout: patience}}}
				n := start(t, cfg)
				inFlight, inLine := lineUp(t, n, came, 1, 5)
				come(n, cfg, all)
				for _, c := range inLine {
					c.expect("GET", 200, "well")
				}
				answer <- struct{}{}
				inFlight[0].expect("GET", 200, "hi")
			})
		})
	}
}
