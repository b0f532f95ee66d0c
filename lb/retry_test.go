package lb

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lbd/lb/lbtest"
)

// retrying is a setup whose one route has these rules.
func retrying(kind string, retry Retry, timeouts RouteTimeouts, backends ...*lbtest.Backend) setup {
	return setup{kind: kind, backends: addrs(backends...), routes: []RouteConfig{
		{Name: "all", Listeners: []string{"main"}, Forward: &Forward{Pools: []WeightedPool{{Pool: "p", Weight: 1}}, Retry: retry, Timeouts: timeouts}},
	}}
}

const status503 = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 5\r\n\r\nnever"

// readAndReset reads each connection's first request and breaks it.
func readAndReset(c *lbtest.Conn) { c.ReadRequest(); c.Reset() }

// TestRetryCauses: what a try ends with leads to another backend only where the route names it.
func TestRetryCauses(t *testing.T) {
	causes := []struct {
		name    string
		on      RetryOn
		script  lbtest.Script
		status  int // without a retry
		reason  Reason
		failure int64 // counts as the backend's failure
	}{
		{"reset", OnReset, readAndReset, 502, BackendAborted, 1},
		{"silence", OnFirstByteTimeout, silent, 504, BackendTimeout, 1},
		{"status", OnStatus5xx, lbtest.Answer(status503), 503, OK, 0},
	}
	onEngines(t, func(t *testing.T, kind string) {
		for _, tc := range causes {
			t.Run(tc.name, func(t *testing.T) {
				good, bad := lbtest.New(t, lbtest.OK("good")), lbtest.New(t, tc.script)
				timeouts := RouteTimeouts{FirstByte: short}
				all := OnConnectFailure | OnReset | OnFirstByteTimeout | OnStatus5xx
				for _, asked := range []bool{true, false} {
					retry := Retry{On: all &^ tc.on}
					if asked {
						retry.On = tc.on
					}
					n := start(t, retrying(kind, retry, timeouts, good, bad))
					c := n.dial()
					seen := map[int]int{}
					for range 4 {
						c.say(get("/"))
						resp, _ := c.answer("GET")
						seen[resp.StatusCode]++
						r := n.record()
						if r.Status != 200 && (r.Status != tc.status || r.Reason != tc.reason || r.Tries != 1) {
							t.Errorf("asked %v: record %d %s, tries %d", asked, r.Status, r.Reason, r.Tries)
						}
					}
					want := map[int]int{200: 4}
					if !asked {
						want = map[int]int{200: 2, tc.status: 2}
					}
					if fmt.Sprint(seen) != fmt.Sprint(want) {
						t.Errorf("asked %v: answers %v, want %v", asked, seen, want)
					}
					eventually(t, "failures counted", func() bool { return n.backend(1).Failures == 2*tc.failure })
					if got := n.Stats().Retries; (got == 2) != asked {
						t.Errorf("asked %v: %d retries", asked, got)
					}
				}
			})
		}
	})
}

// TestRetryStatusLast: without another try to be had, the answer that was not wanted is the client's, whole.
func TestRetryStatusLast(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		a, b := lbtest.New(t, lbtest.Answer(status503)), lbtest.New(t, lbtest.Answer(status503))
		n := start(t, retrying(kind, Retry{On: OnStatus5xx, Attempts: 3}, RouteTimeouts{}, a, b))
		c := n.dial()
		c.say(get("/"))
		c.expect("GET", 503, "never")
		if r := n.want(503, OK); r.Tries != 4 {
			t.Errorf("%d tries, want 4", r.Tries)
		}
		if asked := len(a.Requests()) + len(b.Requests()); asked != 4 || len(a.Requests()) == 0 || len(b.Requests()) == 0 {
			t.Errorf("%d requests at both, %d at the first", asked, len(a.Requests()))
		}
		// The client has seen an interim answer: it gets the rest of the same.
		hinting := lbtest.New(t, lbtest.Answer("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"+status503))
		n = start(t, retrying(kind, Retry{On: OnStatus5xx}, RouteTimeouts{}, hinting))
		c = n.dial()
		c.say(get("/"))
		c.expect("GET", 103, "")
		c.expect("GET", 503, "never")
		if r := n.want(503, OK); r.Tries != 1 {
			t.Errorf("%d tries after an interim answer", r.Tries)
		}
	})
}

