package lb

import (
	"context"
	"errors"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"lbd/lb/lbtest"
)

// drain starts a drain and returns its result's channel, after the server has begun to drain.
func (n *node) drain() <-chan error {
	done := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		done <- n.Drain(ctx)
	}()
	eventually(n.t, "draining", func() bool { return n.at() == ending })
	return done
}

func TestDrain(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		for _, loops := range []int{1, 2} {
			reached, release := make(chan struct{}), make(chan struct{})
			b := lbtest.New(t, func(c *lbtest.Conn) {
				for {
					r, err := c.ReadRequest()
					if err != nil {
						return
					}
					if strings.Contains(r.Line(), "/slow") {
						close(reached)
						<-release
					}
					c.Say(ok2)
				}
			})
			n := start(t, setup{kind: kind, loops: loops, backends: addrs(b)})
			addr := n.addr()
			var idle []*client
			for range 8 {
				c := n.dial()
				c.say(get("/"))
				c.expect("GET", 200, "hi")
				idle = append(idle, c)
			}
			busy := n.dial()
			busy.say(get("/slow"))
			<-reached
			done := n.drain()
			for _, c := range idle {
				c.expectEnd() // at once
			}
			if c, err := net.Dial("tcp", addr); err == nil {
				c.Close()
				t.Error("a draining listener accepts")
			}
			select {
			case err := <-done:
				t.Fatalf("drained with a request under way: %v", err)
			default:
			}
			close(release)
			if resp := busy.expect("GET", 200, "hi"); !resp.Close {
				t.Error("the last answer does not say that it is the last")
			}
			busy.expectEnd()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
}

func TestDrainDeadline(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		n := start(t, setup{kind: kind, backends: addrs(lbtest.New(t, silent))})
		n.dial().say(get("/"))
		eventually(t, "busy", func() bool { return n.inFlight() == 1 })
		ctx, cancel := context.WithTimeout(context.Background(), short)
		defer cancel()
		if err := n.Drain(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("drained: %v", err)
		}
		n.engine.Close() // ends the rest
		if c := n.Stats().Connections; c != 0 {
			t.Errorf("%d connections left", c)
		}
	})
}

func TestUnlisten(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		n := start(t, setup{kind: kind, backends: addrs(lbtest.New(t, lbtest.OK("hi")))})
		other := ListenerConfig{Name: "other", Addresses: []string{"127.0.0.1:0"}}
		if err := n.Listen(other); err != nil {
			t.Fatal(err)
		}
		here, there := n.dial(), newClient(t, dialTCP(t, n.Addresses("other")[0].String()))
		for _, c := range []*client{here, there} {
			c.say(get("/nothing"))
			c.answer("GET")
		}
		n.Unlisten("other")
		n.Unlisten("other")
		there.expectEnd()
		if n.Addresses("other") != nil || len(n.Stats().Listeners) != 1 {
			t.Error("still there")
		}
		here.say(get("/"))
		here.expect("GET", 200, "hi")
	})
}

func dialTCP(t *testing.T, address string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestListenChanges(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		taken, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer taken.Close()
		n := start(t, setup{kind: kind, backends: addrs(lbtest.New(t, lbtest.OK("hi")))})
		first := n.addr()
		c := n.dial()
		c.say(get("/"))
		c.expect("GET", 200, "hi")

		// A bind that fails keeps the whole previous form and names the address.
		err = n.Listen(ListenerConfig{Name: "main", Addresses: []string{"127.0.0.1:0", taken.Addr().String()}, Limits: Limits{HeadBytes: 100}})
		if !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), taken.Addr().String()) {
			t.Fatalf("error %v", err)
		}
		if n.addr() != first || len(n.Addresses("main")) != 1 {
			t.Errorf("addresses changed: %v", n.Addresses("main"))
		}
		long := "GET / HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("x", 200) + "\r\n\r\n"
		c.say(long)
		c.expect("GET", 200, "hi")

		// A new form: one address more, a smaller limit. The open connection takes it over.
		if err := n.Listen(ListenerConfig{Name: "main", Addresses: []string{"127.0.0.1:0", "localhost:0"}, Limits: Limits{HeadBytes: 100}}); err != nil {
			t.Fatal(err)
		}
		if len(n.Addresses("main")) != 2 {
			t.Errorf("addresses %v", n.Addresses("main"))
		}
		c.say(long)
		c.expectStatus(431)

		// An address less: nobody accepts there, and its port is free at once.
		if err := n.Listen(ListenerConfig{Name: "main", Addresses: []string{"localhost:0"}}); err != nil {
			t.Fatal(err)
		}
		again, err := net.Listen("tcp", first)
		if err != nil {
			t.Fatalf("not free: %v", err)
		}
		again.Close()

		// A listener that has never been bound leaves nothing behind.
		if err := n.Listen(ListenerConfig{Name: "new", Addresses: []string{taken.Addr().String()}}); err == nil || n.Addresses("new") != nil {
			t.Errorf("%v, %v", err, n.Addresses("new"))
		}
		if err := n.Listen(ListenerConfig{Name: "tls", TLS: true}); err == nil {
			t.Error("TLS without a terminator")
		}
	})
}

