package loop

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestEcho(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		e := start(t, kind, 1)
		c := dial(t, listen(t, e, ListenOptions{Handler: echo}))
		for range 100 {
			send(t, c, "hello")
			expect(t, c, "hello")
		}
		c.CloseWrite()
		expectEOF(t, c)
		settle(t, e, "connection closed", func(s Stats) bool { return connections(s) == 0 })
	})
}

// A stream that the kernel cannot take at once, both ways.
func TestLargeEcho(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		e := start(t, kind, 1)
		c := dial(t, listen(t, e, ListenOptions{Handler: echo}))
		want := bytes.Repeat([]byte("0123456789abcdef"), 1<<19)
		go func() {
			c.Write(want)
			c.CloseWrite()
		}()
		got, err := io.ReadAll(c)
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("got %d bytes, %v, want %d", len(got), err, len(want))
		}
	})
}

// Data and FIN in one segment raise one event on the accepted side.
func TestDataWithEndAccepted(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		e := start(t, kind, 1)
		got := make(chan string, 1)
		l := listen(t, e, ListenOptions{Handler: func(task *Task, c *Conn) {
			b, err := io.ReadAll(c)
			got <- string(b) + errorText(err)
		}})
		for range 50 {
			c := dial(t, l)
			cork(t, c)
			send(t, c, "bye")
			c.CloseWrite()
			if s := within(t, got, "end"); s != "bye" {
				t.Fatalf("got %q", s)
			}
		}
	})
}

func TestDataWithEndDialled(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		e := start(t, kind, 1)
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		go func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				io.ReadFull(c, make([]byte, 2))
				cork(t, c.(*net.TCPConn))
				io.WriteString(c, "answer")
				c.Close()
			}
		}()
		do(t, e, func(task *Task) {
			for range 50 {
				c, err := task.Dial(addrOf(ln.Addr()), time.Now().Add(patience))
				if err != nil {
					t.Error(err)
					return
				}
				c.SetDeadline(time.Now().Add(patience))
				c.Write([]byte("go"))
				b, err := io.ReadAll(c)
				if err != nil || string(b) != "answer" {
					t.Errorf("got %q, %v", b, err)
				}
				c.Close()
			}
		})
	})
}

func TestReadDeadline(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		e := start(t, kind, 1)
		type result struct {
			err  error
			took time.Duration
		}
		got := make(chan result, 4)
		l := listen(t, e, ListenOptions{Handler: func(task *Task, c *Conn) {
			b := make([]byte, 10)
			for _, d := range []time.Duration{30 * time.Millisecond, -time.Second} {
				begin := time.Now()
				c.SetReadDeadline(begin.Add(d))
				_, err := c.Read(b)
				got <- result{err, time.Since(begin)}
			}
			c.SetReadDeadline(time.Time{})
			n, err := c.Read(b)
			got <- result{err, time.Duration(n)}
		}})
		c := dial(t, l)
		r := within(t, got, "deadline")
		if !errors.Is(r.err, os.ErrDeadlineExceeded) || r.took < 30*time.Millisecond || r.took > patience/2 {
			t.Fatalf("deadline in 30 ms: %v after %v", r.err, r.took)
		}
		if r = within(t, got, "deadline"); !errors.Is(r.err, os.ErrDeadlineExceeded) {
			t.Fatalf("deadline in the past: %v", r.err)
		}
		send(t, c, "abc")
		if r = within(t, got, "read"); r.err != nil || r.took != 3 {
			t.Fatalf("after the deadline was lifted: %d bytes, %v", r.took, r.err)
		}
	})
}

// A deadline that is set again and again ahead never fires; set closer, it does.
func TestDeadlineMoves(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		e := start(t, kind, 1)
		got := make(chan error, 1)
		l := listen(t, e, ListenOptions{Handler: func(task *Task, c *Conn) {
			b := make([]byte, 1)
			for range 20 {
				c.SetReadDeadline(time.Now().Add(time.Minute))
				if _, err := c.Read(b); err != nil {
					got <- err
					return
				}
				c.Write(b)
			}
			c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
			_, err := c.Read(b)
			got <- err
		}})
		c := dial(t, l)
		for range 20 {
			send(t, c, "x")
			expect(t, c, "x")
		}
		if err := within(t, got, "deadline"); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
	})
}

// A peer that does not read ends the write at its deadline.
func TestWriteDeadline(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		e := start(t, kind, 1)
		got := make(chan error, 1)
		l := listen(t, e, ListenOptions{Handler: func(task *Task, c *Conn) {
			c.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
			_, err := c.Write(make([]byte, 64<<20))
			got <- err
		}})
		dial(t, l)
		if err := within(t, got, "deadline"); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
	})
}

func TestDialRefused(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		e := start(t, kind, 1)
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		to := addrOf(ln.Addr())
		ln.Close()
		do(t, e, func(task *Task) {
			if _, err := task.Dial(to, time.Now().Add(patience)); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("got %v", err)
			}
		})
		if n := connections(e.Stats()); n != 0 {
			t.Errorf("%d connections left", n)
		}
	})
}

func TestAddresses(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		e := start(t, kind, 1)
		got := make(chan string, 1)
		l, err := e.Listen(":0", ListenOptions{Handler: func(task *Task, c *Conn) {
			got <- c.RemoteAddr().String() + " " + c.LocalAddr().String() + " " + c.RemoteAddrPort().String()
		}})
		if err != nil {
			t.Fatal(err)
		}
		_, port, _ := net.SplitHostPort(l.Addr().String())
		hosts := []string{"127.0.0.1"}
		if ln, err := net.Listen("tcp", "[::1]:0"); err == nil { // the machine has IPv6
			ln.Close()
			hosts = append(hosts, "::1")
		}
		for _, host := range hosts {
			c, err := net.Dial("tcp", net.JoinHostPort(host, port))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			us := c.LocalAddr().String()
			if s, want := within(t, got, "handler"), us+" "+c.RemoteAddr().String()+" "+us; s != want {
				t.Errorf("got %s, want %s", s, want)
			}
		}
	})
}

