package loop

import (
	"net"
	"sync/atomic"
	"time"
)

var twinKeepAlive = net.KeepAliveConfig{Enable: true, Idle: keepAliveIdle, Interval: keepAliveInterval}

type twinListener struct {
	*admission
	engine *twinEngine
	ln     net.Listener
	done   chan struct{} // closed when serve has returned
	closed atomic.Bool
}

func (l *twinListener) addr() net.Addr       { return l.ln.Addr() }
func (l *twinListener) limit() *atomic.Int64 { return &l.max }

func (l *twinListener) deferAccept(d time.Duration) error {
	if d == 0 {
		return nil
	}
	return ErrNoDefer
}

func (l *twinListener) close() {
	if !l.closed.Swap(true) {
		l.ln.Close()
		l.engine.mu.Lock()
		delete(l.engine.listeners, l)
		l.engine.mu.Unlock()
	}
	<-l.done
}

// serve accepts until the listener closes.
func (l *twinListener) serve() {
	defer l.engine.group.Done()
	defer close(l.done)
	for {
		nc, err := l.ln.Accept()
		switch {
		case err == nil:
			l.handle(nc)
		case l.closed.Load() || l.engine.ctx.Err() != nil:
			return
		default:
			l.engine.loops[0].acceptErrors.Add(1)
			l.refuse(RefusedOpenFiles)
			select {
			case <-l.engine.ctx.Done():
			case <-time.After(acceptBackoff):
			}
		}
	}
}

func (l *twinListener) handle(nc net.Conn) {
	if !l.admit() {
		nc.Close()
		return
	}
	loop := l.engine.leastLoaded()
	loop.accepted.Add(1)
	loop.connections.Add(1)
	loop.served.Add(1)
	loop.start(func(t *Task) {
		c := newTwinConn(t.on.(*twinTask), nc, l.admission)
		l.opts.Handler(t, &c.Conn)
	})
}
