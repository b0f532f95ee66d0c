package loop

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// A connection is served in a new task each time it wakes.
func TestPark(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		e := start(t, kind, 1)
		var resume Handler
		resume = func(task *Task, c *Conn) {
			c.SetNonblocking(true)
			b := task.Buffer()
			defer task.Release(b)
			for {
				n, err := c.Read(b)
				if err == ErrWouldBlock {
					c.Park(time.Now().Add(patience), resume)
					return
				}
				if err != nil {
					return
				}
				c.Write(b[:n])
			}
		}
		c := dial(t, listen(t, e, ListenOptions{Handler: resume}))
		for range 50 {
			send(t, c, "again")
			expect(t, c, "again")
			settle(t, e, "parked", func(s Stats) bool { return s.Loops[0].Tasks == 0 })
		}
		c.CloseWrite()
		expectEOF(t, c)
	})
}

// Data that is there before Park resumes at once.
func TestParkWithData(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		e := start(t, kind, 1)
		l := listen(t, e, ListenOptions{Handler: func(task *Task, c *Conn) {
			io.ReadFull(c, make([]byte, 2)) // fills the buffer: more may be there
			task.Offload(func() { time.Sleep(time.Millisecond) })
			c.Park(time.Time{}, func(task *Task, c *Conn) {
				b := make([]byte, 10)
				n, _ := c.Read(b)
				c.Write(b[:n])
			})
		}})
		for range 20 {
			c := dial(t, l)
			send(t, c, "ab"+"rest")
			expect(t, c, "rest")
		}
	})
}

// A read that happened to fill its buffer does not make the connection look alive
// (or dead) when it is parked with nothing more to read.
func TestParkAfterExactRead(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		e := start(t, kind, 1)
		l := listen(t, e, ListenOptions{Handler: echo})
		do(t, e, func(task *Task) {
			c, err := task.Dial(addrOf(l.Addr()), time.Now().Add(patience))
			if err != nil {
				t.Error(err)
				return
			}
			for range 10 {
				c.Write([]byte("ping"))
				if _, err := io.ReadFull(c, make([]byte, 4)); err != nil {
					t.Error(err)
				}
				c.Park(time.Time{}, func(*Task, *Conn) {})
				task.Sleep(time.Millisecond)
				if !c.Claim(task) {
					t.Error("an idle connection was resumed")
					return
				}
			}
		})
	})
}

func TestParkDeadline(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		e := start(t, kind, 1)
		got := make(chan bool, 1)
		l := listen(t, e, ListenOptions{Handler: func(task *Task, c *Conn) {
			// A far deadline first: the timer is armed for it and must move.
			c.Park(time.Now().Add(time.Hour), func(task *Task, c *Conn) {
				got <- c.TimedOut()
				c.Read(make([]byte, 10))
				c.Park(time.Now().Add(20*time.Millisecond), func(_ *Task, c *Conn) { got <- c.TimedOut() })
			})
		}})
		c := dial(t, l)
		send(t, c, "x")
		if within(t, got, "data") {
			t.Error("data counts as timed out")
		}
		if !within(t, got, "deadline") {
			t.Error("the deadline does not count as timed out")
		}
		expectEOF(t, c)
	})
}

// idle makes connections to addr and parks them, as a pool does. What they get
// while idle is told to woken.
func idle(t testing.TB, task *Task, addr net.Addr, woken chan<- error) *Conn {
	c, err := task.Dial(addrOf(addr), time.Now().Add(patience))
	if err != nil {
		t.Error(err)
		return nil
	}
	c.Park(time.Time{}, func(_ *Task, c *Conn) {
		_, err := c.Read(make([]byte, 1))
		woken <- err
	})
	return c
}

func TestClaim(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		e := start(t, kind, 1)
		l := listen(t, e, ListenOptions{Handler: echo})
		woken := make(chan error, 1)
		do(t, e, func(task *Task) {
			c := idle(t, task, l.Addr(), woken)
			for range 20 {
				if _, err := c.Write([]byte("x")); !errors.Is(err, ErrNotOwner) {
					t.Errorf("write to a parked connection: %v", err)
				}
				if !c.Claim(task) {
					t.Error("cannot claim an idle connection")
					return
				}
				if c.Claim(task) {
					t.Error("claimed twice")
				}
				b := make([]byte, 10)
				c.Write([]byte("ping"))
				if n, err := c.Read(b); string(b[:n]) != "ping" {
					t.Errorf("got %q, %v", b[:n], err)
				}
				c.Park(time.Time{}, func(_ *Task, c *Conn) { woken <- nil })
				task.Sleep(time.Millisecond)
			}
			c.Claim(task)
		})
		select {
		case <-woken:
			t.Error("an idle connection was resumed")
		default:
		}
	})
}

