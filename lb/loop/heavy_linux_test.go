package loop

import (
	"errors"
	"net"
	"os"
	"sync"
	"testing"
	"time"
)

// Ready I/O goes first; heavy steps come last, one a round: who has written something before the others, those in turn as long as
// none has waited for too long, else the newest first.
func TestHeavyOrder(t *testing.T) {
	for _, c := range []struct {
		name     string
		patience time.Duration
		speaks   int // the connection that writes before its heavy step
		want     string
	}{
		{"in turn", heavyPatience, -1, "l012"},
		{"newest first", 0, -1, "l210"},
		{"begun first", heavyPatience, 1, "l102"},
		{"begun before the newest", 0, 1, "l120"},
	} {
		t.Run(c.name, func(t *testing.T) { testHeavyOrder(t, c.patience, c.speaks, c.want) })
	}
}

func testHeavyOrder(t *testing.T, patience time.Duration, speaks int, want string) {
	e := start(t, KindEpoll, 1)
	do(t, e, func(task *Task) { task.on.(*pollTask).loop.heavyPatience = instant(patience) })
	var order []byte // the loop's
	waits := make(chan struct{}, 3)
	heavy := listen(t, e, ListenOptions{Handler: func(_ *Task, c *Conn) {
		c.SetHeavy(true)
		b := make([]byte, 1)
		c.Read(b)
		if b[0] == 's' {
			c.Write(b)
		}
		waits <- struct{}{}
		c.Read(b) // resumed by what the test sends while the loop is stalled
		order = append(order, b[0])
		c.Write(b)
	}})
	light := listen(t, e, ListenOptions{Handler: func(_ *Task, c *Conn) {
		b := make([]byte, 1)
		for {
			if _, err := c.Read(b); err != nil {
				return
			}
			order = append(order, b[0])
			c.Write(b)
		}
	}})
	var conns []net.Conn
	for i := range 3 {
		c := dial(t, heavy)
		if i == speaks {
			send(t, c, "s")
			expect(t, c, "s")
		} else {
			send(t, c, "x")
		}
		within(t, waits, "the first step")
		conns = append(conns, c)
	}
	l := dial(t, light)
	send(t, l, "x")
	expect(t, l, "x")
	do(t, e, func(*Task) { order = nil })
	release := stall(t, e, 0)
	for i, c := range conns {
		send(t, c, string(rune('0'+i)))
	}
	send(t, l, "l")
	release()
	for i, c := range conns {
		expect(t, c, string(rune('0'+i)))
	}
	do(t, e, func(*Task) {
		if string(order) != want {
			t.Errorf("order %q, want %q", order, want)
		}
	})
}

// Beyond its bound the heavy queue gives up the oldest: a new connection is
// closed and counted, a task in its handshake gets an error.
func TestHeavyOverload(t *testing.T) {
	e := start(t, KindEpoll, 1)
	do(t, e, func(task *Task) { task.on.(*pollTask).loop.heavyMax = 2 })
	refused := make(chan string, 10)
	l := listen(t, e, ListenOptions{Handler: echo, Heavy: true, Refused: func(reason string) { refused <- reason }})
	waits, dropped := make(chan struct{}, 1), make(chan error, 1)
	mid := listen(t, e, ListenOptions{Handler: func(_ *Task, c *Conn) {
		c.SetHeavy(true)
		b := make([]byte, 1)
		c.Read(b)
		waits <- struct{}{}
		_, err := c.Read(b)
		dropped <- err
	}})
	inHandshake := dial(t, mid)
	send(t, inHandshake, "x")
	within(t, waits, "the first step")

	release := keepWorkersBehind(t, e)
	send(t, inHandshake, "x")
	settle(t, e, "in line", func(s Stats) bool { return s.Loops[0].HeavyQueued == 1 })
	var conns []net.Conn
	for range 4 {
		c := dial(t, l)
		send(t, c, "x")
		conns = append(conns, c)
	}
	settle(t, e, "dropped", func(s Stats) bool { return s.Loops[0].HeavyDropped == 3 })
	release()
	if err := within(t, dropped, "drop"); !errors.Is(err, ErrOverloaded) {
		t.Errorf("got %v", err)
	}
	answered := 0
	for _, c := range conns {
		if n, _ := c.Read(make([]byte, 1)); n == 1 {
			answered++
		}
	}
	if answered != 2 {
		t.Errorf("%d of 4 answered, want 2", answered)
	}
	for range 2 {
		if r := within(t, refused, "refusal"); r != RefusedOverload {
			t.Errorf("reason %q", r)
		}
	}
	settle(t, e, "served", func(s Stats) bool { return s.Loops[0].HeavyQueued == 0 })
}

// keepWorkersBehind makes the loops pause their heavy steps.
func keepWorkersBehind(t testing.TB, e *Engine) (release func()) {
	block := make(chan struct{})
	for range offloadsWaitingMax + 2 {
		e.Go(func(task *Task) { task.Offload(func() { <-block }) })
	}
	settle(t, e, "workers behind", func(Stats) bool { return pollOf(e).workers.behind() })
	release = sync.OnceFunc(func() { close(block) })
	t.Cleanup(release)
	return release
}

// While the workers are behind, heavy steps wait; afterwards they go on.
func TestHeavyWaitsForWorkers(t *testing.T) {
	e := start(t, KindEpoll, 1)
	l := listen(t, e, ListenOptions{Handler: echo, Heavy: true})
	release := keepWorkersBehind(t, e)
	c := dial(t, l)
	send(t, c, "x")
	settle(t, e, "in line", func(s Stats) bool { return s.Loops[0].HeavyQueued == 1 })
	c.SetReadDeadline(time.Now().Add(30 * time.Millisecond))
	if n, err := c.Read(make([]byte, 1)); err == nil {
		t.Errorf("%d bytes while the workers are behind", n)
	}
	release()
	c.SetReadDeadline(time.Now().Add(patience))
	expect(t, c, "x")
}

// A task whose heavy step waits in line still meets its deadline.
func TestHeavyDeadline(t *testing.T) {
	e := start(t, KindEpoll, 1)
	got := make(chan error, 1)
	l := listen(t, e, ListenOptions{Handler: func(_ *Task, c *Conn) {
		c.SetHeavy(true)
		b := make([]byte, 1)
		c.Read(b)
		c.Write(b)
		c.SetReadDeadline(time.Now().Add(30 * time.Millisecond))
		_, err := c.Read(b)
		got <- err
	}})
	c := dial(t, l)
	send(t, c, "x")
	expect(t, c, "x")
	keepWorkersBehind(t, e)
	send(t, c, "y")
	if err := within(t, got, "deadline"); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	settle(t, e, "line empty", func(s Stats) bool { return s.Loops[0].HeavyQueued == 0 })
}
