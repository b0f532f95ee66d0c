package loop

import (
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func pollOf(e *Engine) *pollEngine { return e.core.(*pollEngine) }

// stall keeps a loop from coming back until the returned function is called.
func stall(t testing.TB, e *Engine, loop int) (release func()) {
	t.Helper()
	begun, end := make(chan struct{}), make(chan struct{})
	e.GoOn(loop, func(*Task) {
		close(begun)
		<-end
	})
	within(t, begun, "stall")
	release = sync.OnceFunc(func() { close(end) })
	t.Cleanup(release)
	return release
}

// While a loop is stalled, another serves what the kernel puts into its queue;
// afterwards it serves itself again.
func TestStalledLoop(t *testing.T) {
	e := start(t, KindEpoll, 2)
	watch := pollOf(e).watch
	l := listen(t, e, ListenOptions{Handler: echo})
	release := stall(t, e, 0)
	if e.Stats().Stalled() {
		t.Error("stalled at once")
	}
	settle(t, e, "stalled", Stats.Stalled)
	for range 40 {
		c := dial(t, l)
		send(t, c, "x")
		expect(t, c, "x")
	}
	s := e.Stats()
	if s.Loops[0].Connections != 0 || s.Loops[1].Accepted != 40 || s.Loops[0].Stalls != 1 {
		t.Errorf("while stalled: %+v", s)
	}
	if s.Loops[0].StalledFor < watch.stallAfter || s.Loops[1].StalledFor != 0 {
		t.Errorf("stalled for %v and %v", s.Loops[0].StalledFor, s.Loops[1].StalledFor)
	}
	release()
	settle(t, e, "runs again", func(s Stats) bool { return !s.Stalled() && s.Loops[0].StalledFor == 0 })
	for i := 0; e.Stats().Loops[0].Accepted == 0; i++ {
		if i == 1000 {
			t.Fatal("the loop does not accept again")
		}
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		send(t, c, "x")
		expect(t, c, "x")
		c.Close()
	}
	l.Close()
	e.Close()
	if len(watch.stalledSockets()) > 0 {
		t.Error("a socket is left")
	}
}

// A listener can be closed while one of its sockets is lent.
func TestStalledLoopListenerClose(t *testing.T) {
	e := start(t, KindEpoll, 2)
	l := listen(t, e, ListenOptions{Handler: echo})
	release := stall(t, e, 0)
	settle(t, e, "stalled", Stats.Stalled)
	c := dial(t, l)
	send(t, c, "x")
	expect(t, c, "x")
	closed := make(chan struct{})
	go func() {
		l.Close()
		close(closed)
	}()
	release()
	within(t, closed, "close")
	send(t, c, "x")
	expect(t, c, "x")
}

// A stalled loop is not asked for connections, one that has just stalled is
// waited for only shortly, and take does not run once Steal has returned.
func TestStealFromStalled(t *testing.T) {
	e := start(t, KindEpoll, 2)
	release := stall(t, e, 1)
	var returned atomic.Bool
	done := make(chan struct{})
	e.GoOn(0, func(task *Task) {
		defer close(done)
		begin := task.Now()
		c := task.Steal(func(int) *Conn {
			if returned.Load() {
				t.Error("take ran late")
			}
			return nil
		}, 1)
		returned.Store(true)
		if took := time.Since(begin); c != nil || took < stealWait || took > patience/2 {
			t.Errorf("got %v after %v", c, took)
		}
	})
	within(t, done, "steal")
	release()
	passed := make(chan struct{})
	e.GoOn(1, func(*Task) { close(passed) }) // runs after what the loop had been asked
	within(t, passed, "task on the other loop")
}

// Garbage collections stop the world: loops that wait raw must let them.
func TestGCWhileWaitingRaw(t *testing.T) {
	const loops = 2
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(Procs(loops)))
	e := start(t, KindEpoll, loops)
	if !pollOf(e).mayHoldP() {
		t.Fatal("loops do not wait raw")
	}
	l := listen(t, e, ListenOptions{Handler: echo})
	var conns []net.Conn
	for range 2 * loops {
		conns = append(conns, dial(t, l))
	}
	begin := time.Now()
	const rounds = 30
	for range rounds {
		// Traffic on both loops, so that their next wait is a raw one.
		for _, c := range conns {
			send(t, c, "x")
			expect(t, c, "x")
		}
		runtime.GC()
	}
	if took := time.Since(begin); took > patience {
		t.Errorf("%d collections took %v", rounds, took)
	}
}

// A goroutine that needs a P gets one although loops wait: also when they have
// as many as there are.
func TestOtherGoroutinesRun(t *testing.T) {
	for _, procs := range []int{2, 3} {
		t.Run(fmt.Sprint(procs), func(t *testing.T) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
			e := start(t, KindEpoll, 2)
			if got := pollOf(e).mayHoldP(); got != (procs > 2) {
				t.Fatalf("mayHoldP is %v", got)
			}
			var took []time.Duration
			for range 101 {
				begin := time.Now()
				do(t, e, func(task *Task) { task.Offload(func() {}) })
				took = append(took, time.Since(begin))
			}
			slices.Sort(took)
			if median := took[len(took)/2]; median > 8*time.Millisecond {
				t.Errorf("a task with an offloaded call takes %v", median)
			}
		})
	}
}

