//go:build linux

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"lbd/bench/stats"
)

// rotate gives the first host a new certificate, tells the proxy in its own way, and returns how long it took until a handshake shows it.
func (b *bed) rotate(ctx context.Context, p *proxy) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	files, host := b.setup.Certificates[0], b.setup.Hosts[0]
	leaf, err := files.make(host, false)
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	if err := p.kind.rotate(ctx, b, p, files); err != nil {
		return 0, err
	}
	err = poll(ctx, time.Millisecond, b.proxy, func() error { return shows(ctx, b.setup.HTTPS, host, leaf) })
	return time.Since(begin), err
}

// shows makes a handshake and compares the certificate.
func shows(ctx context.Context, address, host string, leaf []byte) error {
	d := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, ServerName: host}}
	conn, err := d.DialContext(ctx, "tcp4", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	if !bytes.Equal(conn.(*tls.Conn).ConnectionState().PeerCertificates[0].Raw, leaf) {
		return errors.New("still the old certificate")
	}
	return nil
}

// reroute gives the first host another name more, and returns how long it took until that is served.
func (b *bed) reroute(ctx context.Context, p *proxy) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	old := b.setup.ExtraHost
	b.reroutes++
	b.setup.ExtraHost = fmt.Sprintf("extra%d.bench.test", b.reroutes)
	begin := time.Now()
	if err := b.lab.configure(p, b.setup); err != nil {
		return 0, err
	}
	if err := p.kind.reroute(ctx, b, p, old); err != nil {
		return 0, err
	}
	err := poll(ctx, time.Millisecond, b.proxy, func() error { return probe(ctx, b.setup.ExtraHost, "http", b.setup.HTTP) })
	return time.Since(begin), err
}

// changeInTurn changes a route and a certificate in turn.
func (b *bed) changeInTurn(ctx context.Context, p *proxy) (time.Duration, error) {
	if b.turn = !b.turn; b.turn {
		return b.reroute(ctx, p)
	}
	return b.rotate(ctx, p)
}

// able says whether the lab knows a way to change this proxy while it runs.
func (k *kind) able() bool { return k.rotate != nil && k.reroute != nil }

// changeEvery is the time from one change to the next.
const changeEvery = time.Second / 4

// changer is an observer that makes change after change during the window.
type changer struct {
	proxy  *proxy
	change change
	stop   context.CancelFunc // nil before open
	done   chan struct{}
	// took and err belong to the goroutine until done is closed.
	took []float64 // seconds
	err  error
}

func (c *changer) open(b *bed) error {
	ctx, stop := context.WithCancel(context.Background())
	c.stop, c.done = stop, make(chan struct{})
	go func() {
		defer close(c.done)
		for tick := time.Tick(changeEvery); c.err == nil; {
			select {
			case <-ctx.Done():
				return
			case <-tick:
			}
			took, err := c.change(b, ctx, c.proxy)
			if ctx.Err() != nil {
				return // cut short by the window's end
			}
			c.took, c.err = append(c.took, took.Seconds()), err
		}
	}()
	return nil
}

func (c *changer) close(r *record) error {
	c.end()
	r.Changes, r.ChangeTime = len(c.took), stats.Of(c.took)
	return c.err
}

// end waits until nothing is changed any more.
func (c *changer) end() {
	if c.stop != nil {
		c.stop()
		<-c.done
	}
}
