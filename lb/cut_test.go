package lb

import (
	"io"
	"testing"
	"time"

	"lbd/lb/lbtest"
)

// TestDrainEnds: what is open at a draining backend goes on until the drain's time is over, or ends at once if that is wanted;
// what is open elsewhere goes on in any case.
func TestDrainEnds(t *testing.T) {
	for name, drain := range map[string]func(*node, *clock, []BackendConfig){
		"by time": func(n *node, c *clock, backends []BackendConfig) {
			backends[0].State, backends[0].DrainSince = Drain, c.now()
			n.serve(setup{pool: PoolConfig{Backends: backends, DrainTimeout: time.Minute}})
			c.pass(n, 59*time.Second)
			c.pass(n, time.Second)
		},
		"at once": func(n *node, c *clock, backends []BackendConfig) {
			backends[0].State, backends[0].DrainSince, backends[0].CutOff = Drain, c.now(), true
			n.serve(setup{pool: PoolConfig{Backends: backends}})
		},
		"later than said at first": func(n *node, c *clock, backends []BackendConfig) {
			backends[0].State, backends[0].DrainSince = Drain, c.now()
			n.serve(setup{pool: PoolConfig{Backends: backends}})
			backends[0].CutOff = true
			n.serve(setup{pool: PoolConfig{Backends: backends}})
		},
		"maintenance at once": func(n *node, c *clock, backends []BackendConfig) {
			backends[0].State, backends[0].DrainSince, backends[0].CutOff = InMaintenance, c.now(), true
			n.serve(setup{pool: PoolConfig{Backends: backends}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onEngines(t, func(t *testing.T, kind string) { drainEnds(t, kind, drain) })
		})
	}
}

func drainEnds(t *testing.T, kind string, drain func(*node, *clock, []BackendConfig)) {
	leaving, staying := lbtest.New(t, open), lbtest.New(t, open)
	backends := configs(leaving, staying)
	clock := &clock{}
	n := start(t, setup{kind: kind, loops: 2, pool: PoolConfig{Backends: backends}, clock: clock, unlogged: true})
	// Two of each: by round robin one is at each backend.
	var tunnels, bodies, waiting []*client
	for range 2 {
		tunnels = append(tunnels, openTunnel(n))
	}
	for range 2 {
		c := n.dial()
		c.say(get("/body"))
		c.expectText("HTTP/1.1 200 OK\r\n")
		bodies = append(bodies, c)
	}
	for range 2 {
		c := n.dial()
		c.say(get("/wait"))
		waiting = append(waiting, c)
	}
	eventually(t, "all requests", func() bool { return len(leaving.Requests()) == 3 && len(staying.Requests()) == 3 })
	drain(n, clock, backends)

	eventually(t, "the drained backend is empty", func() bool { return n.backend(0).InFlight == 0 })
	// The request without an answer went elsewhere.
	eventually(t, "the retry", func() bool { return len(staying.Requests()) == 4 })
	if in := n.backend(1).InFlight; in != 4 {
		t.Errorf("%d in flight at the other, want 4", in)
	}
	if b := n.backend(0); b.Failures != 0 {
		t.Errorf("%d failures are counted against the drained one", b.Failures)
	}
	eventually(t, "one of two tunnels has ended", func() bool { return ends(tunnels) == 1 })
	eventually(t, "one of two bodies has ended", func() bool { return ends(bodies) == 1 })
	if ended := ends(waiting); ended != 0 {
		t.Errorf("%d of 2 waiting requests ended", ended)
	}
}

// open begins a tunnel, an answer or nothing, and leaves it so.
func open(c *lbtest.Conn) {
	r, err := c.ReadRequest()
	if err != nil {
		return
	}
	switch r.Line() {
	case "GET /chat HTTP/1.1":
		c.Say(switched + "up")
	case "GET /body HTTP/1.1":
		c.Say("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbegun")
	}
	io.Copy(io.Discard, c)
}

func openTunnel(n *node) *client {
	n.t.Helper()
	c := n.dial()
	c.say(upgrade)
	for {
		line, err := c.r.ReadString('\n')
		if err != nil {
			n.t.Fatal(err)
		}
		if line == "\r\n" {
			c.expectText("up")
			return c
		}
	}
}

// ends counts those whose connection has ended, of those that could have.
func ends(clients []*client) (ended int) {
	for _, c := range clients {
		c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		if _, err := io.Copy(io.Discard, c.r); !isTimeout(err) {
			ended++
		}
	}
	return ended
}

// TestDrainedAnswer: where there is nobody else, the client is told, and why it ended is written down.
func TestDrainedAnswer(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		b := lbtest.New(t, open)
		backends := configs(b)
		n := start(t, setup{kind: kind, pool: PoolConfig{Backends: backends}})
		c := n.dial()
		c.say(get("/wait"))
		eventually(t, "the request", func() bool { return len(b.Requests()) == 1 })
		backends[0].State, backends[0].CutOff, backends[0].DrainSince = Drain, true, time.Now()
		n.serve(setup{pool: PoolConfig{Backends: backends}})
		c.expectStatus(503)
		n.want(503, NoBackend)
	})
}
