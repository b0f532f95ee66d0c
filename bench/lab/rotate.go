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
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
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

func rotateNginx(_ context.Context, b *bed, _ *proxy, _ certificateFiles) error {
	return b.proxy.cmd.Process.Signal(unix.SIGHUP)
}

// rotateHAProxy uses its runtime API.
func rotateHAProxy(ctx context.Context, b *bed, _ *proxy, files certificateFiles) error {
	content, err := os.ReadFile(files.Bundle)
	if err != nil {
		return err
	}
	for _, order := range []string{
		fmt.Sprintf("set ssl cert %s <<\n%s\n", files.Bundle, content),
		fmt.Sprintf("commit ssl cert %s\n", files.Bundle),
	} {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", b.setup.Dir+"/haproxy.sock")
		if err != nil {
			return err
		}
		_, err = io.WriteString(conn, order)
		answer, readErr := io.ReadAll(conn)
		if err := errors.Join(err, readErr, conn.Close()); err != nil {
			return err
		}
		if text := string(answer); !strings.Contains(text, "ransaction") && !strings.Contains(text, "Success") {
			return fmt.Errorf("haproxy refuses: %s", strings.TrimSpace(text))
		}
	}
	return nil
}

func rotateLbd(ctx context.Context, b *bed, p *proxy, files certificateFiles) error {
	return b.lab.lbctl(ctx, p, b.setup, "cert", "rotate", files.Name, "--chain", files.Chain, "--key", files.Key, "--wait")
}

// changer is an observer that changes a certificate again and again during the window.
type changer struct {
	proxy *proxy
	every time.Duration
	stop  context.CancelFunc // nil before open
	done  chan struct{}
	// made and err belong to the goroutine until done is closed.
	made int
	err  error
}

func (c *changer) open(b *bed) error {
	ctx, stop := context.WithCancel(context.Background())
	c.stop, c.done = stop, make(chan struct{})
	go func() {
		defer close(c.done)
		for tick := time.Tick(c.every); c.err == nil; c.made++ {
			select {
			case <-ctx.Done():
				return
			case <-tick:
			}
			if _, c.err = b.rotate(ctx, c.proxy); ctx.Err() != nil {
				c.err = nil // cut short by the window's end
				return
			}
		}
	}()
	return nil
}

func (c *changer) close(r *record) error {
	c.end()
	r.Changes = c.made
	return c.err
}

// end waits until nothing is changed any more.
func (c *changer) end() {
	if c.stop != nil {
		c.stop()
		<-c.done
	}
}
