package loop

import (
	"errors"
	"io"
	"net/netip"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
)

// A task that dies takes its connection along and nothing else.
func TestTaskDies(t *testing.T) {
	deaths := map[string]func(task *Task, c *Conn){
		"panic":  func(*Task, *Conn) { panic("boom") },
		"nil":    func(*Task, *Conn) { panic(error(nil)) },
		"goexit": func(*Task, *Conn) { runtime.Goexit() },
		"goexit with a waiting defer": func(task *Task, c *Conn) {
			defer task.Sleep(time.Millisecond)
			defer c.Close()
			runtime.Goexit()
		},
		"panic in an offloaded call":  func(task *Task, _ *Conn) { task.Offload(func() { panic("boom") }) },
		"goexit in an offloaded call": func(task *Task, _ *Conn) { task.Offload(runtime.Goexit) },
		"panic after waiting": func(task *Task, _ *Conn) {
			task.Sleep(time.Millisecond)
			panic("boom")
		},
	}
	for name, die := range deaths {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(t *testing.T, kind string) {
				e := start(t, kind, 1)
				l := listen(t, e, ListenOptions{Handler: func(task *Task, c *Conn) {
					b := make([]byte, 1)
					if c.Read(b); b[0] == 'd' {
						die(task, c)
					}
					c.Write(b)
				}})
				bystander := dial(t, l)
				for range 3 {
					c := dial(t, l)
					send(t, c, "d")
					expectEOF(t, c)
				}
				settle(t, e, "three deaths", func(s Stats) bool { return s.Loops[0].Panics == 3 })
				send(t, bystander, "x")
				expect(t, bystander, "x")
				settle(t, e, "nothing left", func(s Stats) bool { return connections(s) == 0 && s.Loops[0].Tasks == 0 })
			})
		})
	}
}

// What a task has left open is closed, and answers errors from then on.
func TestConnOfEndedTask(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		e := start(t, kind, 1)
		left := make(chan *Conn, 1)
		l := listen(t, e, ListenOptions{Handler: func(_ *Task, c *Conn) { left <- c }})
		expectEOF(t, dial(t, l))
		c := within(t, left, "handler")
		do(t, e, func(task *Task) {
			checkUnusable(t, task, c)
		})
	})
}

// Another task's connection answers errors while that task is alive, too.
func TestConnOfOtherTask(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		e := start(t, kind, 1)
		held := make(chan *Conn, 1)
		l := listen(t, e, ListenOptions{Handler: func(task *Task, c *Conn) {
			held <- c
			echo(task, c)
		}})
		peer := dial(t, l)
		c := within(t, held, "handler")
		do(t, e, func(task *Task) {
			checkUnusable(t, task, c)
			if err := c.Close(); !errors.Is(err, ErrNotOwner) {
				t.Errorf("close: %v", err)
			}
			if c.Claim(task) {
				t.Error("claimed a connection that is not parked")
			}
		})
		send(t, peer, "x")
		expect(t, peer, "x")
	})
}

func checkUnusable(t *testing.T, task *Task, c *Conn) {
	_, readErr := c.Read(make([]byte, 1))
	_, writeErr := c.Write([]byte("x"))
	_, waitErr := task.Wait(task.Now().Add(time.Second), Want{Conn: c, Read: true})
	for what, err := range map[string]error{
		"read": readErr, "write": writeErr, "wait": waitErr, "flush": c.Flush(), "close write": c.CloseWrite(),
	} {
		if err == nil {
			t.Errorf("%s succeeded", what)
		}
	}
}

func TestSpawnAndSleep(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		e := start(t, kind, 2)
		const children = 50
		var running atomic.Int64 // only one task of a loop runs at a time
		ended := make(chan int, children)
		loopOf := make(chan int, 1)
		e.Go(func(task *Task) {
			loopOf <- task.Loop()
			for range children {
				task.Spawn(func(child *Task) {
					for range 10 {
						if running.Add(1) != 1 {
							t.Error("two tasks of a loop run at once")
						}
						runtime.Gosched()
						running.Add(-1)
						child.Sleep(time.Millisecond)
					}
					ended <- child.Loop()
				})
			}
		})
		parent := within(t, loopOf, "parent")
		for range children {
			if child := within(t, ended, "child"); child != parent {
				t.Fatalf("child on loop %d, parent on %d", child, parent)
			}
		}
	})
}

func TestSleepTakesItsTime(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		e := start(t, kind, 1)
		do(t, e, func(task *Task) {
			for _, d := range []time.Duration{0, time.Millisecond, 7 * time.Millisecond, 40 * time.Millisecond} {
				begin := task.Now()
				if err := task.Sleep(d); err != nil {
					t.Error(err)
				}
				if took := time.Since(begin); took < d || took > d+patience/2 {
					t.Errorf("sleep of %v took %v", d, took)
				}
			}
		})
	})
}

func TestGoOn(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		e := start(t, kind, 3)
		got := make(chan int, 1)
		for i := range e.Loops() {
			e.GoOn(i, func(task *Task) { got <- task.Loop() })
			if n := within(t, got, "task"); n != i {
				t.Errorf("task on loop %d, want %d", n, i)
			}
		}
	})
}

