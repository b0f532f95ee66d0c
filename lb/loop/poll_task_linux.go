package loop

import (
	"fmt"
	"net/netip"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

type taskState uint8

// A task's states:
//
//	new ------> running <----> blocked     waits for sockets, time or an answer
//	  \         ^  |  ^------> offloaded   waits for a worker
//	   ready/heavy |
//	   (in line)   done
//
// offloaded is a wait that neither a deadline nor Close ends.
const (
	stateReady taskState = iota
	stateHeavy
	stateRunning
	stateBlocked
	stateOffloaded
	stateDone
)

// pollTask is a task of a pollLoop. The struct is reused for later tasks.
type pollTask struct {
	Task
	loop     *pollLoop
	co       *coroutine // nil until first resumed
	state    taskState
	steps    int32 // reads and writes since last resumed
	outcome  error // what block returns
	waitsFor *Signal
	deadline instant
	timer    timer
	index    int       // in loop.live
	owned    *pollConn // head of a list

	fn      func(*Task) // what to run: fn, or handler with conn
	handler Handler
	conn    *pollConn
	first   bool // conn has just been accepted

	older, newer *pollTask // in the heavy queue
	heavySince   instant   // when it got there

	job      func() // being offloaded
	jobPanic any
	jobExit  bool   // the job called runtime.Goexit
	comeBack func() // posted when the job is done; made once
}

func (l *pollLoop) newTask() *pollTask {
	var t *pollTask
	if n := len(l.freeTasks); n > 0 {
		t, l.freeTasks = l.freeTasks[n-1], l.freeTasks[:n-1]
	} else {
		t = &pollTask{loop: l}
		t.Task = Task{on: t, loop: l.index}
		t.timer.target = t
		t.comeBack = func() { t.enqueue(false) }
	}
	t.index = len(l.live)
	l.live = append(l.live, t)
	l.tasks.Add(1)
	return t
}

func (l *pollLoop) spawn(fn func(*Task)) {
	t := l.newTask()
	t.fn = fn
	t.enqueue(false)
}

// handle starts a task that owns c; first says that c has just been accepted.
func (l *pollLoop) handle(c *pollConn, h Handler, heavy, first bool) {
	t := l.newTask()
	t.handler, t.conn, t.first = h, c, first
	t.own(c)
	t.enqueue(heavy)
}

func (t *pollTask) call() {
	if t.fn != nil {
		t.fn(&t.Task)
		return
	}
	t.handler(&t.Task, &t.conn.Conn)
}

// resume runs the task until it yields or ends.
func (l *pollLoop) resume(t *pollTask) {
	if t.co == nil {
		t.co = l.takeCoroutine()
		t.co.task = t
	}
	t.state, t.steps = stateRunning, 0
	l.current = t
	t.co.next()
	l.current = nil
	if t.state == stateDone {
		l.retire(t)
	}
}

func (l *pollLoop) takeCoroutine() *coroutine {
	if n := len(l.freeCoroutines); n > 0 {
		co := l.freeCoroutines[n-1]
		l.freeCoroutines = l.freeCoroutines[:n-1]
		return co
	}
	l.coroutines++
	return newCoroutine(l.coroutines)
}

// retire cleans up after a task that has ended, or that was never resumed.
func (l *pollLoop) retire(t *pollTask) {
	for t.owned != nil {
		t.owned.shut()
	}
	if co := t.co; co != nil {
		t.co, co.task = nil, nil
		switch {
		case co.dead:
			l.engine.group.Go(func() { co.next() })
		case len(l.freeCoroutines) < coroutinesFreeMax:
			l.freeCoroutines = append(l.freeCoroutines, co)
		default:
			co.stop()
		}
	}
	last := l.live[len(l.live)-1]
	l.live[t.index], last.index = last, t.index
	l.live[len(l.live)-1] = nil
	l.live = l.live[:len(l.live)-1]
	l.tasks.Add(-1)
	t.first = false
	t.fn, t.handler, t.conn, t.outcome, t.deadline = nil, nil, nil, nil, 0
	if len(l.freeTasks) < coroutinesFreeMax {
		l.freeTasks = append(l.freeTasks, t)
	} else {
		l.wheel.disarm(&t.timer)
	}
}

// enqueue puts the task in line to be resumed.
func (t *pollTask) enqueue(heavy bool) {
	l := t.loop
	if !heavy {
		t.state = stateReady
		l.ready = append(l.ready, t)
		return
	}
	t.state = stateHeavy
	t.heavyLine().push(t, l.now)
	if l.heavyLen() > l.heavyMax {
		oldest := &l.heavy
		if oldest.len() == 0 {
			oldest = &l.begun
		}
		l.dropHeavy(oldest.popOldest())
	}
	l.heavyQueued.Store(int64(l.heavyLen()))
}

// heavyLine is where the task's heavy steps wait: what it has written on its
// connection was an expensive step.
func (t *pollTask) heavyLine() *heavyQueue {
	if t.conn != nil && t.conn.spoken {
		return &t.loop.begun
	}
	return &t.loop.heavy
}

// dropHeavy gives up a heavy step: a connection that has just been accepted is
// closed, another task learns it as an error. A parked connection's resume must
// run, so it only loses its place.
func (l *pollLoop) dropHeavy(t *pollTask) {
	l.heavyDropped.Add(1)
	if t.co == nil && t.first {
		t.conn.admit.refuse(RefusedOverload)
		l.retire(t)
		return
	}
	t.outcome = ErrOverloaded
	t.enqueue(false)
}

// wake ends block, which returns err.
func (t *pollTask) wake(err error, heavy bool) {
	if t.state == stateBlocked {
		t.outcome = err
		t.enqueue(heavy)
	}
}

// expire is called by the wheel.
func (t *pollTask) expire(now instant) {
	waits := t.state == stateBlocked || t.state == stateHeavy
	switch {
	case !waits || t.deadline == 0:
	case !t.deadline.passed(now):
		t.loop.wheel.arm(&t.timer, t.deadline)
	case t.state == stateHeavy:
		t.heavyLine().remove(t)
		t.loop.heavyQueued.Store(int64(t.loop.heavyLen()))
		t.outcome = errDeadline
		t.enqueue(false)
	default:
		t.wake(errDeadline, false)
	}
}

// block yields until the task is woken, or the deadline (0: none).
func (t *pollTask) block(deadline instant) error {
	switch {
	case t.loop.closing:
		return ErrClosed
	case deadline.passed(t.loop.now):
		return errDeadline
	case deadline != 0:
		t.loop.wheel.arm(&t.timer, deadline)
	}
	t.deadline = deadline
	t.state = stateBlocked
	t.co.yield(struct{}{})
	err := t.outcome
	t.outcome, t.deadline = nil, 0
	return err
}

// pass goes to the end of the line.
func (t *pollTask) pass() error {
	if t.loop.closing {
		return ErrClosed
	}
	t.enqueue(false)
	t.co.yield(struct{}{})
	return nil
}

// step counts a read or write of n bytes, and lets other tasks run if this one
// has used up its turn.
func (t *pollTask) step(n int) {
	if t.steps += int32(1 + n/(BufferBytes+1)); t.steps >= stepOperations {
		_ = t.pass() // the next call notices that the engine closes
	}
}

func (t *pollTask) now() instant         { return t.loop.now }
func (t *pollTask) wall() time.Time      { return t.loop.wall }
func (t *pollTask) spawn(fn func(*Task)) { t.loop.spawn(fn) }

func (t *pollTask) sleep(until instant) error {
	if err := t.block(until); err != errDeadline {
		return err
	}
	return nil
}

func (t *pollTask) offload(fn func()) {
	t.job = fn
	t.state = stateOffloaded
	t.loop.engine.workers.submit(t)
	t.co.yield(struct{}{})
	value, exit := t.jobPanic, t.jobExit
	t.job, t.jobPanic, t.jobExit = nil, nil, false
	switch {
	case exit:
		runtime.Goexit()
	case value != nil:
		panic(fmt.Sprintf("offloaded call: %v", value))
	}
}

// wait returns when one of wants is ready; see Task.Wait.
func (t *pollTask) wait(deadline instant, wants []Want) (int, error) {
	for {
		for i := range wants {
			ready, err := wants[i].ready()
			if err != nil {
				return i, err
			}
			if ready {
				t.step(0) // a caller that does nothing about it must not hold the loop
				return i, nil
			}
		}
		t.announce(wants)
		err := t.block(deadline)
		t.waitsFor = nil
		for i := range wants {
			if w := &wants[i]; w.Signal == nil {
				w.Conn.on.(*pollConn).waits = 0
			}
		}
		if err != nil {
			return -1, err
		}
	}
}

// ready reports whether there is nothing to wait for.
func (w *Want) ready() (bool, error) {
	if w.Signal != nil {
		return w.Signal.raised.Load(), nil
	}
	c := w.Conn.on.(*pollConn)
	if err := c.usable(); err != nil {
		return false, err
	}
	return w.Read && c.readable || w.Broken && c.failed || w.Ended && c.atEnd() || w.Write && c.drained(), nil
}

// announce tells who brings what is wanted that the task waits for it.
func (t *pollTask) announce(wants []Want) {
	for i := range wants {
		w := &wants[i]
		if w.Signal != nil {
			t.waitsFor = w.Signal
			continue
		}
		w.Conn.on.(*pollConn).want(w)
	}
}

// waker posts to the loop. By then the struct may be another task's: that does
// not wait for this signal.
func (t *pollTask) waker(s *Signal) func() {
	return func() {
		t.loop.post(func() {
			if t.waitsFor == s {
				t.wake(nil, false)
			}
		})
	}
}

func (t *pollTask) holds(c socket) bool {
	return c.(*pollConn).loop == t.loop && t.loop.current == t
}

func (t *pollTask) dial(addr netip.AddrPort, deadline instant) (*Conn, error) {
	if t.loop.closing {
		return nil, ErrClosed
	}
	fd, errno := connect(addr)
	if errno != nil && errno != unix.EINPROGRESS {
		return nil, dialError(addr, "connect", errno)
	}
	c, err := t.loop.adopt(fd, addr, nil)
	if err != nil {
		return nil, dialError(addr, "epoll_ctl", err)
	}
	t.own(c)
	if errno == nil {
		return &c.Conn, nil
	}
	c.writable = false
	for !c.writable {
		if err := c.await(wantWrite, deadline); err != nil {
			c.shut()
			return nil, dialError(addr, "connect", err)
		}
	}
	if err := connected(fd); err != nil {
		c.shut()
		return nil, dialError(addr, "connect", err)
	}
	return &c.Conn, nil
}

func (t *pollTask) own(c *pollConn) {
	c.task = t
	c.ownedPrev, c.ownedNext = nil, t.owned
	if t.owned != nil {
		t.owned.ownedPrev = c
	}
	t.owned = c
}

func (t *pollTask) disown(c *pollConn) {
	if c.ownedNext != nil {
		c.ownedNext.ownedPrev = c.ownedPrev
	}
	if c.ownedPrev != nil {
		c.ownedPrev.ownedNext = c.ownedNext
	} else {
		t.owned = c.ownedNext
	}
	c.ownedPrev, c.ownedNext, c.task = nil, nil, nil
}

func (t *pollTask) buffers() *buffers { return &t.loop.buffers }
