package loop

import (
	"io"
	"net"
	"os"
	"runtime"
	"testing"
	"time"
)

// TestBroken: a reset ends a wait for Broken; data and a FIN do not.
func TestBroken(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		e := start(t, kind, 1)
		waits, woken := make(chan error, 3), make(chan bool, 1)
		l := listen(t, e, ListenOptions{Handler: func(task *Task, c *Conn) {
			c.SetNonblocking(true)
			for range 2 {
				_, err := task.Wait(task.Now().Add(20*time.Millisecond), Want{Conn: c, Broken: true})
				waits <- err
			}
			_, err := task.Wait(time.Time{}, Want{Conn: c, Broken: true})
			waits <- err
			woken <- c.Broken()
		}})
		c := dial(t, l)
		if err := within(t, waits, "time-out"); err != os.ErrDeadlineExceeded {
			t.Errorf("a silent peer: %v", err)
		}
		c.CloseWrite()
		if err := within(t, waits, "time-out"); err != os.ErrDeadlineExceeded {
			t.Errorf("a peer that has ended its side: %v", err)
		}
		c.SetLinger(0)
		c.Close()
		if kind == KindGoroutine {
			return // it has read the FIN, behind which a net.Conn shows nothing: the engine's end wakes the task
		}
		if err := within(t, waits, "wake-up"); err != nil {
			t.Errorf("a reset: %v", err)
		}
		if !within(t, woken, "end") {
			t.Error("not broken after a reset")
		}
	})
}

// TestBrokenAtOnce is the reset without a FIN before it.
func TestBrokenAtOnce(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		e := start(t, kind, 1)
		began, woken := make(chan struct{}), make(chan bool, 1)
		l := listen(t, e, ListenOptions{Handler: func(task *Task, c *Conn) {
			c.SetNonblocking(true)
			close(began)
			_, err := task.Wait(time.Time{}, Want{Conn: c, Broken: true})
			woken <- err == nil && c.Broken()
		}})
		c := dial(t, l)
		<-began
		c.SetLinger(0)
		c.Close()
		if !within(t, woken, "wake-up") {
			t.Error("not broken after a reset")
		}
	})
}

// TestUnacked: what the peer has not acknowledged is counted, also what the kernel holds, and falls as it reads.
func TestUnacked(t *testing.T) {
	if runtime.GOOS != "linux" {
		return // the system does not tell
	}
	onEach(t, func(t *testing.T, kind string) {
		const size = 12 << 20 // more than the kernel takes on both sides
		e := start(t, kind, 1)
		full, reset := make(chan int, 2), make(chan error, 1)
		l := listen(t, e, ListenOptions{Handler: func(task *Task, c *Conn) {
			c.SetQueued(2 * size)
			c.Write(make([]byte, size))
			task.Sleep(50 * time.Millisecond)
			full <- c.Unacked()
			for c.Unacked() > size/2 {
				if _, err := task.Wait(task.Now().Add(time.Millisecond), Want{Conn: c, Write: true}); err == ErrClosed {
					return
				}
			}
			full <- c.Unacked()
			reset <- c.Reset()
		}})
		c := dial(t, l)
		before := within(t, full, "first look")
		if before < size/2 || before > 2*size {
			t.Errorf("%d of %d bytes are not acknowledged", before, size)
		}
		if _, err := io.ReadFull(c, make([]byte, size/2)); err != nil {
			t.Fatal(err)
		}
		if after := within(t, full, "second look"); after > size/2 {
			t.Errorf("%d of %d bytes are not acknowledged, half has been read", after, size)
		}
		if err := within(t, reset, "reset"); err != nil {
			t.Error(err)
		}
		if _, err := io.Copy(io.Discard, c); err == nil {
			t.Error("an end in order, not a reset")
		} else if e, ok := err.(net.Error); ok && e.Timeout() {
			t.Error("no end")
		}
	})
}