func TestRetryAttempts(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		for attempts, tries := range map[int]int{-1: 1, 0: 2, 1: 2, 5: 6, 9: 6} {
			b := lbtest.New(t, readAndReset)
			n := start(t, retrying(kind, Retry{Attempts: attempts}, RouteTimeouts{}, b))
			c := n.dial()
			c.say(get("/"))
			c.expectStatus(502)
			if r := n.want(502, BackendAborted); r.Tries != tries || len(b.Requests()) != tries {
				t.Errorf("attempts %d: %d tries, %d requests, want %d", attempts, r.Tries, len(b.Requests()), tries)
			}
		}
	})
}

// TestRetryBudgetOfRoute: with the budget used up by requests that wait in their second try, the next one is not retried.
func TestRetryBudgetOfRoute(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		var seen sync.Map
		waiting, release := make(chan struct{}), make(chan struct{})
		b := lbtest.New(t, func(c *lbtest.Conn) {
			head, _ := c.ReadHead()
			path := strings.Fields(head)[1]
			if _, again := seen.LoadOrStore(path, true); again && path != "/" {
				waiting <- struct{}{}
				<-release
				c.Say(ok2)
				return
			}
			c.Reset()
		})
		n := start(t, retrying(kind, Retry{}, RouteTimeouts{}, b))
		var held []*client
		for i := range retryBudgetMin { // each first try fails
			c := n.dial()
			c.say(get(fmt.Sprintf("/hold/%d", i)))
			held = append(held, c)
		}
		for range retryBudgetMin {
			<-waiting
		}
		c := n.dial()
		c.say(get("/"))
		c.expectStatus(502)
		if r := n.want(502, BackendAborted); r.Tries != 1 {
			t.Errorf("%d tries without budget", r.Tries)
		}
		close(release)
		for _, c := range held {
			c.expect("GET", 200, "hi")
			if r := n.want(200, OK); r.Tries != 2 {
				t.Errorf("%d tries", r.Tries)
			}
		}
		c.say(get("/"))
		c.expectStatus(502)
		if r := n.want(502, BackendAborted); r.Tries != 2 {
			t.Errorf("%d tries with the budget given back", r.Tries)
		}
	})
}

// TestTryTimeout: a slow try ends early enough for another one.
func TestTryTimeout(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		bad, good := lbtest.New(t, silent), lbtest.New(t, lbtest.OK("good"))
		n := start(t, retrying(kind, Retry{On: OnFirstByteTimeout}, RouteTimeouts{Try: short}, bad, good))
		c := n.dial()
		slow := 0
		for range 4 {
			c.say(get("/"))
			c.expect("GET", 200, "good")
			if r := n.want(200, OK); r.Tries == 2 {
				slow++
			}
		}
		if slow != 2 {
			t.Errorf("%d of 4 requests went to the silent backend first", slow)
		}
	})
}

// TestReplayBody: a body that comes in a packet of its own is sent again as long as it fits the first buffer.
func TestReplayBody(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		for _, tc := range []struct {
			name   string
			bytes  int
			status int
		}{{"fits", 9000, 200}, {"beyond", 40_000, 502}} {
			t.Run(tc.name, func(t *testing.T) {
				head := make(chan struct{}, 1)
				var broken atomic.Bool
				b := lbtest.New(t, func(c *lbtest.Conn) {
					h, _ := c.ReadHead()
					if !broken.Swap(true) {
						head <- struct{}{}
						c.ReadBody(h)
						c.Reset()
						return
					}
					r, _ := c.ReadBody(h)
					c.Say(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(r.Body), r.Body))
				})
				n := start(t, retrying(kind, Retry{}, RouteTimeouts{}, b))
				c := n.dial()
				body := strings.Repeat("0123456789", tc.bytes/10)
				c.say(fmt.Sprintf("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", tc.bytes))
				<-head
				c.say(body)
				resp, got := c.answer("PUT")
				if resp.StatusCode != tc.status || tc.status == 200 && got != body {
					t.Errorf("%d with %d bytes", resp.StatusCode, len(got))
				}
				n.record()
			})
		}
	})
}

