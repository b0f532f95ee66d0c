//go:build linux

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// stormClients is how many handshakes each node has at once.
	stormClients = 64
	// handshakeTimeout is when a client gives one up.
	handshakeTimeout = 10 * time.Second
)

// storm opens TLS connections on all nodes as fast as they take them. In the middle a certificate is rotated.
func (c *cluster) storm(d time.Duration) error {
	before, err := c.elections()
	if err != nil {
		return err
	}
	leader, err := c.leader()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.ctx, d)
	defer cancel()
	var done, failed atomic.Int64
	var why sync.Map // reasons of failures
	var clients sync.WaitGroup
	for _, m := range c.nodes {
		for range stormClients {
			clients.Go(func() {
				for ctx.Err() == nil {
					if err := handshake(ctx, m.https); err == nil {
						done.Add(1)
					} else {
						failed.Add(1)
						why.Store(reason(err), true)
					}
				}
			})
		}
	}
	select {
	case <-time.After(d / 2):
	case <-ctx.Done():
	}
	began := time.Now()
	_, rotated := c.lbctl(c.nodes[0], "", "cert", "rotate", "front", "--wait", "--timeout", "60s")
	took := time.Since(began)
	clients.Wait()
	if rotated != nil {
		return rotated
	}
	for text := range why.Range {
		fmt.Printf("handshakes failed: %s\n", text)
	}
	if err := c.settled(); err != nil {
		return err
	}
	after, err := c.elections()
	if err != nil {
		return err
	}
	now, err := c.leader()
	if err != nil {
		return err
	}
	fmt.Printf("storm of %s: %.0f full handshakes/s, %d failed; leader %s before and %s after, terms begun meanwhile: %d; a certificate rotated in the middle was served on all nodes after %s\n",
		d, float64(done.Load())/d.Seconds(), failed.Load(), leader.name, now.name, after-before, took.Round(time.Millisecond))
	return nil
}

// reason is an error without the addresses in it.
func reason(err error) string {
	if op := new(net.OpError); errors.As(err, &op) {
		return op.Op + ": " + op.Err.Error()
	}
	return err.Error()
}

func handshake(ctx context.Context, address string) error {
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), handshakeTimeout) // the storm's end cuts none off
	defer cancel()
	dialer := tls.Dialer{NetDialer: &net.Dialer{}, Config: &tls.Config{InsecureSkipVerify: true, ServerName: "front.test"}} // the certificate is no secret's guard here
	conn, err := dialer.DialContext(limited, "tcp", address)
	if err != nil {
		return err
	}
	return conn.Close()
}

// elections is the newest term that any node knows.
func (c *cluster) elections() (int, error) {
	newest := 0
	for _, m := range c.nodes {
		out, err := c.lbctl(m, "", "metrics")
		if err != nil {
			return 0, err
		}
		for line := range strings.Lines(out) {
			var term float64
			if _, err := fmt.Sscanf(line, "lbd_raft_term %g", &term); err == nil {
				newest = max(newest, int(term))
			}
		}
	}
	if newest == 0 {
		return 0, fmt.Errorf("no node tells its term (lbd_raft_term)")
	}
	return newest, nil
}
