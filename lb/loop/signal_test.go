package loop

import (
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"
)

// TestSignal: a task that waits is woken from another loop and from a goroutine; what is raised before it waits is not lost.
func TestSignal(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		e := start(t, kind, 2)
		signals, done := make(chan *Signal), make(chan error, 1)
		const rounds = 200
		var seen atomic.Int32
		e.GoOn(0, func(task *Task) {
			s := task.Signal()
			task.Offload(func() { signals <- s })
			for range rounds {
				if i, err := task.Wait(time.Now().Add(patience), Want{Signal: s}); i != 0 || err != nil {
					done <- err
					return
				}
				s.Lower()
				seen.Add(1)
			}
			done <- nil
		})
		s := within(t, signals, "signal")
		for i := range int32(rounds) {
			if i%2 == 0 {
				s.Raise()
			} else {
				e.GoOn(1, func(*Task) { s.Raise() })
			}
			for end := time.Now().Add(patience); seen.Load() <= i && time.Now().Before(end); {
				time.Sleep(10 * time.Microsecond)
			}
		}
		if err := within(t, done, "all rounds"); err != nil {
			t.Error(err)
		}
		s.Raise() // nobody is there any more
	})
}

// TestSignalOrDeadline: a signal that does not come leaves the deadline, and a connection beside it counts, too.
func TestSignalOrDeadline(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		e := start(t, kind, 1)
		ended := make(chan int, 1)
		l := listen(t, e, ListenOptions{Handler: func(task *Task, c *Conn) {
			c.SetNonblocking(true)
			s := task.Signal()
			if i, err := task.Wait(task.Now().Add(20*time.Millisecond), Want{Signal: s}, Want{Conn: c, Ended: true}); err != os.ErrDeadlineExceeded {
				t.Errorf("wait: %d %v", i, err)
			}
			i, err := task.Wait(task.Now().Add(patience), Want{Signal: s}, Want{Conn: c, Ended: true})
			if err != nil || !c.Ended() || c.Broken() {
				t.Errorf("wait for the end: %v, ended %v, broken %v", err, c.Ended(), c.Broken())
			}
			ended <- i
		}})
		c := dial(t, l)
		time.AfterFunc(50*time.Millisecond, func() { c.CloseWrite() })
		if i := within(t, ended, "the end"); i != 1 {
			t.Errorf("ready: %d", i)
		}
	})
}

// TestAbort: what another task of the loop breaks ends for its owner, whatever it does, and for its peer.
func TestAbort(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		for name, handle := range map[string]func(task *Task, c *Conn){
			"reads":  func(_ *Task, c *Conn) { c.Read(make([]byte, 1)) },
			"writes": func(_ *Task, c *Conn) { c.Write(make([]byte, 64<<20)) },
			"waits":  func(task *Task, c *Conn) { task.Wait(time.Time{}, Want{Conn: c, Broken: true}) },
			"parked": nil,
		} {
			t.Run(name, func(t *testing.T) {
				e := start(t, kind, 1)
				conns, gone := make(chan *Conn, 1), make(chan struct{})
				l := listen(t, e, ListenOptions{Handler: func(task *Task, c *Conn) {
					conns <- c
					if handle == nil {
						c.SetNonblocking(true)
						c.Park(time.Time{}, func(_ *Task, c *Conn) {
							if _, err := c.Read(make([]byte, 1)); err == ErrWouldBlock {
								t.Error("nothing to read")
							}
							close(gone)
						})
						return
					}
					handle(task, c)
					close(gone)
				}})
				c := dial(t, l)
				owned := within(t, conns, "connection")
				do(t, e, func(task *Task) { task.Sleep(10 * time.Millisecond); owned.Abort(task) })
				within(t, gone, "the owner's end")
				for {
					if _, err := c.Read(make([]byte, 1<<20)); err != nil {
						if os.IsTimeout(err) {
							t.Error("the peer does not know")
						}
						return
					}
				}
			})
		}
	})
}

// TestAbortElsewhere: a task of another loop cannot break anything.
func TestAbortElsewhere(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		e := start(t, kind, 2)
		conns := make(chan *Conn, 1)
		at := make(chan int, 1)
		l := listen(t, e, ListenOptions{Handler: func(task *Task, c *Conn) {
			at <- task.Loop()
			conns <- c
			echo(task, c)
		}})
		c := dial(t, l)
		owned, other := within(t, conns, "connection"), 1-within(t, at, "loop")
		done := make(chan struct{})
		e.GoOn(other, func(task *Task) { owned.Abort(task); close(done) })
		within(t, done, "try")
		send(t, c, "still here")
		expect(t, c, "still here")
	})
}

// TestDeferAccept: a client that says nothing is not seen, one that speaks is; and the engine without it says so.
func TestDeferAccept(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		e := start(t, kind, 2)
		l := listen(t, e, ListenOptions{Handler: echo})
		if err := l.SetDeferAccept(10 * time.Second); kind == KindGoroutine {
			if err != ErrNoDefer || l.SetDeferAccept(0) != nil {
				t.Errorf("twin: %v", err)
			}
			return
		} else if err != nil {
			t.Fatal(err)
		}
		silent, loud := dial(t, l), dial(t, l)
		send(t, loud, "hello")
		expect(t, loud, "hello")
		if n := sum(e.Stats(), func(l LoopStats) int64 { return l.Accepted }); n != 1 {
			t.Errorf("%d accepted of one that speaks", n)
		}
		send(t, silent, "at last")
		expect(t, silent, "at last")
		if err := l.SetDeferAccept(0); err != nil {
			t.Fatal(err)
		}
		third, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer third.Close()
		settle(t, e, "the third is seen", func(s Stats) bool { return sum(s, func(l LoopStats) int64 { return l.Accepted }) == 3 })
	})
}
