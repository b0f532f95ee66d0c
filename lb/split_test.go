package lb

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"lbd/lb/lbtest"
)

// servePools replaces the node's table: pools by name, each with one backend.
func (n *node) servePools(routes []RouteConfig, pools map[string]*lbtest.Backend) {
	n.t.Helper()
	var all []*Pool
	for name, b := range pools {
		address := b.Addr().String()
		all = append(all, n.NewPool(PoolConfig{Name: name, Backends: []BackendConfig{{Key: address, Name: address, Address: b.Addr(), Weight: 1}}}))
	}
	table, err := NewTable(routes, all)
	if err != nil {
		n.t.Fatal(err)
	}
	n.SetTable(table)
}

// splitting is one route to pools "blue" and "green", with these weights.
func splitting(blue, green int, persistence *SplitPersistence) []RouteConfig {
	return onMain(RouteConfig{Forward: &Forward{
		Pools: []WeightedPool{{Pool: "blue", Weight: blue}, {Pool: "green", Weight: green}}, Persistence: persistence,
	}})
}

func colours(t *testing.T) map[string]*lbtest.Backend {
	return map[string]*lbtest.Backend{"blue": lbtest.New(t, lbtest.OK("blue")), "green": lbtest.New(t, lbtest.OK("green"))}
}

// TestSplitShares: each pool gets exactly its share, and is counted by its name.
func TestSplitShares(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		n := start(t, setup{kind: kind})
		n.servePools(splitting(9, 1, nil), colours(t))
		c := n.dial()
		got := map[string]int{}
		for range 50 {
			c.say(get("/"))
			resp, body := c.answer("GET")
			if len(resp.Cookies()) > 0 {
				t.Errorf("cookies %v", resp.Cookies())
			}
			got[body]++
			if r := n.want(200, OK); r.Pool != body {
				t.Errorf("%s answered, pool %s in the log", body, r.Pool)
			}
		}
		if got["blue"] != 45 || got["green"] != 5 {
			t.Errorf("%v", got)
		}
		counted := map[string]int64{}
		for _, l := range n.traffic("all").Lines {
			counted[l.Pool] += l.Requests[2]
		}
		if counted["blue"] != 45 || counted["green"] != 5 {
			t.Errorf("counted %v", counted)
		}
	})
}

// TestSplitTraffic: pools that share a backend have lines of their own, and a pool that leaves the route takes only its own along.
func TestSplitTraffic(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		n := start(t, setup{kind: kind})
		shared := lbtest.New(t, lbtest.OK("hi"))
		pools := map[string]*lbtest.Backend{"blue": shared, "green": shared}
		n.servePools(splitting(1, 1, nil), pools)
		c := n.dial()
		for range 4 {
			c.say(get("/"))
			c.expect("GET", 200, "hi")
			n.record()
		}
		name := shared.Addr().String()
		two := [6]int64{2: 2}
		lines := n.traffic("all").Lines
		if len(lines) != 2 || lines[0].Requests != two || lines[1].Requests != two || lines[0].Pool == lines[1].Pool || lines[0].Backend != name {
			t.Fatalf("%v", lines)
		}
		n.servePools(onMain(RouteConfig{Forward: toPool("green")}), pools)
		if lines = n.traffic("all").Lines; len(lines) != 1 || lines[0] != (TrafficLine{"green", name, two}) {
			t.Errorf("%v", lines)
		}
	})
}

// stay asks n times with a cookie and says who answered, if it was always the same, and which cookies were set.
func (c *client) stay(n int, cookie string) (who string, set []*http.Cookie) {
	c.t.Helper()
	for i := range n {
		c.say("GET / HTTP/1.1\r\nHost: a.test\r\nCookie: x=1; " + cookie + "; y=2\r\n\r\n")
		resp, body := c.answer("GET")
		if i > 0 && who != body {
			c.t.Fatalf("%s after %s", body, who)
		}
		who = body
		set = append(set, resp.Cookies()...)
	}
	return who, set
}

