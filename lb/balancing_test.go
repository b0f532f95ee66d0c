package lb

import (
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lbd/lb/lbtest"
)

// TestUnderLoad: with each algorithm, ejection and retries, one backend after another falls ill in each way and gets well again;
// no GET fails but those that were in its answer, and the ill one is left out.
func TestUnderLoad(t *testing.T) {
	for name, algorithm := range balances {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onEngines(t, func(t *testing.T, kind string) { underLoad(t, kind, algorithm) })
		})
	}
}

func underLoad(t *testing.T, kind string, algorithm Balance) {
	var illness [3]atomic.Pointer[func(*lbtest.Conn)]
	var backends []*lbtest.Backend
	for i := range illness {
		backends = append(backends, lbtest.New(t, func(c *lbtest.Conn) {
			for {
				if _, err := c.ReadRequest(); err != nil {
					return
				}
				if sick := illness[i].Load(); sick != nil {
					(*sick)(c)
					return
				}
				c.Say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
			}
		}))
	}
	var events journal
	clock := &clock{}
	n := start(t, setup{
		kind: kind, loops: 2, unlogged: true, clock: clock, events: events.add,
		pool: PoolConfig{Balance: algorithm, Backends: configs(backends...), HashOn: HashOn{Header: "x-client"}, Ejection: &Ejection{ConsecutiveErrors: 3, BaseTime: time.Minute, MaxPercent: 50}},
		routes: []RouteConfig{{Name: "all", Listeners: []string{"main"}, Forward: &Forward{
			Pools: []WeightedPool{{Pool: "p", Weight: 1}}, Timeouts: RouteTimeouts{FirstByte: time.Second},
			Retry: Retry{Attempts: 2, On: OnConnectFailure | OnReset | OnFirstByteTimeout | OnStatus5xx, BudgetPercent: 1000},
		}}},
	})
	l := load(n)
	round := 0
	for name, sick := range map[string]func(*lbtest.Conn){"reset": sicknesses["reset"], "500": sicknesses["500"], "silent": sicknesses["silent"], "truncated": sicknesses["truncated"]} {
		i := round % len(backends)
		round++
		failed := l.next()
		illness[i].Store(&sick)
		if algorithm != P2CEWMA {
			eventually(t, name+": the ejection", func() bool { return !n.poolBackend(i).EjectedUntil.IsZero() })
		} else { // it keeps away by itself, so there may be too few errors
			l.goesOn()
			before := len(backends[i].Requests())
			l.goesOn()
			if more := len(backends[i].Requests()) - before; more > 20 {
				t.Errorf("%s: %d of some 60 requests at the one that fails", name, more)
			}
		}
		l.goesOn()
		if now := failed.Load(); now != 0 && name != "truncated" {
			t.Errorf("%s: %d requests failed", name, now)
		}
		illness[i].Store(nil)
		eventually(t, name+": the last of its requests", func() bool { return n.poolBackend(i).InFlight == 0 })
		n.setEligible(backends[i].Addr().String(), false) // as a check would
		n.setEligible(backends[i].Addr().String(), true)
		clock.pass(n, 10*time.Minute)
		before := len(backends[i].Requests())
		l.goesOn()
		eventually(t, name+": requests at the one that is back", func() bool { return len(backends[i].Requests()) > before })
		if now := failed.Load(); now != 0 && name != "truncated" {
			t.Errorf("%s: %d requests failed, some after it was back", name, now)
		}
	}
	l.stop()
	if len(events.take()) == 0 && algorithm != P2CEWMA {
		t.Error("nobody was told")
	}
}

// pressure is clients that send one GET after the other.
type pressure struct {
	round   atomic.Int32
	failed  [16]atomic.Int64 // of those begun in each round
	done    atomic.Int64
	stopped atomic.Bool
	group   sync.WaitGroup
}

// next begins a round: what fails late is of the one before.
func (l *pressure) next() (failed *atomic.Int64) { return &l.failed[l.round.Add(1)] }

func load(n *node) *pressure {
	l := &pressure{}
	for range 6 {
		l.group.Go(func() { l.run(n) })
	}
	n.t.Cleanup(l.stop)
	return l
}

func (l *pressure) run(n *node) {
	client := &http.Client{Transport: &http.Transport{}, Timeout: patience}
	defer client.CloseIdleConnections()
	for !l.stopped.Load() {
		request, _ := http.NewRequest("GET", "http://"+n.addr(), nil)
		request.Header.Set("X-Client", time.Now().Format(time.RFC3339Nano))
		round := l.round.Load()
		if !succeeds(client, request) {
			l.failed[round].Add(1)
		}
		l.done.Add(1)
	}
}

func succeeds(client *http.Client, request *http.Request) bool {
	resp, err := client.Do(request)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	body := make([]byte, 3)
	k, _ := resp.Body.Read(body)
	return resp.StatusCode == 200 && string(body[:k]) == "ok"
}

// goesOn waits until some more requests have ended.
func (l *pressure) goesOn() {
	before := l.done.Load()
	for end := time.Now().Add(patience); l.done.Load() < before+60 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
}

func (l *pressure) stop() {
	l.stopped.Store(true)
	l.group.Wait()
}
