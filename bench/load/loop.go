//go:build linux

package load

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	eventsMax = 256
	// readBytesMax is one read. More than a TLS record, so that one read takes one.
	readBytesMax = 64 << 10
	// sweepEvery is how often clients are asked whether their time is up; a timeout is late by as much at most.
	sweepEvery = 20 * time.Millisecond
	// gatherMax is how long the window may wait for idle connections.
	gatherMax = 20 * time.Second
	tickEvery = 100 * time.Millisecond
	// The first clients start at once, the others at this rate.
	startAtOnce    = 128
	startPerSecond = 2000
)

// Event is a moment that the lab wants to know about.
type Event string

const (
	// Begin is the first moment that counts.
	Begin Event = "begin"
	// End is the first that does not count any more.
	End Event = "end"
	// Tick comes between the others, several times a second.
	Tick Event = "tick"
)

// Progress is reported while a run goes on.
type Progress struct {
	Event Event
	Time  time.Time
	// Total is how many requests have succeeded since the start of the run, the warm-up included.
	Total uint64
	// CPU is the processor time of this process so far.
	CPU time.Duration
}

// loop is one run. All of it belongs to one thread, the coroutines included.
type loop struct {
	epoll      int
	flows      []*flow
	clients    []*client
	started    int
	byFD       []*client
	now        time.Time // of this round
	start      time.Time
	begin, end time.Time // of the window
	measure    time.Duration
	gathering  bool // idle connections are still missing: begin is the latest possible one
	nextSweep  time.Time
	nextTick   time.Time
	buf        [readBytesMax]byte // lent to the client that runs
}

// Run offers the load, and reports when the measured window begins and ends and how far it is in between. A client that fails goes on with a new connection: only a
// wrong Spec or a lack of descriptors ends a run early.
func Run(s Spec, report func(Progress)) ([]Result, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create epoll instance: %w", err)
	}
	l := &loop{epoll: epoll, now: time.Now()}
	defer l.close()
	l.start = l.now
	l.begin, l.measure = l.now.Add(s.Warm), s.Measure
	if slices.ContainsFunc(s.Flows, Flow.idle) {
		l.begin, l.gathering = l.begin.Add(gatherMax), true
	}
	l.end = l.begin.Add(s.Measure)
	for _, f := range s.Flows {
		if err := l.add(f); err != nil {
			return nil, fmt.Errorf("flow %q: %w", f.Name, err)
		}
	}
	if err := l.run(report); err != nil {
		return nil, err
	}
	var results []Result
	for _, f := range l.flows {
		results = append(results, f.result(s.Measure))
	}
	return results, nil
}

// run goes through warm-up, window, and the answers that come after it:
//  1. start clients, not all at once: a proxy's accept queue is short
//  2. wait for sockets, until the next moment that matters
//  3. resume what is ready, whose number is due, whose time is up
func (l *loop) run(report func(Progress)) error {
	events := make([]unix.EpollEvent, eventsMax)
	begun, ended := false, false
	for {
		l.startClients()
		n, err := wait(l.epoll, events, l.pause())
		if err != nil {
			return fmt.Errorf("wait for events: %w", err)
		}
		l.now = time.Now()
		l.gather()
		if !begun && !l.now.Before(l.begin) {
			begun = true
			report(l.progress(Begin))
		}
		if !ended && !l.now.Before(l.end) {
			ended = true
			report(l.progress(End))
		}
		if !l.now.Before(l.nextTick) {
			l.nextTick = l.now.Add(tickEvery)
			report(l.progress(Tick))
		}
		for i := range n {
			l.ready(int(events[i].Fd), events[i].Events)
		}
		l.wakeSleepers()
		l.sweep()
		if ended && !l.outstanding() {
			return nil
		}
	}
}

