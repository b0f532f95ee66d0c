//go:build linux

package netnstest_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lbd/cluster/netnstest"
)

var loadRate = flag.Int("rate", 24, "requests per second and node")

const (
	frontHost = "front.test"
	// requestMax is how long a client waits for an answer. Faults that clients are in reach of may cost time, never the answer.
	requestMax = 15 * time.Second
	// loadClients is how many requests a node has at a time at most.
	loadClients = 24
	// failuresKept is how many failures are told in full.
	failuresKept = 5
)

// load asks each node all the time, half of the requests on connections that are kept and half on new ones, and never repeats one.
// A request fails that is not answered right, unless its node was out of reach or excused while it was under way.
type load struct {
	t    *testing.T
	net  *netnstest.Net
	quit chan struct{}
	done sync.WaitGroup
	stop func() // idempotent

	mu    sync.Mutex
	nodes map[int]*tally
	left  map[int]time.Time // hosts whose nodes leave, and since when
}

// tally is what became of the requests to one node.
type tally struct {
	kept, fresh int // answered right, by kind of connection
	excused     int
	late        int // were due while all clients waited
	failed      map[string]int
	failures    []string
	slowest     time.Duration
}

func (c *tally) ok() int { return c.kept + c.fresh }

func startLoad(t *testing.T, n *netnstest.Net) *load {
	l := &load{t: t, net: n, quit: make(chan struct{}), nodes: map[int]*tally{}, left: map[int]time.Time{}}
	l.stop = sync.OnceFunc(func() { close(l.quit); l.done.Wait() })
	t.Cleanup(l.stop)
	return l
}

// on begins to ask a node.
func (l *load) on(host int) {
	l.mu.Lock()
	asked := l.nodes[host] != nil
	if !asked {
		l.nodes[host] = &tally{failed: map[string]int{}}
	}
	l.mu.Unlock()
	if asked {
		return // a host that joins anew
	}
	due := make(chan bool)
	for range loadClients {
		l.done.Go(func() { l.client(host, due) })
	}
	l.done.Go(func() {
		defer close(due)
		ticks := time.NewTicker(time.Second / time.Duration(*loadRate))
		defer ticks.Stop()
		for fresh := false; ; fresh = !fresh {
			select {
			case <-l.quit:
				return
			case <-ticks.C:
			}
			select {
			case due <- fresh:
			default:
				l.mu.Lock()
				l.nodes[host].late++
				l.mu.Unlock()
			}
		}
	})
}

// client makes the requests that are due, on a connection that it keeps, or on a new one.
func (l *load) client(host int, due <-chan bool) {
	var kept *connection
	defer func() { kept.close() }()
	for fresh := range due {
		c := kept
		if kept != nil && (fresh || kept.ended()) {
			kept.close()
			kept, c = nil, nil
		}
		begin := time.Now()
		var err error
		if c == nil {
			c, err = dialFront(l.address(host))
		}
		reusable := false
		if err == nil {
			reusable, err = c.get("/load", "backend\n")
		}
		l.count(host, fresh, begin, err)
		switch {
		case err != nil || fresh || !reusable:
			c.close()
			kept = nil
		default:
			kept = c
		}
	}
}

func (l *load) address(host int) string {
	return net.JoinHostPort(l.net.Address(host).String(), frontPort)
}

func (l *load) count(host int, fresh bool, begin time.Time, err error) {
	end := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.nodes[host]
	switch {
	case err == nil && fresh:
		c.fresh++
	case err == nil:
		c.kept++
	case l.net.Excused(host, begin, end), kindOf(err) == "refused" && l.leftLocked(host, end):
		c.excused++
		return
	default:
		c.failed[kindOf(err)]++
		if len(c.failures) < failuresKept {
			c.failures = append(c.failures, fmt.Sprintf("at %s after %v: %v", begin.Format("15:04:05.000"), end.Sub(begin).Round(time.Millisecond), err))
		}
		return
	}
	c.slowest = max(c.slowest, end.Sub(begin))
}

// leaves says that a host's node takes no new connections from some time on. What it has accepted it has to answer.
func (l *load) leaves(host int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.left[host] = time.Now()
}

// returns takes that back.
func (l *load) returns(host int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.left, host)
}

func (l *load) leftLocked(host int, at time.Time) bool {
	since, left := l.left[host]
	return left && at.After(since)
}

