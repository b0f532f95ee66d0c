package loop

import (
	"io"
	"net"
	"runtime"
	"testing"
	"time"
)

// The benchmarks measure a whole round trip: the client's system calls, which
// are the same for both engines, are part of the figure.

func onEachB(b *testing.B, bench func(b *testing.B, kind string)) {
	for _, kind := range kinds {
		b.Run(kind, func(b *testing.B) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(Procs(1)))
			bench(b, kind)
		})
	}
}

func roundTrips(b *testing.B, c net.Conn) {
	msg, got := make([]byte, 100), make([]byte, 100)
	b.ReportAllocs()
	for b.Loop() {
		c.Write(msg)
		if _, err := io.ReadFull(c, got); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEcho(b *testing.B) {
	onEachB(b, func(b *testing.B, kind string) {
		e := start(b, kind, 1)
		c := dial(b, listen(b, e, ListenOptions{Handler: echo}))
		c.SetDeadline(time.Time{})
		roundTrips(b, c)
	})
}

// BenchmarkProxy takes an idle backend connection for each request and parks
// both connections after it.
func BenchmarkProxy(b *testing.B) {
	onEachB(b, func(b *testing.B, kind string) {
		e := start(b, kind, 1)
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		defer ln.Close()
		go func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				go io.Copy(c, c)
			}
		}()
		p := &benchProxy{back: ln.Addr()}
		p.resume = p.serve
		c := dial(b, listen(b, e, ListenOptions{Handler: p.serve}))
		c.SetDeadline(time.Time{})
		roundTrips(b, c)
	})
}

// benchProxy belongs to one loop.
type benchProxy struct {
	back   net.Addr
	resume Handler
	pool   []*Conn
}

func (p *benchProxy) serve(task *Task, c *Conn) {
	buf := task.Buffer()
	defer task.Release(buf)
	c.SetNonblocking(true)
	for {
		n, err := c.Read(buf)
		if err == ErrWouldBlock {
			c.Park(task.Now().Add(time.Minute), p.resume)
			return
		}
		if err != nil {
			return
		}
		back := p.backend(task)
		if back == nil {
			return
		}
		back.SetReadDeadline(task.Now().Add(time.Minute))
		back.Write(buf[:n])
		if n, err = back.Read(buf); err != nil {
			return
		}
		back.Park(task.Now().Add(4*time.Second), closeIdle)
		p.pool = append(p.pool, back)
		c.Write(buf[:n])
	}
}

func (p *benchProxy) backend(task *Task) *Conn {
	for len(p.pool) > 0 {
		c := p.pool[len(p.pool)-1]
		p.pool = p.pool[:len(p.pool)-1]
		if c.Claim(task) {
			return c
		}
	}
	c, err := task.Dial(addrOf(p.back), time.Now().Add(time.Second))
	if err != nil {
		return nil
	}
	return c
}

func closeIdle(*Task, *Conn) {}

func BenchmarkNewConnection(b *testing.B) {
	onEachB(b, func(b *testing.B, kind string) {
		e := start(b, kind, 1)
		l := listen(b, e, ListenOptions{Handler: echo})
		msg := make([]byte, 100)
		b.ReportAllocs()
		for b.Loop() {
			c, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				b.Fatal(err)
			}
			c.Write(msg)
			if _, err := io.ReadFull(c, msg); err != nil {
				b.Fatal(err)
			}
			c.(*net.TCPConn).SetLinger(0) // no port waits in TIME_WAIT
			c.Close()
		}
	})
}

func BenchmarkSwitch(b *testing.B) {
	onEachB(b, func(b *testing.B, kind string) {
		e := start(b, kind, 1)
		done := make(chan struct{})
		e.Go(func(task *Task) {
			defer close(done)
			for b.Loop() {
				task.Sleep(0)
			}
		})
		<-done
	})
}
