package lb

import (
	"io"
	"time"

	"lbd/lb/loop"
)

// pipe is one direction of a tunnel.
type pipe struct {
	from, to *loop.Conn
	src      io.Reader // from, or TLS over it
	dst      io.Writer
	farewell func() error // ends dst's stream; nil: to's FIN alone
	in       *window
	ended    bool // from has no more; dst has been told
	done     bool // and to has our FIN
}

// step moves what has come, without waiting, and reports whether anything moved. The end of one direction is passed on; the
// other lives until its own.
func (p *pipe) step(t *loop.Task) (bool, error) {
	switch {
	case p.done:
		return false, nil
	case p.to.Pending() > 0:
		if p.to.Broken() { // it never becomes less: not to be waited for
			return false, io.ErrClosedPipe
		}
		return false, nil
	case p.ended:
		p.done = true
		return true, p.to.CloseWrite()
	}
	if p.in.empty() {
		n, err := p.src.Read(p.in.room(t, 1))
		p.in.filled(n)
		switch {
		case n > 0:
		case err == loop.ErrWouldBlock:
			p.in.free(t) // a thousand silent tunnels hold no buffers
			return false, nil
		case err == io.EOF, err == errNoFarewell: // what goes through a tunnel has farewells of its own
			p.ended = true
			p.in.free(t)
			if p.farewell != nil {
				p.farewell()
				p.to.SetWriteDeadline(time.Time{}) // crypto/tls leaves one in the past
			}
			return true, nil
		default:
			return false, err
		}
	}
	_, err := p.dst.Write(p.in.bytes())
	p.in.skip(len(p.in.bytes()))
	return true, err
}

// want is what the direction waits for.
func (p *pipe) want(wants []loop.Want) []loop.Want {
	switch {
	case p.to.Pending() > 0:
		return also(wants, loop.Want{Conn: p.to, Write: true})
	case !p.ended:
		return also(wants, loop.Want{Conn: p.from, Read: true})
	}
	return wants
}

// tunnel moves bytes both ways after an upgrade, until both directions have ended or nothing has moved for the route's
// time. Bytes either way reset that time. It is one task: a tls.Conn can have no more.
func (x *exchange) tunnel() *fault {
	client, backend := x.client, x.conn
	x.closing = true
	client.phase = inTunnel
	up := pipe{from: client.c, src: client.io, to: backend.c, dst: backend.io, in: &x.up.in}
	down := pipe{from: backend.c, src: backend.io, to: client.c, dst: client.io, in: &backend.in}
	if client.tls != nil {
		down.farewell = client.tls.CloseWrite
	}
	if backend.tls != nil {
		up.farewell = backend.tls.CloseWrite
	}
	x.releaseBuffers()
	backend.c.SetQueued(queuedBytesMax)
	backend.c.SetWriteDeadline(time.Time{}) // the request's
	// What came behind the head: first in line. The head itself stays in its buffer for the record.
	early := x.in.bytes()
	x.in.skip(len(early))
	if _, err := backend.io.Write(early); err != nil {
		return &fault{reason: BackendAborted, detail: "tunnel", cause: err}
	}
	for !up.done || !down.done || client.c.Pending() > 0 || backend.c.Pending() > 0 {
		if x.cut {
			return faultCut // its end would be passed on and the other direction live on
		}
		movedUp, err := up.step(x.t)
		if err != nil {
			return tunnelFault(err)
		}
		movedDown, err := down.step(x.t)
		if err != nil {
			return tunnelFault(err)
		}
		if movedUp || movedDown {
			continue
		}
		wants := down.want(up.want(x.wants[:0]))
		if _, err := x.t.Wait(after(x.t.Now(), x.route.timeouts.Tunnel), wants...); err != nil {
			return tunnelFault(err)
		}
	}
	return nil
}

// tunnelFault says how a tunnel ended before both sides had said goodbye. Who went first cannot always be told: a reset
// comes as the same error from a read and from a write.
func tunnelFault(err error) *fault {
	if isTimeout(err) {
		return &fault{reason: ClientTimeout, detail: "tunnel_idle", cause: err}
	}
	return &fault{reason: ClientAborted, detail: "tunnel", cause: err}
}
