package loop

import (
	"net/netip"
	"time"
)

// A Task is one flow of straight-line code. It belongs to one loop for its whole
// life, and all tasks of a loop take turns: between two calls that wait, a task
// may use whatever belongs to its loop without a lock. It must not block in any
// other way (channel, contended mutex, file): that holds up every connection of
// the loop. Its methods may only be called by the task itself.
type Task struct {
	on    strand
	loop  int
	wants []Want
}

// A Want names what a task waits for: data to read (or an end, or an error), that
// everything Conn has queued has been handed to the kernel, or that Conn has
// become Broken, which comes with both of the others too, or Ended. Wait itself
// sends what is queued. With Signal it is that and nothing else: Conn is nil then.
type Want struct {
	Conn        *Conn
	Read, Write bool
	Broken      bool
	Ended       bool
	Signal      *Signal
}

// Loop is the number of the task's loop, from 0.
func (t *Task) Loop() int { return t.loop }

// Now is the time at the start of the loop's current round: good for deadlines,
// free of cost.
func (t *Task) Now() time.Time { return t.on.wall() }

// Sleep lets other tasks run for d, and some 4 ms longer; with d = 0 until each
// that is ready has had its turn. It returns ErrClosed if the engine closes.
func (t *Task) Sleep(d time.Duration) error {
	if d <= 0 {
		return t.on.pass()
	}
	return t.on.sleep(t.on.now() + instant(d))
}

// Spawn runs fn as a new task of the same loop, after the caller has yielded.
func (t *Task) Spawn(fn func(*Task)) { t.on.spawn(fn) }

// Offload runs fn on a worker goroutine while other tasks of the loop go on, and
// returns when fn has. Use it for what takes long or blocks. A panic in fn is
// one in the task.
func (t *Task) Offload(fn func()) { t.on.offload(fn) }

// Dial opens a TCP connection. A zero deadline leaves it to the kernel to give
// up. The error wraps os.ErrDeadlineExceeded or the kernel's reason.
func (t *Task) Dial(addr netip.AddrPort, deadline time.Time) (*Conn, error) {
	return t.on.dial(addr, at(deadline))
}

// Wait returns the index of the first of ws that is ready, at once if one is.
// It returns os.ErrDeadlineExceeded at the deadline (zero: none). Read readiness
// is a hint: set the connections to nonblocking, and read them until they would
// block, before waiting. A tls.Conn may hold decrypted data that no socket
// knows of.
func (t *Task) Wait(deadline time.Time, ws ...Want) (int, error) {
	t.wants = append(t.wants[:0], ws...)
	i, err := t.on.wait(at(deadline), t.wants)
	clear(t.wants)
	return i, err
}

// Signal makes a signal that this task alone may wait for.
func (t *Task) Signal() *Signal {
	s := &Signal{}
	s.wake = t.on.waker(s)
	return s
}

// Steal asks other loops, in the order given, for an idle connection. On each,
// take runs on that loop, with its number, and returns a parked connection that
// it takes out of its keeping, or nil. The first one that is still fresh becomes
// this task's; one that has had an event meanwhile is left to its resume handler
// and take is asked again. Steal returns nil if there is none, or if a loop does
// not answer within 20 ms.
func (t *Task) Steal(take func(loop int) *Conn, loops ...int) *Conn {
	return t.on.steal(take, loops)
}

// Buffer returns a buffer of BufferBytes with any content. Give it back with
// Release; one that is not is left to the garbage collector.
func (t *Task) Buffer() []byte { return t.on.buffers().get() }

// Bulk returns a buffer of BulkBytes with any content, or nil if the loop has
// given out too many. Every one must be given back with ReleaseBulk.
func (t *Task) Bulk() []byte { return t.on.buffers().getBulk() }

// ReleaseBulk gives back a buffer from Bulk. The caller must not use it
// afterwards.
func (t *Task) ReleaseBulk(b []byte) { t.on.buffers().putBulk(b) }

// Release gives back a buffer from Buffer; nil is ignored. The caller must not
// use it afterwards.
func (t *Task) Release(b []byte) {
	if cap(b) >= BufferBytes {
		t.on.buffers().put(b)
	}
}
