package lb

import (
	"io"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"lbd/lb/loop"
)

// BenchmarkCount is what an exchange pays at its end for being counted, with three backends in turn.
func BenchmarkCount(b *testing.B) {
	engine, err := loop.New(loop.Options{Loops: 1, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		b.Fatal(err)
	}
	defer engine.Close()
	s := NewServer(Options{Engine: engine, Node: "n1"})
	pool := PoolConfig{Name: "p"}
	for _, address := range []string{"127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"} {
		pool.Backends = append(pool.Backends, BackendConfig{Key: address, Name: address, Address: netip.MustParseAddrPort(address), Weight: 1})
	}
	table, err := NewTable([]RouteConfig{{Name: "all", Listeners: []string{"main"}, Forward: &Forward{Pools: []WeightedPool{{Pool: "p", Weight: 1}}}}}, []*Pool{s.NewPool(pool)})
	if err != nil {
		b.Fatal(err)
	}
	s.SetTable(table)
	if err := s.Listen(ListenerConfig{Name: "main", Addresses: []string{"127.0.0.1:0"}}); err != nil {
		b.Fatal(err)
	}
	done := make(chan struct{})
	engine.Go(func(t *loop.Task) {
		defer close(done)
		x := newExchange(s, 0)
		x.t, x.client = t, &clientConn{listener: s.listeners["main"]}
		x.route, _ = s.table.Load().lookup("main", asked("a.test", "/"), false)
		x.rec = Record{Time: t.Now().Add(-3 * time.Millisecond), Status: 200}
		b.ReportAllocs()
		b.ResetTimer()
		for i := range b.N {
			x.pool = x.route.pools[0]
			x.backend = x.pool.members[i%3].backend
			x.count(nil)
		}
	})
	<-done
}
