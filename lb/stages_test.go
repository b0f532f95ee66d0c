package lb

import (
	"context"
	"net"
	"testing"
	"time"

	"lbd/lb/lbtest"
	"lbd/lb/loop"
)

// TestStages: readiness goes first, then each answer is its connection's last, and all of it can be taken back until the end.
func TestStages(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		b := lbtest.New(t, lbtest.OK("hi"))
		n := start(t, setup{kind: kind, backends: addrs(b), listener: ListenerConfig{HealthPath: "/ready"}})
		idle := n.dial()
		idle.say(get("/"))
		idle.expect("GET", 200, "hi")
		n.BeginDrain()
		c := n.dial()
		c.say(get("/ready"))
		if resp := c.expect("GET", 503, "draining\n"); resp.Close {
			t.Error("who asks for readiness is sent away")
		}
		c.say(get("/"))
		if resp := c.expect("GET", 200, "hi"); resp.Close {
			t.Error("traffic is not taken as before")
		}
		n.CloseGently()
		for _, kept := range []*client{idle, c, n.dial()} {
			kept.say(get("/"))
			if resp := kept.expect("GET", 200, "hi"); !resp.Close {
				t.Error("an answer is not its connection's last")
			}
			kept.expectEnd()
		}
		n.Undrain()
		c = n.dial()
		c.say(get("/ready"))
		if resp := c.expect("GET", 200, "ready\n"); resp.Close {
			t.Error("a server that is back says that it goes")
		}
		eventually(t, "one idle connection is left", func() bool { return n.Left() == Left{Connections: 1, Idle: 1} })
	})
}

// TestSucceed: who asks for readiness in the process before hears of the node, which goes on in another one; of one that was drained it hears that.
func TestSucceed(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		for _, drained := range []bool{false, true} {
			b := lbtest.New(t, lbtest.OK("hi"))
			n := start(t, setup{kind: kind, backends: addrs(b), listener: ListenerConfig{HealthPath: "/ready"}})
			c := n.dial()
			c.say(get("/"))
			c.expect("GET", 200, "hi")
			status, body := 200, "ready\n"
			if drained {
				n.BeginDrain()
				status, body = 503, "draining\n"
			}
			n.Succeed()
			n.StopAccepting()
			c.say(get("/ready"))
			if resp := c.expect("GET", status, body); !resp.Close {
				t.Error("the process before keeps a connection")
			}
			c.expectEnd()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			if err := n.Settled(ctx); err != nil {
				t.Error(err)
			}
			cancel()
			if err := n.Listen(ListenerConfig{Name: "late", Addresses: []string{"127.0.0.1:0"}}); err == nil {
				t.Error("it listens again")
			}
		}
	})
}

// TestHandOver: two servers accept on the same sockets; who connects is served by one of them, whenever the first one stops.
func TestHandOver(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		b := lbtest.New(t, lbtest.OK("hi"))
		first := start(t, setup{kind: kind, loops: 2, backends: addrs(b)})
		bound, err := first.Bound()
		if err != nil || len(bound) != 1 {
			t.Fatal(bound, err)
		}
		second := start(t, setup{kind: kind, loops: 1, backends: addrs(b)})
		second.options.Inherit = func(string, string) []*loop.Descriptor { return bound[0].Descriptors }
		second.held = true
		if err := second.Listen(ListenerConfig{Name: "taken", Addresses: []string{bound[0].Address}}); err != nil {
			t.Fatal(err)
		}
		if err := bound[0].Close(); err != nil {
			t.Fatal(err)
		}
		address := first.addr()
		for i := range 200 {
			switch i {
			case 50:
				second.BeginAccepting()
			case 100:
				first.StopAccepting()
			}
			conn, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatal(i, err)
			}
			c := newClient(t, conn)
			c.say("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
			resp, _, err := c.tryAnswer("GET")
			if err != nil {
				t.Fatal(i, err)
			}
			if late := resp.StatusCode != 200; late && i < 50 || !late && i >= 100 { // the second one has no route there
				t.Errorf("connection %d is answered with %d", i, resp.StatusCode)
			}
		}
	})
}
