package lb

import (
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"lbd/lb/lbtest"
	"lbd/lb/loop"
)

// oneOfEach opens a connection in each state on a node whose backend answers nothing but upgrades.
func oneOfEach(t *testing.T, n *node) map[string]net.Conn {
	shaking, err := net.Dial("tcp", n.addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shaking.Close() })
	idle := n.dialTLS(tls.VersionTLS12)
	idle.say("GET /own HTTP/1.1\r\nHost: a.test\r\n\r\n")
	idle.expect("GET", 200, "own")
	request := n.dialTLS(tls.VersionTLS13)
	request.say(get("/"))
	tunnel := n.dialTLS(tls.VersionTLS13)
	tunnel.say(upgrade)
	if resp, err := http.ReadResponse(tunnel.r, nil); err != nil || resp.StatusCode != 101 {
		t.Fatalf("%v %v", resp, err)
	}
	return map[string]net.Conn{"handshake": shaking, "idle": idle.Conn, "request": request.Conn, "tunnel": tunnel.Conn}
}

func states(kind string, t *testing.T) *node {
	b := lbtest.New(t, func(c *lbtest.Conn) {
		if head, _ := c.ReadHead(); strings.Contains(head, "pgrade") {
			c.Say(switched)
		}
		c.ReadHead() // nothing comes
	})
	return start(t, setup{kind: kind, loops: 4, backends: addrs(b), tls: testTerminator(t), routes: []RouteConfig{
		{Name: "own", Listeners: []string{"main"}, Matches: []Match{{Exact: "/own"}}, Respond: &Respond{Status: 200, Body: "own"}},
		{Name: "all", Listeners: []string{"main"}, Forward: &Forward{Pools: []WeightedPool{{Pool: "p", Weight: 1}}}},
	}})
}

// TestConnections: every state is seen, with what belongs to it, oldest first; filters and limits choose.
func TestConnections(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		n := states(kind, t)
		before := time.Now()
		conns := oneOfEach(t, n)
		var all []ConnectionInfo
		eventually(t, "one of each", func() bool {
			all = n.Connections(ConnectionFilter{})
			seen := map[string]int{}
			for _, c := range all {
				seen[c.State]++
			}
			return len(all) == 4 && len(seen) == 4 && len(n.Connections(ConnectionFilter{Pool: "p"})) == 2
		})
		for i, c := range all {
			if i > 0 && c.ID <= all[i-1].ID {
				t.Errorf("order: %d after %d", c.ID, all[i-1].ID)
			}
			if c.Client.String() != conns[c.State].LocalAddr().String() || c.Listener != "main" || c.Since.Before(before.Add(-time.Second)) {
				t.Errorf("%+v", c)
			}
			withBackend := c.State == "request" || c.State == "tunnel"
			if withBackend != (c.Pool == "p" && c.Route == "all" && c.Backend == n.backend(0).Name) || (c.Requests == 0) != (c.State == "handshake") {
				t.Errorf("%+v", c)
			}
			version := map[string]string{"handshake": "", "idle": "1.2", "request": "1.3", "tunnel": "1.3"}[c.State]
			if c.TLSVersion != version || (c.ServerName == "a.test") != (version != "") {
				t.Errorf("%+v", c)
			}
		}
		for _, tc := range []struct {
			filter ConnectionFilter
			want   int
		}{
			{ConnectionFilter{Listener: "main"}, 4},
			{ConnectionFilter{Listener: "other"}, 0},
			{ConnectionFilter{Client: netip.MustParsePrefix("127.0.0.0/8")}, 4},
			{ConnectionFilter{Client: netip.MustParsePrefix("10.0.0.0/8")}, 0},
			{ConnectionFilter{Pool: "p", Listener: "main"}, 2},
			{ConnectionFilter{Pool: "other"}, 0},
			{ConnectionFilter{IDs: []int64{all[1].ID, all[2].ID, 1 << 40}}, 2},
			{ConnectionFilter{Limit: 3}, 3},
		} {
			if got := n.Connections(tc.filter); len(got) != tc.want {
				t.Errorf("%+v: %d, want %d", tc.filter, len(got), tc.want)
			}
		}
		if got := n.Connections(ConnectionFilter{Limit: 1}); got[0].ID != all[0].ID {
			t.Errorf("%d is not the oldest", got[0].ID)
		}
	})
}

