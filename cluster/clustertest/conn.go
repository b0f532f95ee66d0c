package clustertest

import (
	"io"
	"net"
	"os"
	"sync"
	"time"
)

const (
	// heldBytesMax is what one direction of a connection holds that the other side has not read: then the sender waits.
	heldBytesMax = 64 << 10
	// packetBytesMax is how much travels at a time, so that a rate is even.
	packetBytesMax = 4 << 10
)

// conn is one end of a connection between two ports. What is written arrives after the network's delay, and waits there while the way is cut.
type conn struct {
	network  *Network
	port     *port // whose end it is
	in, out  *half
	isClosed bool
}

// half is one direction. It is the network's lock that guards it.
type half struct {
	path    path
	network *Network
	cond    *sync.Cond
	packets []packet
	held    int       // bytes in packets
	last    time.Time // when the last of them arrives
	ended   bool      // nothing is written any more
	gone    bool      // nobody reads any more
	reading time.Time // deadlines
	writing time.Time
}

// packet is something that was written.
type packet struct {
	data []byte
	at   time.Time // when it is there
}

// pair connects two ports. A port that is closed meanwhile closes its end.
func (w *Network) pair(a, b *port) (near, far *conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	direction := func(from, to *port) *half {
		h := &half{path: path{from.id, to.id}, network: w, cond: sync.NewCond(&w.mu)}
		w.halves[h] = struct{}{}
		return h
	}
	there, back := direction(a, b), direction(b, a)
	near, far = &conn{network: w, port: a, in: back, out: there}, &conn{network: w, port: b, in: there, out: back}
	for _, c := range []*conn{near, far} {
		c.port.conns[c] = struct{}{}
	}
	for _, c := range []*conn{near, far} {
		select {
		case <-c.port.done:
			c.closeLocked()
		default:
		}
	}
	return near, far
}

// Read returns what has arrived.
func (c *conn) Read(b []byte) (int, error) {
	c.network.mu.Lock()
	defer c.network.mu.Unlock()
	h := c.in
	for {
		cut, now := c.network.cut[h.path], time.Now()
		switch {
		case c.isClosed:
			return 0, net.ErrClosed
		case len(h.packets) > 0 && !cut && !h.packets[0].at.After(now):
			n := copy(b, h.packets[0].data)
			h.held -= n
			if h.packets[0].data = h.packets[0].data[n:]; len(h.packets[0].data) == 0 {
				h.packets = h.packets[1:]
			}
			h.cond.Broadcast()
			return n, nil
		case h.ended && len(h.packets) == 0 && !cut:
			return 0, io.EOF
		case !h.reading.IsZero() && !h.reading.After(now):
			return 0, os.ErrDeadlineExceeded
		}
		until := h.reading
		if len(h.packets) > 0 && !cut && (until.IsZero() || h.packets[0].at.Before(until)) {
			until = h.packets[0].at
		}
		h.wait(until)
	}
}

// Write hands everything to the network, or fails.
func (c *conn) Write(b []byte) (written int, err error) {
	c.network.mu.Lock()
	defer c.network.mu.Unlock()
	h := c.out
	for len(b) > 0 {
		now := time.Now()
		switch {
		case c.isClosed:
			return written, net.ErrClosed
		case h.gone && !c.network.cut[h.path]:
			return written, io.ErrClosedPipe
		case h.held < heldBytesMax:
			n := min(len(b), packetBytesMax)
			at := now.Add(c.network.delay)
			if rate := c.network.rate[h.path]; rate > 0 {
				at = later(at, h.last).Add(time.Duration(n) * time.Second / time.Duration(rate))
			}
			h.last = later(at, h.last)
			h.packets = append(h.packets, packet{append([]byte(nil), b[:n]...), h.last})
			h.held += n
			written, b = written+n, b[n:]
			h.cond.Broadcast()
			continue
		case !h.writing.IsZero() && !h.writing.After(now):
			return written, os.ErrDeadlineExceeded
		}
		h.wait(h.writing)
	}
	return written, nil
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// wait returns after a change, or at a time; the zero time is never.
func (h *half) wait(until time.Time) {
	if until.IsZero() {
		h.cond.Wait()
		return
	}
	timer := time.AfterFunc(time.Until(until), func() {
		h.network.mu.Lock()
		defer h.network.mu.Unlock()
		h.cond.Broadcast()
	})
	h.cond.Wait()
	timer.Stop()
}

// Close ends both directions. What is on its way arrives.
func (c *conn) Close() error {
	c.network.mu.Lock()
	defer c.network.mu.Unlock()
	c.closeLocked()
	return nil
}

func (c *conn) closeLocked() {
	if c.isClosed {
		return
	}
	c.isClosed = true
	delete(c.port.conns, c)
	c.out.ended, c.in.gone = true, true
	for _, h := range []*half{c.in, c.out} {
		if h.ended && h.gone {
			delete(c.network.halves, h)
		}
		h.cond.Broadcast()
	}
}

// SetDeadline is for both.
func (c *conn) SetDeadline(t time.Time) error {
	_ = c.SetReadDeadline(t)
	return c.SetWriteDeadline(t)
}

// SetReadDeadline wakes who reads.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.network.mu.Lock()
	defer c.network.mu.Unlock()
	c.in.reading = t
	c.in.cond.Broadcast()
	return nil
}

// SetWriteDeadline wakes who writes.
func (c *conn) SetWriteDeadline(t time.Time) error {
	c.network.mu.Lock()
	defer c.network.mu.Unlock()
	c.out.writing = t
	c.out.cond.Broadcast()
	return nil
}

// Node is the other side's id, which package cluster asks for.
func (c *conn) Node() string { return c.out.path.to }

// LocalAddr is a node's id.
func (c *conn) LocalAddr() net.Addr { return addr(c.out.path.from) }

// RemoteAddr is a node's id.
func (c *conn) RemoteAddr() net.Addr { return addr(c.out.path.to) }

// addr is a node's id as an address.
type addr string

// Network says what kind of address it is.
func (addr) Network() string { return "clustertest" }

func (a addr) String() string { return string(a) }