// While one task waits for a worker, others of its loop go on.
func TestOffload(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		e := start(t, kind, 1)
		release := make(chan struct{})
		offloaded := make(chan struct{})
		l := listen(t, e, ListenOptions{Handler: func(task *Task, c *Conn) {
			b := make([]byte, 1)
			if c.Read(b); b[0] == 'w' {
				c.Offload(func() {
					close(offloaded)
					<-release
				})
			}
			c.Write(b)
		}})
		slow, quick := dial(t, l), dial(t, l)
		send(t, slow, "w")
		within(t, offloaded, "offloaded call")
		send(t, quick, "q")
		expect(t, quick, "q")
		close(release)
		expect(t, slow, "w")
	})
}

// Wake-ups from other goroutines reach a loop that waits, also many at once.
func TestWakeFromOutside(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		e := start(t, kind, 2)
		const senders, each = 4, 500
		var ran atomic.Int64
		done := make(chan struct{})
		for range senders {
			go func() {
				for range each {
					e.Go(func(task *Task) {
						task.Offload(func() {})
						if ran.Add(1) == senders*each {
							close(done)
						}
					})
				}
			}()
		}
		within(t, done, "last task")
		// One at a time, each into an idle loop.
		for range 200 {
			do(t, e, func(*Task) {})
		}
	})
}

func TestWaitForAny(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		e := start(t, kind, 1)
		back := startBackend(t, e, echo)
		// A tunnel in one task, both directions.
		l := listen(t, e, ListenOptions{Handler: func(task *Task, c *Conn) { relay(t, task, c, back) }})
		c := dial(t, l)
		const total = 4 << 20
		go func() {
			c.Write(make([]byte, total))
			c.CloseWrite()
		}()
		if n, err := io.Copy(io.Discard, c); n != total || err != nil {
			t.Fatalf("%d bytes came back, %v", n, err)
		}
	})
}

func TestWaitDeadline(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		e := start(t, kind, 1)
		got := make(chan error, 2)
		l := listen(t, e, ListenOptions{Handler: func(task *Task, c *Conn) {
			for _, d := range []time.Duration{20 * time.Millisecond, -1} {
				_, err := task.Wait(time.Now().Add(d), Want{Conn: c, Read: true})
				got <- err
			}
		}})
		dial(t, l)
		for range 2 {
			if err := within(t, got, "deadline"); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatal(err)
			}
		}
	})
}

// startBackend serves h on the same engine.
func startBackend(t testing.TB, e *Engine, h Handler) netip.AddrPort {
	return addrOf(listen(t, e, ListenOptions{Handler: h}).Addr())
}

// relay moves bytes between c and a new connection to addr, as a tunnel does.
func relay(t testing.TB, task *Task, c *Conn, addr netip.AddrPort) {
	b, err := task.Dial(addr, time.Now().Add(patience))
	if err != nil {
		t.Error(err)
		return
	}
	const limit = 64 << 10
	ends := [2]*Conn{c, b}
	for _, c := range ends {
		c.SetNonblocking(true)
		c.SetQueued(limit)
	}
	buf := task.Buffer()
	defer task.Release(buf)
	var over, closed [2]bool // nothing more comes from this end; that has been passed on
	for !closed[0] || !closed[1] {
		wants := [2]Want{{Conn: c}, {Conn: b}}
		for from := range ends {
			to := 1 - from
			for !over[from] && ends[to].Pending() < limit {
				n, err := ends[from].Read(buf)
				if err == ErrWouldBlock {
					wants[from].Read = true
					break
				}
				if err != nil {
					over[from] = true
					break
				}
				ends[to].Write(buf[:n])
			}
			switch {
			case ends[to].Pending() > 0:
				wants[to].Write = true
			case over[from] && !closed[from]: // not before: it would wait, and hold up the other direction
				closed[from] = true
				if err := ends[to].CloseWrite(); err != nil {
					t.Error(err)
				}
			}
		}
		if closed[0] && closed[1] {
			return
		}
		if _, err := task.Wait(time.Now().Add(patience), wants[0], wants[1]); err != nil {
			t.Error(err)
			return
		}
	}
}

// One task that never runs out of data does not keep the others waiting.
func TestFairness(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		e := start(t, kind, 1)
		l := listen(t, e, ListenOptions{Handler: echo})
		flood := dial(t, l)
		stop := make(chan struct{})
		flooded := make(chan struct{})
		go func() {
			defer close(flooded)
			block := make([]byte, 1<<20)
			for {
				select {
				case <-stop:
					flood.Close()
					return
				default:
					flood.Write(block)
				}
			}
		}()
		go io.Copy(io.Discard, flood)
		c := dial(t, l)
		for range 50 {
			send(t, c, "x")
			expect(t, c, "x")
		}
		close(stop)
		within(t, flooded, "end of flood")
	})
}

func TestBuffers(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		e := start(t, kind, 1)
		do(t, e, func(task *Task) {
			b := task.Buffer()
			if len(b) != BufferBytes {
				t.Errorf("%d bytes", len(b))
			}
			task.Release(b[:3])
			if again := task.Buffer(); &again[0] != &b[0] || len(again) != BufferBytes {
				t.Error("a released buffer is not used again")
			}
			task.Release(nil)
			task.Release(make([]byte, 10))
			if b := task.Buffer(); len(b) != BufferBytes {
				t.Errorf("%d bytes after a foreign one was released", len(b))
			}
		})
	})
}