// TestKillConnections: whatever a connection does, it ends at once; others live.
func TestKillConnections(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		n := states(kind, t)
		conns := oneOfEach(t, n)
		n.want(200, OK)
		eventually(t, "one of each", func() bool {
			return len(n.Connections(ConnectionFilter{Pool: "p"})) == 2 && len(n.Connections(ConnectionFilter{})) == 4
		})
		left := len(conns)
		for _, state := range []string{"handshake", "idle", "request", "tunnel"} {
			id := int64(0)
			for _, c := range n.Connections(ConnectionFilter{}) {
				if c.State == state {
					id = c.ID
				}
			}
			if killed := n.KillConnections(ConnectionFilter{IDs: []int64{id}}); killed != 1 {
				t.Fatalf("%s: %d killed", state, killed)
			}
			c := conns[state]
			c.SetReadDeadline(time.Now().Add(patience))
			if _, err := c.Read(make([]byte, 1)); err == nil || isTimeout(err) {
				t.Errorf("%s: the client does not know: %v", state, err)
			}
			left--
			eventually(t, state+" is gone", func() bool {
				return len(n.Connections(ConnectionFilter{})) == left && n.Stats().Connections == int64(left)
			})
			if state == "idle" {
				continue
			}
			if r := n.record(); r.Reason != Drained || r.Detail != "killed" {
				t.Errorf("%s: ended %s, %q", state, r.Reason, r.Detail)
			}
		}
	})
}

// TestKillQueued: who waits for a backend's connection ends, too, and leaves its place.
func TestKillQueued(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		script, came, answer := held()
		n := start(t, setup{kind: kind, loops: 2, backends: addrs(lbtest.New(t, script)), pool: PoolConfig{
			MaxPerBackend: 1, Queue: &Queue{Length: 1, Timeout: patience},
		}})
		first, second := n.dial(), n.dial()
		first.say(get("/"))
		<-came
		second.say(get("/"))
		n.queued(1)
		all := n.Connections(ConnectionFilter{Pool: "p"})
		waits := slices.IndexFunc(all, func(c ConnectionInfo) bool { return c.Client.String() == second.LocalAddr().String() })
		if len(all) != 2 || waits < 0 || n.KillConnections(ConnectionFilter{IDs: []int64{all[waits].ID}}) != 1 {
			t.Fatalf("%+v", all)
		}
		n.want(0, Drained)
		n.queued(0)
		answer <- struct{}{}
		first.expect("GET", 200, "hi")
	})
}

// TestManyConnections: a look at more than are looked at in one go finds each once, while others come and go.
func TestManyConnections(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		n := start(t, setup{kind: kind, unlogged: true})
		list := &clientList{}
		list.init()
		const many = 3*visitPause + 7
		conns := make([]clientConn, many)
		for i := range conns {
			conns[i].link.client = &conns[i]
			list.add(&conns[i].link)
		}
		visited, twice := make(chan int), map[*clientConn]bool{}
		n.engine.Go(func(task *loop.Task) {
			seen := 0
			list.visit(task, func(cc *clientConn) bool {
				if seen++; twice[cc] {
					t.Error("one twice")
				}
				twice[cc] = true
				if seen == visitPause { // while it pauses, its place is between two that go
					task.Spawn(func(*loop.Task) { conns[visitPause-1].link.remove(); conns[visitPause].link.remove() })
				}
				return true
			})
			visited <- seen
		})
		// On goroutines the two may go only after the visit has come by.
		late := 0
		if kind != "epoll" {
			late = 1
		}
		if seen := <-visited; seen < many-1 || seen > many-1+late {
			t.Errorf("%d of %d seen", seen, many-1)
		}
	})
}

// TestDeferredAccept: a listener takes the option, at once and later, and serves as before.
func TestDeferredAccept(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		cfg := ListenerConfig{Name: "main", Addresses: []string{"127.0.0.1:0"}, DeferAccept: true}
		n := start(t, setup{kind: kind, backends: addrs(lbtest.New(t, lbtest.OK("hi"))), listener: cfg})
		silent := n.dial()
		c := n.dial()
		c.say(get("/"))
		c.expect("GET", 200, "hi")
		if accepted, seen := n.Stats().Listeners[0].Accepted, int64(1); kind == "epoll" && accepted != seen {
			t.Errorf("%d accepted, %d have spoken", accepted, seen)
		}
		silent.say(get("/"))
		silent.expect("GET", 200, "hi")
		cfg.DeferAccept = false
		if err := n.Listen(cfg); err != nil {
			t.Fatal(err)
		}
		n.dial()
		eventually(t, "a silent one is seen", func() bool { return n.Stats().Listeners[0].Accepted == 3 })
	})
}