func TestSplitPersistence(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		n := start(t, setup{kind: kind})
		pools := colours(t)
		n.servePools(splitting(1, 1, &SplitPersistence{Cookie: "split"}), pools)
		c := n.dial()
		cookies := map[string]string{}
		for range 4 {
			c.say(get("/"))
			resp, body := c.answer("GET")
			set := resp.Cookies()
			if len(set) != 1 || set[0].Name != "split" || set[0].Path != "/" || !set[0].HttpOnly || set[0].Secure || set[0].SameSite != http.SameSiteLaxMode || set[0].MaxAge != 0 {
				t.Fatalf("cookies %v", resp.Header["Set-Cookie"])
			}
			if strings.Contains(set[0].Value, body) || cookies[body] != "" && cookies[body] != set[0].Value {
				t.Errorf("%s for %s, %s before", set[0].Value, body, cookies[body])
			}
			cookies[body] = set[0].Value
		}
		if len(cookies) != 2 {
			t.Fatalf("%v", cookies)
		}
		for colour, value := range cookies {
			if who, set := c.stay(5, "split="+value); who != colour || len(set) > 0 {
				t.Errorf("a client of %s came to %s, and got %v", colour, who, set)
			}
		}
		// Weight 0 takes no new clients and keeps those that it has; whose pool is gone gets another.
		n.servePools(splitting(0, 1, &SplitPersistence{Cookie: "split"}), pools)
		if who, set := c.stay(3, "split="+cookies["blue"]); who != "blue" || len(set) > 0 {
			t.Errorf("%s, %v", who, set)
		}
		if who, _ := c.stay(3, "none=1"); who != "green" {
			t.Errorf("a new client came to %s", who)
		}
		n.servePools(onMain(RouteConfig{Forward: &Forward{Pools: []WeightedPool{{Pool: "green", Weight: 1}}, Persistence: &SplitPersistence{Cookie: "split"}}}), pools)
		who, set := c.stay(1, "split="+cookies["blue"])
		if who != "green" || len(set) != 1 || set[0].Value != cookies["green"] {
			t.Errorf("%s, %v", who, set)
		}
		for _, junk := range []string{"", "x", strings.Repeat("z", 16), cookies["green"][:15], cookies["green"] + "x"} {
			if who, _ := c.stay(1, "split="+junk); who != "green" {
				t.Errorf("%q: %s", junk, who)
			}
		}
	})
}

// TestSplitIdle: a binding ends without a request for its time, and its cookie is renewed now and then.
func TestSplitIdle(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		n := start(t, setup{kind: kind})
		n.servePools(splitting(1, 0, &SplitPersistence{Cookie: "split", IdleTimeout: time.Hour}), colours(t))
		c := n.dial()
		green := func(age time.Duration) string {
			return fmt.Sprintf("split=%016x.%08x", splitMark("green"), time.Now().Add(-age).Unix())
		}
		for _, tc := range []struct {
			age   time.Duration
			who   string
			fresh bool // needs no new cookie
		}{
			{0, "green", true}, {4 * time.Minute, "green", true}, {-time.Minute, "green", true}, {30 * time.Minute, "green", false},
			{61 * time.Minute, "blue", false}, {-2 * time.Hour, "blue", false},
		} {
			who, set := c.stay(1, green(tc.age))
			if who != tc.who || (len(set) == 0) != tc.fresh {
				t.Errorf("after %s: %s, %v", tc.age, who, set)
			}
			if len(set) == 1 && (set[0].MaxAge != 3600 || !strings.HasPrefix(set[0].Value, fmt.Sprintf("%016x.", splitMark(who)))) {
				t.Errorf("after %s: %v", tc.age, set[0])
			}
		}
		// One from before there was an idle time begins to age.
		if who, set := c.stay(1, fmt.Sprintf("split=%016x", splitMark("green"))); who != "green" || len(set) != 1 {
			t.Errorf("%s, %v", who, set)
		}
	})
}

// TestSplitIsADecision: a pool without a backend fails its share, and a retry stays in its pool.
func TestSplitIsADecision(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		n := start(t, setup{kind: kind})
		pools := colours(t)
		n.servePools(splitting(1, 1, nil), pools)
		n.setEligible(pools["blue"].Addr().String(), false)
		c := n.dial()
		got := map[int]int{}
		for range 6 {
			c.say(get("/"))
			resp, _ := c.answer("GET")
			got[resp.StatusCode]++
			if r := n.record(); r.Status == 503 && (r.Reason != NoBackend || r.Pool != "blue") {
				t.Errorf("%+v", r)
			}
		}
		if got[200] != 3 || got[503] != 3 {
			t.Errorf("%v", got)
		}
	})
	onEngines(t, func(t *testing.T, kind string) {
		n := start(t, setup{kind: kind})
		reset := lbtest.New(t, func(c *lbtest.Conn) { c.ReadRequest() })
		n.servePools(splitting(1, 1, nil), map[string]*lbtest.Backend{"blue": reset, "green": lbtest.New(t, lbtest.OK("green"))})
		got := map[int]int{}
		for range 4 {
			c := n.dial()
			c.say(get("/"))
			resp, _ := c.answer("GET")
			got[resp.StatusCode]++
			n.record()
		}
		if got[200] != 2 || got[502] != 2 {
			t.Errorf("%v", got)
		}
	})
}