// TestReplayUnfinished: the connection breaks while the client has more to send: the next backend gets all of it.
func TestReplayUnfinished(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		second := make(chan struct{})
		b := lbtest.New(t, func(c *lbtest.Conn) {
			h, _ := c.ReadHead()
			if c.Index() == 0 {
				io.ReadFull(c, make([]byte, 3))
				c.Reset()
				return
			}
			close(second)
			r, _ := c.ReadBody(h)
			c.Say("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n" + r.Body)
		})
		n := start(t, retrying(kind, Retry{}, RouteTimeouts{}, b))
		c := n.dial()
		c.say("PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
		<-second
		c.say("3\r\ndef\r\n0\r\n\r\n")
		c.expect("PUT", 200, "abcdef")
		if r := n.want(200, OK); r.Tries != 2 {
			t.Errorf("%d tries", r.Tries)
		}
	})
}

// --- A36: the backend closes an idle connection as a request is sent on it.

// dyingIdle answers one request on each connection, and closes it when the next one has come.
func dyingIdle(c *lbtest.Conn) {
	c.ReadRequest()
	c.Say(ok2)
	c.ReadHead()
}

func TestA36IdempotentOnceMore(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		a, b := lbtest.New(t, dyingIdle), lbtest.New(t, dyingIdle)
		// Not even a route without retries loses it: nobody but the client's own backend is asked again.
		n := start(t, retrying(kind, Retry{Attempts: -1}, RouteTimeouts{}, a, b))
		c := n.dial()
		for range 6 {
			c.say(get("/"))
			c.expect("GET", 200, "hi")
			if r := n.want(200, OK); r.Tries != 1 {
				t.Errorf("%d tries", r.Tries)
			}
		}
		if got := n.Stats().Retries; got != 0 {
			t.Errorf("%d retries", got)
		}
		if na, nb := len(a.Requests()), len(b.Requests()); na != 3 || nb != 3 {
			t.Errorf("%d and %d answered: one went elsewhere", na, nb)
		}
	})
}

// TestA36SiblingPostWithoutAByte: a POST whose connection is found dead before a byte was sent goes out on a fresh one.
func TestA36SiblingPostWithoutAByte(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		b := lbtest.New(t, func(c *lbtest.Conn) { c.ReadRequest(); c.Say(ok2) })
		n := start(t, retrying(kind, Retry{Attempts: -1}, RouteTimeouts{}, b))
		c := n.dial()
		for range 20 {
			c.say(post("/", "x"))
			c.expect("POST", 200, "hi")
			n.want(200, OK)
			eventually(t, "the dead connection is noticed", func() bool { return n.backend(0).Idle == 0 })
		}
		if got := len(b.Requests()); got != 20 {
			t.Errorf("%d requests, want 20", got)
		}
	})
}

// TestA36SiblingShortIdle: backends whose idle time is far below ours, many clients, all of it GET: no error.
func TestA36SiblingShortIdle(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		b := lbtest.New(t, func(c *lbtest.Conn) {
			for idle := patience; ; idle = 2 * time.Millisecond {
				c.SetReadDeadline(time.Now().Add(idle))
				if _, err := c.Read(make([]byte, 1<<12)); err != nil {
					return // often just as a request is on its way
				}
				c.Say(ok2)
			}
		})
		n := start(t, retrying(kind, Retry{Attempts: -1}, RouteTimeouts{}, b))
		failures := make(chan string, 1000)
		done := make(chan struct{})
		for i := range 8 {
			go func() {
				defer func() { done <- struct{}{} }()
				client := &http.Client{Transport: &http.Transport{DisableKeepAlives: i%2 == 0}, Timeout: patience}
				defer client.CloseIdleConnections()
				for j := range 250 {
					resp, err := client.Get("http://" + n.addr() + "/")
					if err != nil {
						failures <- err.Error()
						continue
					}
					body, _ := io.ReadAll(resp.Body)
					resp.Body.Close()
					if string(body) != "hi" {
						failures <- fmt.Sprintf("%d %q", resp.StatusCode, body)
					}
					time.Sleep(time.Duration(j%5) * time.Millisecond)
				}
			}()
		}
		for range 8 {
			<-done
		}
		close(failures)
		for f := range failures {
			t.Error(f)
		}
		if n.backend(0).Reused == 0 {
			t.Error("no connection was ever used again: nothing was tested")
		}
	})
}

// --- A37: what may do harm is not done twice.

// booking counts the requests that it has read whole and then dies without an answer.
func booking(t *testing.T) *lbtest.Backend { return lbtest.New(t, readAndReset) }

