package loop

import (
	"runtime"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// wait fills l.events, sets l.now and returns the number of events.
//
// How it waits decides what a request costs at moderate rates. An ordinary
// system call lets the scheduler take the P away after 20 µs, and the way back
// is a futex and often another thread. A raw one keeps the P, and the price is
// that the runtime can only interrupt it by a signal: EINTR therefore means that
// somebody (a stop-the-world, or sysmon on behalf of goroutines that want the P)
// waits for this goroutine to yield. A loop that was interrupted, or that saw
// nothing but a deadline, is idle enough for the ordinary call, so an idle
// process is not woken every 10 ms and holds no P.
func (l *pollLoop) wait() int {
	timeout := l.timeout()
	if timeout == 0 {
		n, _ := l.waitRaw(0)
		l.setNow(now())
		l.beat.Store(int64(l.now))
		return n
	}
	from := now()
	l.beat.Store(-int64(from))
	if timeout > 0 {
		timeout = max(0, timeout-time.Duration(from-l.now))
	}
	n := l.waitFor(timeout)
	l.setNow(now())
	l.waited.Store(l.waited.Load() + int64(l.now-from))
	l.beat.Store(int64(l.now))
	return n
}

func (l *pollLoop) setNow(n instant) { l.now, l.wall = n, n.time() }

func (l *pollLoop) waitFor(timeout time.Duration) int {
	ms := -1
	if timeout >= 0 {
		ms = int((timeout + time.Millisecond - 1) / time.Millisecond)
	}
	if l.quiet || !l.engine.mayHoldP() {
		n := l.waitSyscall(ms)
		l.quiet = n == 0
		return n
	}
	n, errno := l.waitRaw(ms)
	if errno == unix.EINTR {
		runtime.Gosched()
	}
	l.quiet = n == 0
	return n
}

// timeout is how long the loop may wait, counted from l.now; negative: until
// something happens.
func (l *pollLoop) timeout() time.Duration {
	switch {
	case len(l.ready) > 0:
		return 0
	case l.heavyLen() > 0 && l.engine.workers.behind():
		return heavyRetry
	case l.heavyLen() > 0:
		return 0
	}
	next := l.wheel.next()
	if next == 0 {
		return -1
	}
	return max(0, time.Duration(next-l.now))
}

func (l *pollLoop) waitRaw(ms int) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(l.epoll),
		uintptr(unsafe.Pointer(&l.events)), eventsMax, uintptr(ms), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

func (l *pollLoop) waitSyscall(ms int) int {
	n, _, errno := syscall.Syscall6(unix.SYS_EPOLL_PWAIT, uintptr(l.epoll),
		uintptr(unsafe.Pointer(&l.events)), eventsMax, uintptr(ms), 0, 0)
	if errno != 0 {
		return 0
	}
	return int(n)
}
