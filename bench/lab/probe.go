//go:build linux

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"lbd/bench/backend"
)

// startTimeout is how long a proxy may take until it serves: thousands of certificates or routes included.
const (
	startTimeout = 40 * time.Second
	startPoll    = 20 * time.Millisecond
)

// untilServing waits for the process, sends it what is still to be applied if that is asked for, and asks until both listeners give the right answer.
func (l *lab) untilServing(ctx context.Context, p *proxy, s setup, process *process, apply bool) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if apply && p.kind.apply != nil {
		socket := s.Dir + "/data/control.sock"
		if err := poll(ctx, startPoll, process, func() error { _, err := os.Stat(socket); return err }); err != nil {
			return err
		}
		if err := p.kind.apply(ctx, l, p, s); err != nil {
			return err
		}
	}
	host := s.Hosts[len(s.Hosts)-1]
	return poll(ctx, startPoll, process, func() error { return errors.Join(probe(ctx, host, "http", s.HTTP), probe(ctx, host, "https", s.HTTPS)) })
}

// poll repeats try until it succeeds, the process ends or the time is up.
func poll(ctx context.Context, every time.Duration, process *process, try func() error) error {
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w; last: %w", ctx.Err(), err)
		case <-process.done:
			return process.ended()
		case <-time.After(every):
		}
	}
}

// probe asks for a small body through one listener and compares it.
func probe(ctx context.Context, host, scheme, address string) error {
	const size = 100
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, address)
		},
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true, ServerName: host},
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s://%s/%d", scheme, host, size), nil)
	if err != nil {
		return err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK || !bytes.Equal(body, backend.Body(size)) {
		return fmt.Errorf("%s answers with status %d, %d bytes", scheme, response.StatusCode, len(body))
	}
	return nil
}
