//go:build linux

package main

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	patience    = 20 * time.Second
	otherPeriod = 5 * time.Millisecond // between two requests of the other clients, each on one of otherConns connections
	otherConns  = 8
	fairClients = 20
)

// others are clients that ask for 1 KiB at a steady rate, on kept connections. A request that is late because the one before
// it was slow counts from when it was due.
type others struct {
	quit   chan struct{}
	wg     sync.WaitGroup
	mu     sync.Mutex
	took   []time.Duration
	failed error
}

func startOthers(address string) *others {
	o := &others{quit: make(chan struct{})}
	for i := range otherConns {
		o.wg.Go(func() { o.ask(address, time.Duration(i)*otherPeriod) })
	}
	return o
}

func (o *others) ask(address string, offset time.Duration) {
	c, err := dial(address, 0)
	if err != nil {
		o.fail(err)
		return
	}
	defer c.Close()
	r := bufio.NewReader(c)
	for due := time.Now().Add(offset); ; due = due.Add(otherConns * otherPeriod) {
		select {
		case <-o.quit:
			return
		case <-time.After(time.Until(due)):
		}
		if err := get(c, r, "/1024"); err != nil {
			o.fail(err)
			return
		}
		o.mu.Lock()
		o.took = append(o.took, time.Since(due))
		o.mu.Unlock()
	}
}

func (o *others) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.failed = errors.Join(o.failed, err)
}

// stop ends the clients; an error is one that a client met.
func (o *others) stop() error {
	close(o.quit)
	o.wg.Wait()
	return o.failed
}

func (o *others) String() string {
	slices.Sort(o.took)
	at := func(q float64) time.Duration {
		return o.took[int(q*float64(len(o.took)-1))].Round(10 * time.Microsecond)
	}
	return fmt.Sprintf("%d requests, p50 %v, p99 %v, max %v", len(o.took), at(0.5), at(0.99), at(1))
}

// fair are clients that read a large answer at 1 kB/s, as a phone on a bad line does: a kernel that takes little ahead of them,
// packets of 1,400 bytes.
type fair struct {
	quit  chan struct{}
	wg    sync.WaitGroup
	alive atomic.Int64
	mu    sync.Mutex
	lost  []error // why the others did not live
}

func startFair(address string) *fair {
	f := &fair{quit: make(chan struct{})}
	for range fairClients {
		f.wg.Go(func() {
			if err := f.read(address); err != nil {
				f.mu.Lock()
				f.lost = append(f.lost, err)
				f.mu.Unlock()
				return
			}
			f.alive.Add(1)
		})
	}
	return f
}

// read returns nil if the connection lives until the end.
func (f *fair) read(address string) error {
	c, err := dial(address, 8<<10)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := io.WriteString(c, request("/10000000")); err != nil {
		return err
	}
	raw := c.NetConn() // ciphertext will do: 1 kB of it each second
	began := time.Now()
	pace := time.NewTicker(time.Second)
	defer pace.Stop()
	for piece := make([]byte, 1000); ; {
		select {
		case <-f.quit:
			return nil
		case <-pace.C:
		}
		if err := raw.SetReadDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		if _, err := io.ReadFull(raw, piece); err != nil {
			return fmt.Errorf("after %v: %w", time.Since(began).Round(time.Millisecond), err)
		}
	}
}

func (f *fair) stop() error {
	close(f.quit)
	f.wg.Wait()
	return nil
}

func (f *fair) served() int64 { return f.alive.Load() }

// dial opens a TLS connection, with a receive buffer and a segment size of a slow line if receive is not 0.
func dial(address string, receive int) (*tls.Conn, error) {
	d := &net.Dialer{Timeout: patience}
	if receive > 0 {
		d.Control = func(_, _ string, raw syscall.RawConn) error {
			var failed error
			err := raw.Control(func(fd uintptr) {
				failed = errors.Join(
					syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, receive),
					syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_MAXSEG, 1400),
				)
			})
			return errors.Join(err, failed)
		}
	}
	return tls.DialWithDialer(d, "tcp", address, &tls.Config{InsecureSkipVerify: true, ServerName: "localhost"})
}

func request(path string) string { return "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n" }

func get(c *tls.Conn, r *bufio.Reader, path string) error {
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := io.WriteString(c, request(path)); err != nil {
		return err
	}
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("answered %s", resp.Status)
	}
	return nil
}
