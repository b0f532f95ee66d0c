package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	// patience is how long a client waits for any step.
	patience = 20 * time.Second
	// workers connect for the newcomers.
	workers = 64
	// keptPause is between two requests of a regular, tunnelPause between two words in a WebSocket, piecePause between two pieces of an upload.
	keptPause   = 100 * time.Millisecond
	tunnelPause = time.Second
	piecePause  = 50 * time.Millisecond
	pieceBytes  = 1 << 10
)

// connection is a client's.
type connection struct {
	net.Conn
	in *bufio.Reader
}

func dial(address string) (*connection, error) {
	c, err := dialPlain(address)
	if err != nil {
		return nil, err
	}
	secure := tls.Client(c.Conn, &tls.Config{InsecureSkipVerify: true, ServerName: "localhost", CurvePreferences: []tls.CurveID{tls.X25519}})
	if err := secure.Handshake(); err != nil {
		c.Close()
		return nil, err
	}
	return &connection{secure, bufio.NewReaderSize(secure, 1<<10)}, nil
}

func dialPlain(address string) (*connection, error) {
	c, err := net.DialTimeout("tcp", address, patience)
	if err != nil {
		return nil, err
	}
	_ = c.SetDeadline(time.Now().Add(patience))
	return &connection{c, bufio.NewReaderSize(c, 1<<10)}, nil
}

// nothing is the digest of no body.
var nothing = digest(nil)

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// get makes one request, never again. last: the connection has had its last.
func (c *connection) get() (last bool, err error) {
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		return true, err
	}
	return c.answer(nothing)
}

// answer reads an answer, which is to be this.
func (c *connection) answer(want string) (last bool, err error) {
	resp, err := http.ReadResponse(c.in, nil)
	if err != nil {
		return true, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && (resp.StatusCode != http.StatusOK || string(body) != want) {
		err = fmt.Errorf("answered %s: %.80q", resp.Status, body)
	}
	return resp.Close, err
}

// newcomers connect at an even rate, each for one request.
type newcomers struct {
	address string
	plain   bool // without TLS
	rate    int
}

func (n *newcomers) what() string {
	if n.plain {
		return "new plain connections"
	}
	return "new connections"
}

func (n *newcomers) dial() (*connection, error) {
	if n.plain {
		return dialPlain(n.address)
	}
	return dial(n.address)
}

func (n *newcomers) run(ctx context.Context, tally *count) {
	due := make(chan struct{}, n.rate/10+1)
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for range due {
				n.one(tally)
			}
		})
	}
	begun := time.Now()
	for i := 0; ctx.Err() == nil; i++ {
		pause(ctx, time.Until(begun.Add(time.Duration(i)*time.Second/time.Duration(n.rate))))
		select {
		case due <- struct{}{}:
		default:
			tally.late.Add(1)
		}
	}
	close(due)
	all.Wait()
}

func (n *newcomers) one(tally *count) {
	c, err := n.dial()
	if err != nil {
		tally.lose(err)
		return
	}
	defer c.Close()
	if _, err := c.get(); err != nil {
		tally.lose(err)
		return
	}
	tally.done.Add(1)
}

// regulars keep their connection for as long as they are let.
type regulars struct {
	address string
	number  int
}

func (r *regulars) what() string { return "requests on kept ones" }

func (r *regulars) run(ctx context.Context, tally *count) {
	var all sync.WaitGroup
	for range r.number {
		all.Go(func() {
			for ctx.Err() == nil {
				r.one(ctx, tally)
			}
		})
	}
	all.Wait()
}

// one is one connection's life.
func (r *regulars) one(ctx context.Context, tally *count) {
	c, err := dial(r.address)
	if err != nil {
		tally.lose(err)
		return
	}
	defer c.Close()
	for ctx.Err() == nil {
		last, err := c.get()
		if err != nil {
			tally.lose(err)
			return
		}
		tally.done.Add(1)
		if last {
			return
		}
		pause(ctx, keptPause)
	}
}

// tunnels are WebSockets that talk. One that is cut at its process's deadline is opened anew.
type tunnels struct {
	address string
	number  int
	past    *upgrades
}

func (t *tunnels) what() string { return "words in WebSockets" }

func (t *tunnels) run(ctx context.Context, tally *count) {
	var all sync.WaitGroup
	for range t.number {
		all.Go(func() {
			for ctx.Err() == nil {
				t.one(ctx, tally)
			}
		})
	}
	all.Wait()
}

func (t *tunnels) one(ctx context.Context, tally *count) {
	c, err := dial(t.address)
	opened := time.Now()
	if err == nil {
		defer c.Close()
		err = c.upgrade()
	}
	for i := 0; err == nil && ctx.Err() == nil; i++ {
		if err = c.say(fmt.Sprintf("word %6d\n", i)); err == nil {
			tally.done.Add(1)
			pause(ctx, tunnelPause)
		}
	}
	switch {
	case err == nil:
	case t.past.due(opened):
		tally.cut.Add(1)
	default:
		tally.lose(err)
	}
}

func (c *connection) upgrade() error {
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(c, "GET /chat HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"); err != nil {
		return err
	}
	resp, err := http.ReadResponse(c.in, nil)
	if err == nil && resp.StatusCode != http.StatusSwitchingProtocols {
		err = fmt.Errorf("answered %s", resp.Status)
	}
	return err
}

// say says something and wants it back.
func (c *connection) say(text string) error {
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(c, text); err != nil {
		return err
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(c.in, got); err != nil {
		return err
	}
	if string(got) != text {
		return fmt.Errorf("said %q, heard %q", text, got)
	}
	return nil
}

// uploads send a body a little at a time.
type uploads struct {
	address string
	number  int
	lasts   time.Duration
}

func (u *uploads) what() string { return "slow uploads" }

func (u *uploads) run(ctx context.Context, tally *count) {
	var all sync.WaitGroup
	for range u.number {
		all.Go(func() {
			for ctx.Err() == nil {
				if err := u.one(); err != nil {
					tally.lose(err)
				} else {
					tally.done.Add(1)
				}
			}
		})
	}
	all.Wait()
}

// one is one upload, from its beginning to its end.
func (u *uploads) one() error {
	c, err := dial(u.address)
	if err != nil {
		return err
	}
	defer c.Close()
	pieces := int(u.lasts/piecePause) + 1
	body := make([]byte, pieces*pieceBytes)
	for i := range body {
		body[i] = byte(i * 7)
	}
	if _, err := fmt.Fprintf(c, "POST /upload HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n", len(body)); err != nil {
		return err
	}
	for i := range pieces {
		_ = c.SetDeadline(time.Now().Add(patience))
		if _, err := c.Write(body[i*pieceBytes : (i+1)*pieceBytes]); err != nil {
			return err
		}
		time.Sleep(piecePause)
	}
	_, err = c.answer(digest(body))
	return err
}

func pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