// kindOf sorts failures: what a client is told, and a reset apart.
func kindOf(err error) string {
	var status statusError
	switch {
	case errors.As(err, &status):
		return fmt.Sprintf("status %d", status.code)
	case errors.Is(err, syscall.ECONNRESET):
		return "reset"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return "no answer"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "closed"
	default:
		return "other"
	}
}

// take returns what was counted since it was last called.
func (l *load) take() map[int]*tally {
	l.mu.Lock()
	defer l.mu.Unlock()
	taken := l.nodes
	l.nodes = map[int]*tally{}
	for host := range taken {
		l.nodes[host] = &tally{failed: map[string]int{}}
	}
	return taken
}

// answered is how many requests a node has answered since the last take.
func (l *load) answered(host int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.nodes[host].ok()
}

// judge tells what was counted since the last time, and fails the test for each kind of failure.
func (l *load) judge(t *testing.T) {
	t.Helper()
	taken := l.take()
	for _, host := range l.net.Hosts() {
		c := taken[host]
		if c == nil {
			continue
		}
		t.Logf("n%d: %d answered (%d on new connections), slowest %v, %d excused, %d not sent in time", host, c.ok(), c.fresh, c.slowest.Round(time.Millisecond), c.excused, c.late)
		for kind, count := range c.failed {
			t.Errorf("n%d, which was in reach: %d requests failed: %s", host, count, kind)
		}
		if len(c.failures) > 0 {
			t.Logf("n%d, the first failures:\n%s", host, strings.Join(c.failures, "\n"))
		}
	}
}

// connection is a client's to the front door.
type connection struct {
	c *tls.Conn
	r *bufio.Reader
}

func dialFront(address string) (*connection, error) {
	d := &net.Dialer{Timeout: requestMax}
	c, err := tls.DialWithDialer(d, "tcp", address, &tls.Config{InsecureSkipVerify: true, ServerName: frontHost})
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return &connection{c, bufio.NewReader(c)}, nil
}

func (c *connection) close() {
	if c != nil {
		c.c.Close()
	}
}

// ended is whether the other side has closed the idle connection: a client that sees that in time does not use it. The kernel is
// asked, since a deadline that is over before the read begins would hide it.
func (c *connection) ended() bool {
	raw, err := c.c.NetConn().(*net.TCPConn).SyscallConn()
	if err != nil {
		return true
	}
	ended := true
	err = raw.Control(func(fd uintptr) {
		_, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		ended = !errors.Is(err, unix.EAGAIN) // closed, reset, or TLS's farewell is there
	})
	return err != nil || ended
}

// statusError is an answer that is not 200.
type statusError struct {
	code int
	body string
}

func (e statusError) Error() string { return fmt.Sprintf("status %d: %.200s", e.code, e.body) }

// get makes one request; the answer has to be 200 and begin with want. reusable is whether another may follow.
func (c *connection) get(path, want string) (reusable bool, err error) {
	body, reusable, err := c.fetch(path)
	if err == nil && !strings.HasPrefix(body, want) {
		err = fmt.Errorf("wrong answer %.200q", body)
	}
	return reusable, err
}

func (c *connection) fetch(path string) (body string, reusable bool, err error) {
	if err := c.c.SetDeadline(time.Now().Add(requestMax)); err != nil {
		return "", false, err
	}
	if _, err := fmt.Fprintf(c.c, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", path, frontHost); err != nil {
		return "", false, fmt.Errorf("send: %w", err)
	}
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil {
		return "", false, fmt.Errorf("read the answer: %w", err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", false, fmt.Errorf("read the answer's body: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return "", false, statusError{resp.StatusCode, string(b)}
	}
	return string(b), !resp.Close, nil
}

// get is one request of a test's own to a node, on a new connection.
func get(address, path string) (string, error) {
	c, err := dialFront(address)
	if err != nil {
		return "", err
	}
	defer c.close()
	body, _, err := c.fetch(path)
	return body, err
}

// backend is what the nodes forward to, on the clients' side.
func backend(t *testing.T, n *netnstest.Net) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(n.Address(netnstest.Root).String(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "backend\n"+r.URL.Path)
	})}
	var served sync.WaitGroup
	served.Go(func() { _ = s.Serve(l) })
	t.Cleanup(func() { s.Close(); served.Wait() })
	return l.Addr().String()
}

// median is the middle one, and quantile the one that a share of them are below.
func median(d []time.Duration) time.Duration { return quantile(d, 0.5) }

func quantile(d []time.Duration, share float64) time.Duration {
	s := slices.Sorted(slices.Values(d))
	return s[min(len(s)-1, int(share*float64(len(s))))]
}
