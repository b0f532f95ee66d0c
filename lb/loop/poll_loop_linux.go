package loop

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// A pollLoop is one epoll instance and the goroutine that serves it. A round is:
//
//  1. wait for events, for a deadline, or for a post from another goroutine
//  2. note each event on its connection and wake the task that waits for it;
//     run what was posted
//  3. fire due deadlines
//  4. resume every task that is ready
//  5. resume one heavy task
//
// All fields below the inbox belong to the loop's goroutine and the task that it
// is resuming.
type pollLoop struct {
	counters
	engine *pollEngine
	index  int
	epoll  int
	bell   int           // eventfd; edge-triggered, so it is never read
	beat   atomic.Int64  // instant since when the loop runs; negative: waits
	waited atomic.Int64  // nanoseconds spent waiting
	ended  chan struct{} // closed when run is about to return

	inbox struct {
		sync.Mutex
		posts []func()
		rung  bool // the bell has been rung for what is there
		shut  bool // the loop has ended
	}

	now     instant
	wall    time.Time // now: asked for a dozen times for each request
	events  [eventsMax]unix.EpollEvent
	slots   []slot
	vacant  []uint32
	wheel   wheel
	ready   []*pollTask // to be resumed, in order
	batch   []*pollTask // being resumed
	heavy   heavyQueue  // steps that may be given up
	begun   heavyQueue  // steps of tasks that have had an expensive one: they go first
	current *pollTask
	live    []*pollTask
	posts   []func() // being run
	quiet   bool     // the last wait brought nothing
	closing bool

	// The constants of these names, but for tests.
	heavyMax      int
	heavyPatience instant
	stealWait     instant

	freeTasks      []*pollTask
	freeCoroutines []*coroutine
	coroutines     int // made
	buffers        buffers
}

// A slot is what the kernel's event names. The generation tells an event for
// what has left the slot.
type slot struct {
	generation uint32
	target     pollTarget
}

type pollTarget interface {
	event(l *pollLoop, flags uint32)
}

const bellSlot = -1

func newPollLoop(e *pollEngine, index int) (*pollLoop, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make loop %d: %w", index, os.NewSyscallError("epoll_create1", err))
	}
	bell, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(epoll)
		return nil, fmt.Errorf("make loop %d: %w", index, os.NewSyscallError("eventfd2", err))
	}
	l := &pollLoop{
		engine: e, index: index, epoll: epoll, bell: bell, ended: make(chan struct{}),
		heavyMax: heavyMax, heavyPatience: instant(heavyPatience), stealWait: instant(stealWait),
	}
	l.setNow(now())
	l.wheel.advance(l.now)
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: bellSlot}
	if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, bell, &ev); err != nil {
		l.closeFiles()
		return nil, fmt.Errorf("make loop %d: %w", index, os.NewSyscallError("epoll_ctl", err))
	}
	return l, nil
}

func (l *pollLoop) closeFiles() {
	unix.Close(l.epoll)
	unix.Close(l.bell)
}

func (l *pollLoop) run() {
	for !l.finished() {
		n := l.wait()
		l.rounds.Add(1)
		for i := range n {
			l.dispatch(&l.events[i])
		}
		l.wheel.advance(l.now)
		l.runReady()
		l.runHeavy()
	}
	l.end()
}

func (l *pollLoop) dispatch(ev *unix.EpollEvent) {
	if ev.Fd == bellSlot {
		l.runPosts()
		return
	}
	if s := &l.slots[ev.Fd]; s.generation == uint32(ev.Pad) && s.target != nil {
		s.target.event(l, ev.Events)
	}
}

// register adds a file to the epoll set, once for its life.
func (l *pollLoop) register(fd int, flags uint32, target pollTarget) (uint32, error) {
	var i uint32
	if n := len(l.vacant); n > 0 {
		i, l.vacant = l.vacant[n-1], l.vacant[:n-1]
	} else {
		i = uint32(len(l.slots))
		l.slots = append(l.slots, slot{})
	}
	ev := unix.EpollEvent{Events: flags, Fd: int32(i), Pad: int32(l.slots[i].generation)}
	if err := unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		l.vacant = append(l.vacant, i)
		return 0, os.NewSyscallError("epoll_ctl", err)
	}
	l.slots[i].target = target
	return i, nil
}

// forget frees a slot. The file is closed, or taken out of the epoll set, by the
// caller.
func (l *pollLoop) forget(i uint32) {
	l.slots[i].target = nil
	l.slots[i].generation++
	l.vacant = append(l.vacant, i)
}

// post has fn run by the loop's goroutine; it reports false if the loop has
// ended. fn must not wait. Any goroutine may call it.
func (l *pollLoop) post(fn func()) bool {
	l.inbox.Lock()
	defer l.inbox.Unlock()
	if l.inbox.shut {
		return false
	}
	l.inbox.posts = append(l.inbox.posts, fn)
	if !l.inbox.rung {
		l.inbox.rung = true
		ring(l.bell)
	}
	return true
}

func (l *pollLoop) runPosts() {
	l.inbox.Lock()
	l.posts, l.inbox.posts = l.inbox.posts, l.posts[:0]
	l.inbox.rung = false
	l.inbox.Unlock()
	for i, fn := range l.posts {
		l.posts[i] = nil
		fn()
	}
}

// runReady resumes what is ready now; what becomes ready meanwhile waits for the
// next round, so that no task can keep the loop from its events.
func (l *pollLoop) runReady() {
	l.batch, l.ready = l.ready, l.batch[:0]
	for i, t := range l.batch {
		l.batch[i] = nil
		l.resume(t)
	}
}

// runHeavy resumes the task whose turn it is. What was begun is finished first: a
// handshake's first step costs nine tenths of it, and in a storm newer clients
// would always overtake the second.
func (l *pollLoop) runHeavy() {
	var t *pollTask
	switch {
	case l.heavyLen() == 0 || l.engine.workers.behind():
		return
	case l.begun.len() > 0:
		t = l.begun.popOldest()
	default:
		t = l.heavy.pop(l.now, l.heavyPatience)
	}
	l.heavyQueued.Store(int64(l.heavyLen()))
	l.resume(t)
}

func (l *pollLoop) heavyLen() int { return l.heavy.len() + l.begun.len() }

// beginClose wakes everything that waits; each call it returns to gets
// ErrClosed, so the tasks come to their ends.
func (l *pollLoop) beginClose() {
	l.closing = true
	for _, s := range l.slots {
		switch target := s.target.(type) {
		case *listenSocket:
			target.close(l)
		case *pollConn:
			if target.parked {
				target.unpark()
			}
		}
	}
	for _, t := range l.live {
		if t.state == stateBlocked {
			t.wake(ErrClosed, false)
		}
	}
}

// finished reports whether the loop has nothing left to live for, and then takes
// no more posts.
func (l *pollLoop) finished() bool {
	if !l.closing || len(l.live) > 0 {
		return false
	}
	l.inbox.Lock()
	defer l.inbox.Unlock()
	l.inbox.shut = len(l.inbox.posts) == 0
	return l.inbox.shut
}

func (l *pollLoop) end() {
	for _, co := range l.freeCoroutines {
		co.stop()
	}
	close(l.ended)
}