// gather lets the window begin when the idle connections are there, and the warm-up has passed since.
func (l *loop) gather() {
	if !l.gathering {
		return
	}
	for _, f := range l.flows {
		if f.idle() && f.held < uint64(f.Clients) {
			return
		}
	}
	l.gathering = false
	if begin := l.now.Add(l.begin.Sub(l.start) - gatherMax); begin.Before(l.begin) {
		l.begin, l.end = begin, begin.Add(l.measure)
	}
}

func (l *loop) progress(e Event) Progress {
	p := Progress{Event: e, Time: l.now}
	var cpu unix.Timespec
	if unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &cpu) == nil {
		p.CPU = time.Duration(cpu.Nano())
	}
	for _, f := range l.flows {
		p.Total += f.total
	}
	return p
}

// startClients starts as many as are due by now. In an open loop a client that is started sleeps until its number.
func (l *loop) startClients() {
	due := startAtOnce + int(time.Since(l.start).Seconds()*startPerSecond)
	for l.started < min(due, len(l.clients)) {
		l.started++
		l.clients[l.started-1].resume()
	}
}

// pause is how long nothing can happen by itself.
func (l *loop) pause() time.Duration {
	next := l.nextSweep
	if l.now.Before(l.begin) && l.begin.Before(next) {
		next = l.begin
	} else if l.now.Before(l.end) && l.end.Before(next) {
		next = l.end
	}
	for _, f := range l.flows {
		if c := f.nextSleeper(); c != nil && c.intended.Before(next) {
			next = c.intended
		}
	}
	return max(0, time.Until(next))
}

func (l *loop) ready(fd int, events uint32) {
	c := l.byFD[fd]
	if c == nil {
		return
	}
	if events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		c.ended = true
	}
	if events&^unix.EPOLLOUT != 0 {
		c.readable = true
	}
	if events&^unix.EPOLLIN != 0 {
		c.writable = true
	}
	if c.wants == wantsSocket || c.wants == wantsEnd && c.ended {
		c.resume()
	}
}

func (l *loop) wakeSleepers() {
	for _, f := range l.flows {
		for c := f.nextSleeper(); c != nil && !c.intended.After(l.now); c = f.nextSleeper() {
			f.schedule.pop()
			c.resume()
		}
	}
}

// sweep resumes the clients whose request has timed out, and those whose pause is over.
func (l *loop) sweep() {
	if l.now.Before(l.nextSweep) {
		return
	}
	l.nextSweep = l.now.Add(sweepEvery)
	for _, c := range l.clients {
		if c.wants == wantsTime && c.paused.Before(l.now) {
			c.resume()
		}
		if c.wants == wantsSocket && !c.deadline.IsZero() && c.deadline.Before(l.now) {
			c.expired = true
			c.resume()
		}
	}
}

// outstanding says whether an answer that would count may still come.
func (l *loop) outstanding() bool {
	for _, f := range l.flows {
		if f.schedule != nil && (f.settled < f.offered || f.schedule.due().Before(l.end)) {
			return true
		}
	}
	return false
}

func (l *loop) watch(c *client) error {
	for c.fd >= len(l.byFD) {
		l.byFD = append(l.byFD, nil)
	}
	l.byFD[c.fd] = c
	return unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, c.fd, &unix.EpollEvent{
		Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET,
		Fd:     int32(c.fd),
	})
}

func (l *loop) close() {
	for _, c := range l.clients {
		c.stop()
	}
	_ = unix.Close(l.epoll)
}

// wait is epoll_wait with a pause in nanoseconds: at 8,000 requests a second a millisecond is too coarse.
func wait(epoll int, events []unix.EpollEvent, pause time.Duration) (int, error) {
	timeout := unix.NsecToTimespec(int64(pause))
	n, _, errno := unix.Syscall6(unix.SYS_EPOLL_PWAIT2, uintptr(epoll), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)),
		uintptr(unsafe.Pointer(&timeout)), 0, 0)
	if errors.Is(errno, unix.EINTR) {
		return 0, nil
	}
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
