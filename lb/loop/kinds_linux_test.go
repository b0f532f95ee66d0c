package loop

import (
	"testing"

	"golang.org/x/sys/unix"
)

// namesOwner: an error about a port in use names the process that has it.
const namesOwner = true

var kinds = []string{KindEpoll, KindGoroutine}

// holdBack keeps data in the socket, so that a FIN travels with it.
func holdBack(fd uintptr) { unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_CORK, 1) }

// stealPatiently lets Steal wait longer than a busy test machine is slow.
func stealPatiently(t testing.TB, e *Engine) {
	p, ok := e.core.(*pollEngine)
	if !ok {
		return
	}
	for i, l := range p.loops {
		done := make(chan struct{})
		e.GoOn(i, func(*Task) {
			l.stealWait = instant(patience)
			close(done)
		})
		within(t, done, "setting")
	}
}