// Accepted sockets have inherited the options of the listening one.
func TestSocketOptions(t *testing.T) {
	e := start(t, KindEpoll, 1)
	check := func(c *Conn) {
		for name, o := range map[string]struct{ level, name, want int }{
			"TCP_NODELAY":      {unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
			"SO_KEEPALIVE":     {unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
			"TCP_KEEPIDLE":     {unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, int(keepAliveIdle / time.Second)},
			"TCP_KEEPINTVL":    {unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, int(keepAliveInterval / time.Second)},
			"TCP_USER_TIMEOUT": {unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(userTimeout / time.Millisecond)},
		} {
			if got, err := unix.GetsockoptInt(int(c.on.(*pollConn).fd), o.level, o.name); err != nil || got != o.want {
				t.Errorf("%s is %d, want %d (%v)", name, got, o.want, err)
			}
		}
	}
	checked := make(chan struct{})
	l := listen(t, e, ListenOptions{Handler: func(_ *Task, c *Conn) {
		check(c)
		close(checked)
	}})
	do(t, e, func(task *Task) {
		c, err := task.Dial(addrOf(l.Addr()), time.Now().Add(patience))
		if err != nil {
			t.Error(err)
			return
		}
		check(c)
	})
	within(t, checked, "accept")
}

// Out of files: counted, told, not spinning, and over when files are there again.
func TestOutOfFiles(t *testing.T) {
	e := start(t, KindEpoll, 1)
	reasons := make(chan string, 100)
	l := listen(t, e, ListenOptions{Handler: echo, Refused: func(reason string) { reasons <- reason }})
	release := stall(t, e, 0)
	c := dial(t, l) // waits in the kernel's queue
	lowest, err := unix.Dup(0)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(lowest)
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	none := limit
	none.Cur = uint64(lowest)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	release()
	reason := within(t, reasons, "refusal")
	time.Sleep(2 * acceptBackoff)
	errs := e.Stats().Loops[0].AcceptErrors
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if reason != RefusedOpenFiles || errs > 5 {
		t.Errorf("reason %q, %d tries", reason, errs)
	}
	send(t, c, "x")
	expect(t, c, "x")
}

// A task that finds data again and again gives way after its share.
func TestTurnIsBounded(t *testing.T) {
	e := start(t, KindEpoll, 1)
	reads := 0 // the loop's
	var readsBefore int
	greedy := listen(t, e, ListenOptions{Handler: func(_ *Task, c *Conn) {
		b := make([]byte, 1)
		c.Read(b)
		c.Write(b)
		for {
			if _, err := c.Read(b); err != nil {
				return
			}
			reads++
		}
	}})
	modest := listen(t, e, ListenOptions{Handler: func(_ *Task, c *Conn) {
		b := make([]byte, 1)
		c.Read(b)
		c.Write(b)
		c.Read(b)
		readsBefore = reads
		c.Write(b)
	}})
	g, m := dial(t, greedy), dial(t, modest)
	for _, c := range []net.Conn{g, m} {
		send(t, c, "x")
		expect(t, c, "x")
	}
	release := stall(t, e, 0)
	send(t, g, strings.Repeat("x", 10_000))
	send(t, m, "y")
	release()
	expect(t, m, "y")
	do(t, e, func(*Task) {
		if readsBefore < 1 || readsBefore > 2*stepOperations {
			t.Errorf("%d reads before the other task's turn", readsBefore)
		}
	})
}

// A read that does not fill its buffer is the last one before the next event:
// that is what keeps a proxied request at two reads.
func TestShortReadIsTheLast(t *testing.T) {
	e := start(t, KindEpoll, 1)
	more := make(chan bool, 2)
	l := listen(t, e, ListenOptions{Handler: func(_ *Task, c *Conn) {
		for _, size := range []int{3, 100} {
			c.Read(make([]byte, size))
			more <- c.on.(*pollConn).readable
			c.Write([]byte("x"))
		}
	}})
	c := dial(t, l)
	send(t, c, "abc")
	expect(t, c, "x")
	send(t, c, "def")
	if full, short := within(t, more, "read"), within(t, more, "read"); !full || short {
		t.Errorf("more after a full read: %v, after a short one: %v", full, short)
	}
}

// Connections that stay are spread evenly over the loops, also such as come all at
// once, time and again.
func TestBalance(t *testing.T) {
	const loops, count, most = 8, 64, 12
	e := start(t, KindEpoll, loops)
	l := listen(t, e, ListenOptions{Handler: echo})
	for range 10 {
		var conns [count]net.Conn
		var dials sync.WaitGroup
		for i := range conns {
			dials.Go(func() { conns[i], _ = net.Dial("tcp", l.Addr().String()) })
		}
		dials.Wait()
		settle(t, e, "all served", func(s Stats) bool { return connections(s) == count })
		for i, l := range e.Stats().Loops {
			if l.Connections > most {
				t.Errorf("loop %d has %d of %d connections", i, l.Connections, count)
			}
		}
		for _, c := range conns {
			c.Close()
		}
		settle(t, e, "all closed", func(s Stats) bool { return connections(s) == 0 })
	}
	if n := sum(e.Stats(), func(l LoopStats) int64 { return l.Moved }); n == 0 || n > 10*count/2 {
		t.Errorf("%d of %d moved", n, 10*count)
	}
	for _, l := range pollOf(e).loops {
		if n := l.served.Load(); n != 0 {
			t.Errorf("loop %d counts %d connections and has none", l.index, n)
		}
	}
}

// An idle loop sleeps: no timer, no signal keeps it busy.
func TestIdleLoopSleeps(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(Procs(1)))
	e := start(t, KindEpoll, 1)
	c := dial(t, listen(t, e, ListenOptions{Handler: echo}))
	send(t, c, "x")
	expect(t, c, "x")
	time.Sleep(50 * time.Millisecond) // the raw wait is interrupted once
	before := e.Stats().Loops[0].Rounds
	time.Sleep(300 * time.Millisecond)
	if n := e.Stats().Loops[0].Rounds - before; n > 3 {
		t.Errorf("%d rounds in 300 ms without traffic", n)
	}
	settle(t, e, "not busy", func(s Stats) bool { return s.Loops[0].Busy < 0.1 })
}

// Once warm, serving allocates nothing: reads, writes, waits, parking, resuming,
// claiming, buffers, tasks.
func TestNoAllocations(t *testing.T) {
	e := start(t, KindEpoll, 1)
	var pool []*Conn // idle connections to the backend
	back := startBackend(t, e, echo)
	surplus := func(_ *Task, c *Conn) {
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, ErrClosed) {
			t.Errorf("an idle connection was resumed: %v", err)
		}
	}
	var wants [2]Want
	var resume Handler
	resume = func(task *Task, c *Conn) {
		c.SetNonblocking(true)
		buf := task.Buffer()
		defer task.Release(buf)
		for {
			c.SetReadDeadline(task.Now().Add(time.Minute))
			n, err := c.Read(buf)
			if err == ErrWouldBlock {
				c.Park(task.Now().Add(time.Minute), resume)
				return
			}
			if err != nil {
				return
			}
			var b *Conn
			if last := len(pool) - 1; last >= 0 && pool[last].Claim(task) {
				b, pool = pool[last], pool[:last]
			} else if b, err = task.Dial(back, task.Now().Add(time.Minute)); err != nil {
				t.Error(err)
				return
			}
			b.SetDeadline(task.Now().Add(time.Minute))
			b.Write(buf[:n])
			wants = [2]Want{{Conn: b, Read: true}, {Conn: c, Read: true}}
			if _, err := task.Wait(task.Now().Add(time.Minute), wants[:]...); err != nil {
				t.Error(err)
			}
			n, _ = b.Read(buf)
			b.Park(task.Now().Add(time.Minute), surplus)
			pool = append(pool, b)
			c.Write(buf[:n])
		}
	}
	c := dial(t, listen(t, e, ListenOptions{Handler: resume}))
	msg, got := []byte("hello"), make([]byte, 5)
	request := func() {
		c.Write(msg)
		if _, err := io.ReadFull(c, got); err != nil || !slices.Equal(got, msg) {
			t.Error(got, err)
		}
	}
	request()
	if n := testing.AllocsPerRun(500, request); n >= 0.1 {
		t.Errorf("%v allocations a request", n)
	}
	do(t, e, func(*Task) {
		if len(pool) != 1 {
			t.Errorf("%d backend connections for one client", len(pool))
		}
	})
}

