//go:build linux

// Command idle prints what an idle kept-alive connection costs lbd in resident memory, plain and over TLS, before any request,
// after a GET of 1 KiB and after a POST of 16 KiB.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"lbd/bench/node"
)

const document = `
api_version: lbd/v1
owner: dev
listeners:
  - { name: http, addresses: ["127.0.0.1:8080"], protocol: HTTP, timeouts: { keep_alive_idle: 1h } }
  - { name: https, addresses: ["127.0.0.1:8443"], protocol: HTTPS, timeouts: { keep_alive_idle: 1h }, tls: { default_certificate: default } }
pools: [{ name: default, backends: [{ address: "BACKEND" }] }]
routes: [{ name: default, listeners: [http, https], forward: { pools: [{ pool: default }] } }]
`

// atOnce is how many connections are opened at a time: so many exchanges, buffers and stacks stay behind with the loops.
const atOnce = 64

var requests = []struct{ name, text string }{
	{"no request", ""},
	{"GET 1 KiB", "GET /1024 HTTP/1.1\r\nHost: localhost\r\nUser-Agent: idle\r\n\r\n"},
	{"POST 16 KiB", "POST /1024 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 16384\r\n\r\n" + strings.Repeat("x", 16<<10)},
}

func main() {
	n := flag.Int("n", 10_000, "connections")
	bin := flag.String("bin", "", "folder with lbd and lbctl; by default they are built")
	settle := flag.Duration("settle", 10*time.Second, "idle time before the second look")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := measure(ctx, *bin, *n, *settle); err != nil {
		fmt.Fprintln(os.Stderr, "idle:", err)
		os.Exit(1)
	}
}

// measure takes a fresh lbd for each line of the table.
func measure(ctx context.Context, bin string, n int, settle time.Duration) error {
	if bin == "" {
		dir, err := os.MkdirTemp("", "lbd-bin-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		if err := node.Build(ctx, dir); err != nil {
			return err
		}
		bin = dir
	}
	fmt.Printf("%-8s%-14s%14s%14s   bytes/connection, %d connections\n", "", "after", "at once", settle, n)
	for _, over := range []string{"plain", "TLS"} {
		for _, r := range requests {
			if err := one(ctx, bin, over, r.name, r.text, n, settle); err != nil {
				return fmt.Errorf("%s after %s: %w", over, r.name, err)
			}
		}
	}
	return nil
}

func one(ctx context.Context, bin, over, name, request string, n int, settle time.Duration) error {
	lbd, err := node.Start(ctx, bin, document)
	if err != nil {
		return err
	}
	defer lbd.Close()
	address := lbd.HTTP
	if over == "TLS" {
		address = lbd.HTTPS
	}
	// What a first connection brings along (tables, the backend's connection) is not counted.
	c, err := open(address, over == "TLS", requests[1].text)
	if err != nil {
		return err
	}
	defer c.Close()
	before, err := lbd.Resident()
	if err != nil {
		return err
	}
	conns, err := openAll(address, over == "TLS", request, n)
	defer func() {
		for _, c := range conns {
			if c != nil {
				c.Close()
			}
		}
	}()
	if err != nil {
		return err
	}
	at, err := lbd.Resident()
	if err != nil {
		return err
	}
	select {
	case <-time.After(settle):
	case <-ctx.Done():
		return ctx.Err()
	}
	later, err := lbd.Resident()
	if err != nil {
		return err
	}
	fmt.Printf("%-8s%-14s%14d%14d\n", over, name, (at-before)/int64(n), (later-before)/int64(n))
	return nil
}

// openAll opens n connections, a few at a time, and returns them all even if one fails.
func openAll(address string, overTLS bool, request string, n int) ([]net.Conn, error) {
	conns := make([]net.Conn, n)
	var next atomic.Int64
	var failed error
	var once sync.Once
	var wg sync.WaitGroup
	for range atOnce {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				c, err := open(address, overTLS, request)
				if err != nil {
					once.Do(func() { failed = err })
					return
				}
				conns[i] = c
			}
		})
	}
	wg.Wait()
	return conns, failed
}

// open connects, makes one request and reads its answer.
func open(address string, overTLS bool, request string) (net.Conn, error) {
	c, err := net.DialTimeout("tcp", address, 10*time.Second)
	if err != nil {
		return nil, err
	}
	if overTLS {
		c = tls.Client(c, &tls.Config{InsecureSkipVerify: true, ServerName: "localhost"})
	}
	if err := ask(c, request); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func ask(c net.Conn, request string) error {
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return err
	}
	if t, ok := c.(*tls.Conn); ok {
		if err := t.Handshake(); err != nil {
			return err
		}
	}
	if request == "" {
		return nil
	}
	if _, err := io.WriteString(c, request); err != nil {
		return err
	}
	resp, err := http.ReadResponse(bufio.NewReaderSize(c, 4<<10), nil)
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
