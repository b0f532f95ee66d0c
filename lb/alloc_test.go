package lb

import (
	"bytes"
	"io"
	"net"
	"net/netip"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"lbd/lb/lbtest"
)

// TestNoAllocation: on the best engine, once warm, a proxied keep-alive request allocates nothing anywhere in the process. Client and backend of
// the test allocate nothing either.
func TestNoAllocation(t *testing.T) {
	t.Run("unlogged", func(t *testing.T) { noAllocation(t, setup{}) })
	t.Run("logged", func(t *testing.T) { noAllocation(t, setup{log: func(*Record) {}}) })
	for name, algorithm := range balances {
		// Every answer sets a cookie: the most that a pool can ask for.
		pool := PoolConfig{
			Balance: algorithm, HashOn: HashOn{Cookie: "who"}, Ejection: &Ejection{ConsecutiveErrors: 5, BaseTime: time.Second, MaxPercent: 50},
			Persistence: &SessionPersistence{Cookie: "stay", IdleTimeout: time.Hour},
		}
		t.Run(name, func(t *testing.T) { noAllocation(t, setup{pool: pool}) })
	}
}

// TestNoAllocationOfRoutes: nor does one whose route uses all that a route can say, at a backend with a limit.
func TestNoAllocationOfRoutes(t *testing.T) {
	everything := RouteConfig{
		Matches: []Match{{
			Prefix: "/some", Methods: []string{"GET"}, Headers: []FieldMatch{{Name: "user-agent", Kind: FieldPrefix, Text: "te"}},
			Query: []FieldMatch{{Name: "with", Kind: FieldExact, Text: "query"}},
		}},
		Forward: &Forward{
			Pools: []WeightedPool{{"p", 1}}, Persistence: &SplitPersistence{Cookie: "split", IdleTimeout: time.Hour}, Rewrite: Rewrite{Host: "b.test", Prefix: "/other"},
		},
		RequestHeaders:  HeaderChanges{Remove: []string{"referer"}, Set: []Header{{"X-A", "b"}}},
		ResponseHeaders: HeaderChanges{Remove: []string{"content-type"}, Add: []Header{{"X-A", "b"}}},
		Addresses:       []*AddressRule{{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Closed: true}},
		Maintenance:     &Maintenance{Bypass: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}},
		Concurrency:     []*Concurrency{NewConcurrency("c", 10)},
		BodyBytesMax:    100,
	}
	pool := PoolConfig{MaxPerBackend: 2, Queue: &Queue{Length: 1, Timeout: time.Second}}
	listener := ListenerConfig{ResponseHeaders: HeaderChanges{Remove: []string{"server"}, Set: []Header{{"X-A", "a"}}}}
	noAllocation(t, setup{routes: onMain(everything), pool: pool, listener: listener})
}

func noAllocation(t *testing.T, cfg setup) {
	b := lbtest.New(t, fixedBackend)
	cfg.backends, cfg.unlogged = addrs(b), true
	n := start(t, cfg)
	c := n.dial()
	ask := asker(t, c.Conn, "GET /some/path?with=query HTTP/1.1\r\nHost: a.test\r\nUser-Agent: test\r\nReferer: here\r\nCookie: who=me\r\n\r\n")
	for range 200 {
		ask()
	}
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	var before, after runtime.MemStats
	const requests = 2000
	runtime.ReadMemStats(&before)
	for range requests {
		ask()
	}
	runtime.ReadMemStats(&after)
	// The runtime itself allocates now and then; a request that did would show as a thousand.
	if n := after.Mallocs - before.Mallocs; n > requests/100 {
		t.Errorf("%d allocations in %d requests", n, requests)
	}
	if b.Accepted() != 1 {
		t.Errorf("%d backend connections", b.Accepted())
	}
}

const fixedAnswer = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello"

// fixedBackend answers what ends like a head, out of fixed memory.
func fixedBackend(c *lbtest.Conn) {
	buf, answer := make([]byte, 4096), []byte(fixedAnswer)
	for {
		k, err := c.Conn.Read(buf)
		if err != nil {
			return
		}
		if !bytes.HasSuffix(buf[:k], []byte("\r\n\r\n")) {
			return
		}
		if _, err := c.Conn.Write(answer); err != nil {
			return
		}
	}
}

// asker returns a function that sends the request and reads its answer, out of fixed memory.
func asker(tb testing.TB, c net.Conn, request string) func() {
	out, in := []byte(request), make([]byte, 4096)
	return func() {
		if _, err := c.Write(out); err != nil {
			tb.Fatal(err)
		}
		for got := 0; !bytes.HasSuffix(in[:got], []byte("hello")); {
			k, err := c.Read(in[got:])
			if err != nil && err != io.EOF {
				tb.Fatal(err)
			}
			got += k
		}
	}
}
