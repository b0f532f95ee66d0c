//go:build linux

package load

import (
	"errors"
	"iter"
	"time"

	"golang.org/x/sys/unix"
)

// wants is what a parked client waits for.
type wants int

const (
	wantsNothing wants = iota // runs, or has ended
	wantsStart
	wantsSocket
	wantsTurn // its number in the schedule
	wantsTime // the end of a pause
	wantsEnd  // of the run
)

// client is one simulated user: a coroutine and at most one connection.
type client struct {
	loop *loop
	flow *flow

	next  func() (struct{}, bool)
	stop  func()
	yield func(struct{}) bool
	wants wants

	socket
	stream  stream // the socket, or TLS on it; nil without a connection
	tickets ticketStore
	tlsBuf  []byte
	host    int // index of the current one
	hosted  bool

	// intended is when the current request was meant to be sent, deadline when it has failed; zero while there is none.
	intended, deadline time.Time
	// paused is when a pause ends.
	paused  time.Time
	expired bool
	// counted: intended lies in the measured window of an open loop.
	counted bool
}

func newClient(l *loop, f *flow) *client {
	c := &client{loop: l, flow: f, wants: wantsStart}
	c.socket = socket{fd: -1, client: c}
	c.tickets.singleUse = f.TLS != nil && f.TLS.Version == "1.3"
	c.next, c.stop = iter.Pull(func(yield func(struct{}) bool) {
		c.yield = yield
		c.run()
		c.disconnect()
	})
	return c
}

// errStopped ends a client's coroutine at the end of the run; it is no failure.
var errStopped = errors.New("run ended")

func (c *client) resume() {
	c.wants = wantsNothing
	c.next()
}

// park gives the thread back until the loop resumes the client.
func (c *client) park(w wants) error {
	c.wants = w
	if !c.yield(struct{}{}) {
		return errStopped
	}
	if c.expired {
		c.expired = false
		return errTimeout
	}
	return nil
}

// run is a client's life: wait for the turn, connect if there is no connection, ask, check the answer, and count.
func (c *client) run() {
	for c.turn() == nil {
		err := c.request()
		if errors.Is(err, errStopped) {
			return
		}
		c.flow.settle(c, time.Now(), err)
		if err != nil || c.flow.Kind == Fresh || c.flow.Kind == Resumed {
			c.disconnect()
		}
		if err != nil && c.rest() != nil {
			return
		}
		if err == nil && c.flow.idle() {
			c.hold()
			return
		}
	}
}

// turn waits for the client's next request: at once in a closed loop, else when the number that it takes is due. A number that is older
// than the timeout is a request that found no free client in time: it has failed without being sent.
func (c *client) turn() error {
	c.deadline = time.Time{}
	f := c.flow
	if f.schedule == nil {
		c.intended = time.Now()
		c.deadline = c.intended.Add(f.timeout())
		return nil
	}
	for {
		c.intended = f.schedule.take()
		c.counted = f.offer(c.intended)
		now := time.Now()
		if now.Sub(c.intended) < f.timeout() {
			break
		}
		f.settle(c, now, errNoClient)
	}
	if c.intended.After(c.loop.now) {
		f.schedule.sleep(c)
		if err := c.park(wantsTurn); err != nil {
			return err
		}
		f.late.Add(time.Since(c.intended))
	}
	c.deadline = c.intended.Add(f.timeout())
	return nil
}

// restAfterFailure keeps a client whose proxy is gone from spinning.
const restAfterFailure = 10 * time.Millisecond

func (c *client) rest() error {
	c.deadline = time.Now().Add(restAfterFailure)
	if err := c.park(wantsSocket); errors.Is(err, errStopped) {
		return err
	}
	return nil
}

// hold keeps the idle connection until the run ends, or the proxy ends it.
func (c *client) hold() {
	c.flow.held++
	if c.ended {
		return
	}
	c.deadline = time.Time{}
	c.tlsBuf = nil
	c.flow.holding++
	if c.park(wantsEnd) == nil {
		c.flow.holding--
	}
}

func (c *client) request() error {
	fresh := c.stream == nil
	if c.takesHost(fresh) {
		c.host, c.hosted = c.flow.nextHost(), true
	}
	if fresh {
		if err := c.connect(); err != nil {
			return err
		}
	}
	switch c.flow.Kind {
	case Tunnel, IdleTunnel:
		if fresh {
			if err := c.upgrade(); err != nil {
				return err
			}
		}
		return c.echo()
	case Upload:
		if err := c.upload(); err != nil {
			return err
		}
		return c.checkAnswer()
	}
	if _, err := c.stream.Write(c.flow.requests[c.host]); err != nil {
		return err
	}
	return c.checkAnswer()
}

// takesHost says whether the next request is for the next host. One with tickets stays with its first: they are that host's.
func (c *client) takesHost(fresh bool) bool {
	if c.flow.Kind == Resumed && c.hosted {
		return false
	}
	return fresh || c.flow.TLS == nil
}

// connect opens the connection, with TLS if the flow has it.
func (c *client) connect() error {
	if err := c.dial(c.flow.address); err != nil {
		return err
	}
	c.stream = &c.socket
	c.flow.opened(c)
	if c.flow.TLS == nil {
		return nil
	}
	conn, err := c.handshake()
	if err != nil {
		return err
	}
	c.stream = conn
	return nil
}

func (c *client) disconnect() {
	if c.stream == nil {
		if c.fd >= 0 {
			c.socket.Close()
		}
		return
	}
	// After a stop the notice that TLS sends at its end is not sent if the socket would block: park returns at once.
	c.stream.Close()
	c.stream = nil
}

// dial connects the socket and waits for it.
func (c *client) dial(to *unix.SockaddrInet4) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return errors.Join(errConnect, err)
	}
	c.socket = socket{fd: fd, client: c}
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	if err := unix.Connect(fd, to); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return errors.Join(errConnect, err)
	}
	if err := c.loop.watch(c); err != nil {
		return errors.Join(errConnect, err)
	}
	for !c.writable {
		if err := c.park(wantsSocket); err != nil {
			return err
		}
	}
	if code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); err != nil || code != 0 {
		return errors.Join(errConnect, unix.Errno(code), err)
	}
	return nil
}