// A task that waits again and again for what is there already takes turns with
// the others all the same.
func TestWaitTakesTurns(t *testing.T) {
	e := start(t, KindEpoll, 1)
	stop := false // the loop's
	waiting, ended := make(chan struct{}), make(chan struct{})
	l := listen(t, e, ListenOptions{Handler: func(task *Task, c *Conn) {
		close(waiting)
		for !stop {
			if _, err := task.Wait(time.Time{}, Want{Conn: c, Write: true}); err != nil {
				break
			}
		}
		close(ended)
	}})
	dial(t, l)
	within(t, waiting, "handler")
	e.Go(func(*Task) { stop = true })
	within(t, ended, "another task's turn")
}

// Tasks that wait at the same time do so at different depths of their stacks.
func TestStackDepths(t *testing.T) {
	e := start(t, KindEpoll, 1)
	depths := make(chan int, stackDepths)
	for range stackDepths {
		e.Go(func(task *Task) {
			depths <- runtime.Callers(0, make([]uintptr, 100))
			task.Sleep(patience) // until the engine closes
		})
	}
	seen := map[int]bool{}
	for range stackDepths {
		seen[within(t, depths, "a task")] = true
	}
	if len(seen) != stackDepths {
		t.Errorf("%d tasks at %d depths", stackDepths, len(seen))
	}
}
