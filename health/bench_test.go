package health

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
)

// BenchmarkSetUnchanged is what a publish costs that changes no check, with 10,000 of them.
func BenchmarkSetUnchanged(b *testing.B) {
	n := newNetwork()
	checks := map[Key]Check{}
	for i := range 10_000 {
		c := Check{Address: fmt.Sprintf("10.%d.%d.1:80", i/250, i%250)}
		checks[c.Key()] = c
		n.set(c.Address, refuse)
	}
	p := New(Options{Dial: n.dial})
	defer p.Close()
	p.Set(checks)
	b.ReportAllocs()
	for b.Loop() {
		p.Set(checks)
	}
}

// BenchmarkCheck is one check over loopback, both sides in this process.
func BenchmarkCheck(b *testing.B) {
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	dial := (&net.Dialer{KeepAlive: -1}).DialContext
	for _, check := range []Check{
		{Address: server.Listener.Addr().String()},
		{Address: server.Listener.Addr().String(), HTTP: &HTTP{}},
	} {
		check = check.complete()
		b.Run(map[bool]string{true: "http", false: "tcp"}[check.HTTP != nil], func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := ask(b.Context(), dial, check); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