func TestHalfClose(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		e := start(t, kind, 1)
		got := make(chan string, 1)
		l := listen(t, e, ListenOptions{Handler: func(task *Task, c *Conn) {
			c.Write([]byte("all"))
			c.CloseWrite()
			b, err := io.ReadAll(c)
			got <- string(b) + errorText(err)
		}})
		c := dial(t, l)
		if b, err := io.ReadAll(c); string(b) != "all" || err != nil {
			t.Fatalf("got %q, %v", b, err)
		}
		send(t, c, "still here")
		c.CloseWrite()
		if s := within(t, got, "end"); s != "still here" {
			t.Fatalf("got %q", s)
		}
	})
}

func TestReset(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		e := start(t, kind, 1)
		got := make(chan error, 1)
		reading := make(chan struct{})
		l := listen(t, e, ListenOptions{Handler: func(task *Task, c *Conn) {
			close(reading)
			_, err := c.Read(make([]byte, 1))
			got <- err
		}})
		c := dial(t, l)
		within(t, reading, "handler")
		c.SetLinger(0)
		c.Close()
		if err := within(t, got, "reset"); !errors.Is(err, syscall.ECONNRESET) {
			t.Fatal(err)
		}
	})
}

// Queued writes return at once below the limit, wait above it, and arrive.
func TestQueued(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		e := start(t, kind, 1)
		const total, limit = 32 << 20, 256 << 10
		waited := make(chan error, 1)
		l := listen(t, e, ListenOptions{Handler: func(task *Task, c *Conn) {
			c.SetQueued(limit)
			c.SetWriteDeadline(time.Now().Add(patience))
			block := make([]byte, 8<<10)
			for sent := 0; sent < total; sent += len(block) {
				if _, err := c.Write(block); err != nil {
					waited <- err
					return
				}
				if n := c.Pending(); n > limit+len(block) {
					waited <- errors.New("more than the limit is pending")
					return
				}
			}
			_, err := task.Wait(time.Now().Add(patience), Want{Conn: c, Write: true})
			if err == nil && c.Pending() > 0 {
				err = errors.New("ready to write with bytes pending")
			}
			waited <- err
			c.Close()
		}})
		c := dial(t, l)
		n, err := io.Copy(io.Discard, c)
		if n != total || err != nil {
			t.Fatalf("%d bytes, %v", n, err)
		}
		if err := within(t, waited, "flush"); err != nil {
			t.Fatal(err)
		}
	})
}

// With a peer that does not read, a queued write above the limit ends at the
// write deadline, and so does Flush.
func TestQueuedDeadline(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		e := start(t, kind, 1)
		got := make(chan error, 2)
		l := listen(t, e, ListenOptions{Handler: func(task *Task, c *Conn) {
			c.SetQueued(64 << 10)
			for {
				c.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)) // anew: the kernel takes some megabytes first
				if _, err := c.Write(make([]byte, 64<<10)); err != nil {
					got <- err
					break
				}
			}
			c.SetWriteDeadline(task.Now().Add(10 * time.Millisecond))
			got <- c.Flush()
		}})
		dial(t, l)
		for range 2 {
			if err := within(t, got, "deadline"); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatal(err)
			}
		}
	})
}

// On a nonblocking connection it does not wait at all, deadline or not.
func TestQueueFull(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		e := start(t, kind, 1)
		got := make(chan error, 1)
		l := listen(t, e, ListenOptions{Handler: func(_ *Task, c *Conn) {
			c.SetNonblocking(true)
			c.SetQueued(64 << 10)
			for {
				if _, err := c.Write(make([]byte, 64<<10)); err != nil {
					got <- err
					return
				}
			}
		}})
		dial(t, l)
		if err := within(t, got, "full queue"); err != ErrQueueFull {
			t.Fatal(err)
		}
	})
}

func TestNonblocking(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		e := start(t, kind, 1)
		wait := make(chan struct{}, 1)
		got := make(chan string, 1)
		l := listen(t, e, ListenOptions{Handler: func(task *Task, c *Conn) {
			c.SetNonblocking(true)
			b := make([]byte, 100)
			if _, err := c.Read(b); err != ErrWouldBlock {
				t.Errorf("got %v", err)
			}
			wait <- struct{}{}
			var all strings.Builder
			for all.Len() < 5 {
				if _, err := task.Wait(time.Now().Add(patience), Want{Conn: c, Read: true}); err != nil {
					t.Error(err)
					return
				}
				n, err := c.Read(b)
				if err != nil && err != ErrWouldBlock {
					t.Error(err)
					return
				}
				all.Write(b[:n])
			}
			got <- all.String()
		}})
		c := dial(t, l)
		within(t, wait, "would block")
		send(t, c, "later")
		if s := within(t, got, "data"); s != "later" {
			t.Fatalf("got %q", s)
		}
	})
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return " " + err.Error()
}

func addrOf(a net.Addr) netip.AddrPort { return a.(*net.TCPAddr).AddrPort() }

// cork holds data back so that the FIN travels with it.
func cork(t testing.TB, c *net.TCPConn) {
	raw, err := c.SyscallConn()
	if err != nil {
		t.Error(err)
		return
	}
	raw.Control(holdBack)
}
