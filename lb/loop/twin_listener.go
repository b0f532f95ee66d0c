package loop

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

var twinKeepAlive = net.KeepAliveConfig{Enable: true, Idle: keepAliveIdle, Interval: keepAliveInterval}

type twinListener struct {
	*admission
	engine  *twinEngine
	sockets []net.Listener // one, but for inherited ones
	serving sync.WaitGroup // a goroutine for each socket
	closed  atomic.Bool
	begun   bool // the engine's lock is for it
}

func (l *twinListener) addr() net.Addr       { return l.sockets[0].Addr() }
func (l *twinListener) limit() *atomic.Int64 { return &l.max }

func (l *twinListener) bind(addr *net.TCPAddr) error {
	network := "tcp"
	if addr.IP.To4() != nil {
		network = "tcp4"
	}
	ln, err := (&net.ListenConfig{KeepAliveConfig: twinKeepAlive}).Listen(l.engine.ctx, network, addr.String())
	if err != nil {
		return describeInUse(err, addr.Port)
	}
	l.sockets = []net.Listener{ln}
	return nil
}

// adopt takes sockets that others have bound.
func (l *twinListener) adopt(from []*Descriptor) error {
	for _, d := range from {
		ln, err := d.Listener()
		if err != nil {
			l.closeSockets()
			return err
		}
		l.sockets = append(l.sockets, ln)
	}
	return nil
}

func (l *twinListener) closeSockets() {
	for _, ln := range l.sockets {
		_ = ln.Close()
	}
}

func (l *twinListener) descriptors() ([]*Descriptor, error) {
	var all []*Descriptor
	for _, ln := range l.sockets {
		d, err := DescriptorOf(ln)
		if err != nil {
			for _, made := range all {
				_ = made.Close()
			}
			if l.closed.Load() {
				err = nil
			}
			return nil, err
		}
		all = append(all, d)
	}
	return all, nil
}

func (l *twinListener) deferAccept(d time.Duration) error {
	if d == 0 {
		return nil
	}
	return ErrNoDefer
}

func (l *twinListener) close() {
	l.engine.mu.Lock()
	first := !l.closed.Swap(true)
	delete(l.engine.listeners, l)
	l.engine.mu.Unlock()
	if first {
		l.closeSockets()
	}
	l.serving.Wait()
}

// begin starts to accept.
func (l *twinListener) begin() {
	l.engine.mu.Lock()
	defer l.engine.mu.Unlock()
	if !l.engine.closed && !l.closed.Load() {
		l.beginLocked()
	}
}

func (l *twinListener) beginLocked() {
	if l.begun {
		return
	}
	l.begun = true
	for _, ln := range l.sockets {
		l.engine.group.Add(1)
		l.serving.Go(func() { l.serve(ln) })
	}
}

// serve accepts on a socket until the listener closes.
func (l *twinListener) serve(ln net.Listener) {
	defer l.engine.group.Done()
	for {
		nc, err := ln.Accept()
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