func TestConnectionLimit(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		n := start(t, setup{
			kind: kind, backends: addrs(lbtest.New(t, lbtest.OK("hi"))), listener: ListenerConfig{Limits: Limits{Connections: 1}},
		})
		c := n.dial()
		c.say(get("/"))
		c.expect("GET", 200, "hi")
		n.dial().expectEnd()
		if got := n.Stats().Listeners[0].Ended[Limited]; got != 1 {
			t.Errorf("%d counted", got)
		}
		c.say(get("/"))
		c.expect("GET", 200, "hi")
		c.Close()
		eventually(t, "a free place", func() bool { return n.Stats().Connections == 0 })
		c = n.dial()
		c.say(get("/"))
		c.expect("GET", 200, "hi")
	})
}

// TestPanic: a panic in a task costs that connection alone and leaks no count.
func TestPanic(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		n := start(t, setup{kind: kind, backends: addrs(lbtest.New(t, lbtest.OK("hi"))), log: func(r *Record) {
			if string(r.Path) == "/panic" {
				panic("on purpose")
			}
		}})
		c, other := n.dial(), n.dial()
		c.say(get("/panic"))
		c.expect("GET", 200, "hi")
		c.expectEnd()
		eventually(t, "count", func() bool { return n.Stats().Listeners[0].Ended[Internal] == 1 })
		other.say(get("/"))
		other.expect("GET", 200, "hi")
	})
}

// TestSteal: with two loops and little traffic, connections of one loop serve the other.
func TestSteal(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		b := lbtest.New(t, lbtest.OK("hi"))
		n := start(t, setup{kind: kind, loops: 2, backends: addrs(b)})
		for range 40 { // each a connection of its own, so that both loops serve some
			c := n.dial()
			c.say(get("/"))
			c.expect("GET", 200, "hi")
			c.Close()
			eventually(t, "kept", func() bool { return n.backend(0).Idle > 0 })
		}
		loops := 0
		for _, l := range n.engine.Stats().Loops {
			if l.Accepted > 0 {
				loops++
			}
		}
		if loops < 2 {
			t.Fatalf("one loop took all 40 connections; nothing was tested")
		}
		if b.Accepted() != 1 {
			t.Errorf("%d backend connections, want 1", b.Accepted())
		}
	})
}

// TestTableChangeUnderTraffic: no request is lost while tables change, and connections are kept.
func TestTableChangeUnderTraffic(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		b := lbtest.New(t, lbtest.OK("hi"))
		cfg := setup{kind: kind, backends: addrs(b)}
		n := start(t, cfg)
		stop := make(chan struct{})
		changed := make(chan int, 1)
		go func() {
			count := 0
			for {
				select {
				case <-stop:
					changed <- count
					return
				default:
					n.serve(cfg)
					count++
					time.Sleep(100 * time.Microsecond)
				}
			}
		}()
		c := n.dial()
		for range 500 {
			c.say(get("/"))
			c.expect("GET", 200, "hi")
		}
		close(stop)
		if count := <-changed; count < 10 || b.Accepted() != 1 {
			t.Errorf("%d changes, %d connections", count, b.Accepted())
		}
	})
}