func TestA37PostNotTwice(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		for _, method := range []string{"POST", "PATCH", "LOCK"} {
			a, b := booking(t), booking(t)
			n := start(t, retrying(kind, Retry{Attempts: 5, On: OnConnectFailure | OnReset | OnFirstByteTimeout | OnStatus5xx}, RouteTimeouts{}, a, b))
			c := n.dial()
			c.say(strings.Replace(post("/book", "seat 1"), "POST", method, 1))
			c.expectStatus(502)
			n.want(502, BackendAborted)
			if got := len(a.Requests()) + len(b.Requests()); got != 1 {
				t.Errorf("%s was sent %d times", method, got)
			}
		}
	})
}

// TestA37SiblingSilenceAndStatus: neither time-outs nor statuses lead a POST to another backend.
func TestA37SiblingSilenceAndStatus(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		for name, tc := range map[string]struct {
			script lbtest.Script
			status int
		}{"silence": {silent, 504}, "status": {lbtest.Answer(status503), 503}} {
			a, b := lbtest.New(t, tc.script), lbtest.New(t, tc.script)
			n := start(t, retrying(kind, Retry{Attempts: 5, On: OnFirstByteTimeout | OnStatus5xx}, RouteTimeouts{FirstByte: short}, a, b))
			c := n.dial()
			c.say(post("/book", "seat 1"))
			c.expectStatus(tc.status)
			n.record()
			if got := len(a.Requests()) + len(b.Requests()); got != 1 {
				t.Errorf("%s: sent %d times", name, got)
			}
		}
	})
}

// TestA37SiblingUnlessTheRouteSaysSo: with non_idempotent the same requests are repeated, body and all.
func TestA37SiblingUnlessTheRouteSaysSo(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		good := lbtest.New(t, lbtest.Echo)
		for name, script := range map[string]lbtest.Script{"reset": readAndReset, "silence": silent, "status": lbtest.Answer(status503)} {
			bad := lbtest.New(t, script)
			retry := Retry{NonIdempotent: true, On: OnReset | OnFirstByteTimeout | OnStatus5xx}
			n := start(t, retrying(kind, retry, RouteTimeouts{FirstByte: short}, bad, good))
			c := n.dial()
			for range 2 {
				c.say(post("/book", "seat 1"))
				c.expect("POST", 200, "seat 1")
			}
			if got := len(bad.Requests()); got != 1 {
				t.Errorf("%s: the bad backend saw %d", name, got)
			}
		}
	})
}

// TestRetryBudgetCountsAll: who asks for a retry is one of the requests in flight of which the budget is a share, though its try is
// over.
func TestRetryBudgetCountsAll(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		const all = 5
		var group sync.WaitGroup
		group.Add(all)
		var seen atomic.Int32
		b := lbtest.New(t, func(c *lbtest.Conn) {
			if _, err := c.ReadRequest(); err != nil {
				return
			}
			if seen.Add(1) <= all {
				group.Done()
				group.Wait() // they fail together
				c.Reset()
				return
			}
			for end := time.Now().Add(patience); seen.Load() < 2*all && time.Now().Before(end); {
				time.Sleep(time.Millisecond)
			}
			c.Say(ok2)
		})
		n := start(t, retrying(kind, Retry{BudgetPercent: 100}, RouteTimeouts{}, b))
		var clients []*client
		for i := range all {
			c := n.dial()
			c.say(get(fmt.Sprint("/", i)))
			clients = append(clients, c)
		}
		for _, c := range clients {
			c.expect("GET", 200, "hi")
		}
	})
}

// TestRetryStatusDecided: an answer that was given up for another try gets it, whatever happens meanwhile.
func TestRetryStatusDecided(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		bad := lbtest.New(t, lbtest.Answer("HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n"))
		var n *node
		cfg := retrying(kind, Retry{On: OnStatus5xx}, RouteTimeouts{}, bad, lbtest.New(t, lbtest.OK("hi")))
		cfg.pool.Ejection = &Ejection{ConsecutiveErrors: 1, BaseTime: time.Minute, MaxPercent: 50}
		cfg.events = func(Event) { n.advance(ending) }
		n = start(t, cfg)
		for len(bad.Requests()) == 0 {
			c := n.dial()
			c.say(get("/"))
			c.expect("GET", 200, "hi")
		}
	})
}
