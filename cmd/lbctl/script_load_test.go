package main

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// held is one connection that a script keeps open.
type held struct {
	c net.Conn
	r *bufio.Reader
	u *url.URL
	// last says that the last answer was the connection's last: Connection: close.
	last bool
}

func dialURL(u *url.URL) (net.Conn, error) {
	d := &net.Dialer{Timeout: patience}
	if u.Scheme == "https" {
		return tls.DialWithDialer(d, "tcp", u.Host, &tls.Config{InsecureSkipVerify: true, ServerName: "localhost"})
	}
	return d.Dial("tcp", u.Host)
}

func hold(address string) (*held, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	c, err := dialURL(u)
	if err != nil {
		return nil, err
	}
	return &held{c: c, r: bufio.NewReader(c), u: u}, nil
}

// get makes one request, never again, and returns the body of a 200.
func (h *held) get() ([]byte, error) {
	if err := h.c.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	if _, err := fmt.Fprintf(h.c, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", h.u.RequestURI()); err != nil {
		return nil, err
	}
	resp, err := http.ReadResponse(h.r, nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	h.last = resp.Close
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %s: %s", resp.Status, body)
	}
	return body, err
}

func cmdHold(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, "hold NAME URL")
	h, err := hold(args[1])
	ts.Check(err)
	_, err = h.get()
	ts.Check(err)
	worldOf(ts).conns[args[0]] = h
}

func cmdHeld(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, "held NAME")
	body, err := worldOf(ts).conns[args[0]].get()
	ts.Check(err)
	ts.Logf("%s", body)
}

// load is checked traffic at a steady rate: even requests on kept connections, odd ones on new ones.
type load struct {
	url               string
	want              *regexp.Regexp
	quit              chan struct{}
	wg                sync.WaitGroup
	sent, ok, dropped atomic.Int64
	fresh             atomic.Int64
	mu                sync.Mutex
	failures          []string
}

const (
	loadWorkers = 32
	loadBacklog = 256 // requests that wait for a worker
)

func startLoad(rate int, address string, want *regexp.Regexp) *load {
	l := &load{url: address, want: want, quit: make(chan struct{})}
	due := make(chan bool, loadBacklog)
	for range loadWorkers {
		l.wg.Go(func() { l.work(due) })
	}
	l.wg.Go(func() { l.schedule(rate, due) })
	return l
}

// schedule makes requests due at an even rate, whatever the timers do.
func (l *load) schedule(rate int, due chan<- bool) {
	defer close(due)
	begin := time.Now()
	for n := 0; ; n++ {
		at := begin.Add(time.Duration(n) * time.Second / time.Duration(rate))
		select {
		case <-l.quit:
			return
		case <-time.After(time.Until(at)):
		}
		select {
		case due <- n%2 == 1:
		default:
			l.dropped.Add(1) // the machine is busy: the floor tells whether it was too busy
		}
	}
}

func (l *load) work(due <-chan bool) {
	var kept *held
	defer func() {
		if kept != nil {
			kept.c.Close()
		}
	}()
	for fresh := range due {
		l.sent.Add(1)
		h, err := kept, error(nil)
		if fresh || kept == nil {
			l.fresh.Add(1)
			if h, err = hold(l.url); err != nil {
				l.fail(err)
				continue
			}
		}
		err = l.check(h)
		switch {
		case err != nil:
			l.fail(err)
			h.c.Close()
			if h == kept {
				kept = nil
			}
		case h.last:
			h.c.Close()
			if h == kept {
				kept = nil
			}
		case fresh && h != kept:
			h.c.Close()
		default:
			kept = h
		}
	}
}

func (l *load) check(h *held) error {
	body, err := h.get()
	if err != nil {
		return err
	}
	if !l.want.Match(body) {
		return fmt.Errorf("wrong body: %q", body)
	}
	l.ok.Add(1)
	return nil
}

func (l *load) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failures = append(l.failures, err.Error())
}

func (l *load) stop() {
	select {
	case <-l.quit:
	default:
		close(l.quit)
	}
	l.wg.Wait()
}

func cmdLoad(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 4, "load NAME RATE URL REGEXP")
	rate, err := strconv.Atoi(args[1])
	ts.Check(err)
	worldOf(ts).loads[args[0]] = startLoad(rate, args[2], regexp.MustCompile(args[3]))
}

func cmdLoadReach(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, "load-reach NAME N")
	l := worldOf(ts).loads[args[0]]
	n, err := strconv.ParseInt(args[1], 10, 64)
	ts.Check(err)
	wait(ts, func() (bool, string) { return l.ok.Load() >= n, strconv.FormatInt(l.ok.Load(), 10) })
}

func cmdLoadStop(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, "load-stop NAME FLOOR")
	l := worldOf(ts).loads[args[0]]
	l.stop()
	floor, err := strconv.ParseInt(args[1], 10, 64)
	ts.Check(err)
	ts.Logf("sent %d requests, %d on new connections, %d answered right, %d failed, %d not sent in time", l.sent.Load(), l.fresh.Load(), l.ok.Load(), len(l.failures), l.dropped.Load())
	if len(l.failures) > 0 {
		ts.Fatalf("%d failed requests, the first: %s", len(l.failures), l.failures[0])
	}
	if l.ok.Load() < floor {
		ts.Fatalf("only %d requests were answered, the floor is %d", l.ok.Load(), floor)
	}
}