// A backend that speaks or closes while its connection is idle makes it
// unclaimable: what it said must never become the next answer.
func TestClaimAfterEvent(t *testing.T) {
	acts := map[string]func(c net.Conn){
		"surplus": func(c net.Conn) { io.WriteString(c, "surplus") },
		"end":     func(c net.Conn) { c.Close() },
		"reset": func(c net.Conn) {
			c.(*net.TCPConn).SetLinger(0)
			c.Close()
		},
	}
	for name, act := range acts {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(t *testing.T, kind string) {
				e := start(t, kind, 1)
				ln, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				defer ln.Close()
				var c *Conn
				woken := make(chan error, 1)
				do(t, e, func(task *Task) { c = idle(t, task, ln.Addr(), woken) })
				peer, err := ln.Accept()
				if err != nil {
					t.Fatal(err)
				}
				defer peer.Close()
				act(peer)
				within(t, woken, "resume")
				do(t, e, func(task *Task) {
					if c.Claim(task) {
						t.Error("claimed")
					}
				})
			})
		})
	}
}

// Claim races with data: whoever wins, every connection is either claimed or
// resumed, never both, never neither.
func TestClaimRace(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		e := start(t, kind, 1)
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		go func() {
			for {
				peer, err := ln.Accept()
				if err != nil {
					return
				}
				io.WriteString(peer, "x")
				defer peer.Close()
			}
		}()
		resumed, claimed := 0, 0
		do(t, e, func(task *Task) {
			const n = 200
			for range n {
				c, err := task.Dial(addrOf(ln.Addr()), time.Now().Add(patience))
				if err != nil {
					t.Error(err)
					return
				}
				mine := false
				c.Park(time.Time{}, func(*Task, *Conn) {
					if mine {
						t.Error("claimed and resumed")
					}
					resumed++
				})
				task.Sleep(0)
				if mine = c.Claim(task); mine {
					claimed++
					c.Close()
				}
			}
			for end := time.Now().Add(patience); resumed+claimed < n && time.Now().Before(end); {
				task.Sleep(time.Millisecond)
			}
			if resumed+claimed != n {
				t.Errorf("%d resumed, %d claimed of %d", resumed, claimed, n)
			}
		})
	})
}

// A pool keeps idle connections by loop, without a lock.
func TestSteal(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		e := start(t, kind, 2)
		stealPatiently(t, e)
		l := listen(t, e, ListenOptions{Handler: echo})
		var idles [2][]*Conn // each touched by its loop's tasks only
		woken := make(chan error, 10)
		parked := make(chan struct{})
		e.GoOn(1, func(task *Task) {
			for range 2 {
				idles[1] = append(idles[1], idle(t, task, l.Addr(), woken))
			}
			close(parked)
		})
		within(t, parked, "parking")
		take := func(loop int) *Conn {
			n := len(idles[loop])
			if n == 0 {
				return nil
			}
			c := idles[loop][n-1]
			idles[loop] = idles[loop][:n-1]
			return c
		}
		stolen := make(chan struct{})
		e.GoOn(0, func(task *Task) {
			defer close(stolen)
			for range 2 {
				c := task.Steal(take, 0, 1)
				if c == nil {
					t.Error("nothing stolen")
					return
				}
				b := make([]byte, 10)
				c.SetDeadline(time.Now().Add(patience))
				c.Write([]byte("ping"))
				if n, err := c.Read(b); string(b[:n]) != "ping" {
					t.Errorf("got %q, %v", b[:n], err)
				}
				c.Park(time.Time{}, func(*Task, *Conn) {})
				if !c.Claim(task) {
					t.Error("cannot claim a stolen connection")
				}
			}
			if c := task.Steal(take, 1); c != nil {
				t.Error("stolen from an empty loop")
			}
		})
		within(t, stolen, "steal")
		if s := e.Stats(); s.Loops[0].Stolen != 2 {
			t.Errorf("%+v", s)
		}
	})
}

// A connection that has died meanwhile is passed over.
func TestStealFresh(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		e := start(t, kind, 2)
		stealPatiently(t, e)
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		woken := make(chan error, 1)
		made := make(chan []*Conn, 1)
		e.GoOn(1, func(task *Task) {
			made <- []*Conn{idle(t, task, ln.Addr(), woken), idle(t, task, ln.Addr(), woken)}
		})
		conns := within(t, made, "connections")
		first, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		second, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer second.Close()
		first.Close()
		within(t, woken, "end of the first")
		done := make(chan struct{})
		e.GoOn(0, func(task *Task) {
			defer close(done)
			c := task.Steal(func(int) *Conn {
				if len(conns) == 0 {
					return nil
				}
				c := conns[0]
				conns = conns[1:]
				return c
			}, 1)
			if c == nil {
				t.Error("nothing stolen")
			}
		})
		within(t, done, "steal")
		second.SetReadDeadline(time.Now().Add(patience))
		expectEOF(t, second) // the thief ended, with it what it owned
	})
}
