//go:build linux

package netnstest_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lbdv1 "lbd/proto/lbd/v1"
)

const (
	// writeMax bounds one attempt; the next goes to another node.
	writeMax = 5 * time.Second
	// writePause is between two writes of a client, and between two attempts.
	writePause = 50 * time.Millisecond
	// writers write at the same time, each a route of its own.
	writers = 2
)

// writer changes a route again and again, each time by another node. An attempt whose outcome is unknown is repeated with its
// request id until it is answered: then it has happened exactly once.
type writer struct {
	c    *cluster
	quit chan struct{}
	done sync.WaitGroup
	stop func() // idempotent

	mu     sync.Mutex
	acks   []ack
	last   map[string]int // by route: the last count that was acknowledged
	begun  map[string]int // the last count that was sent
	closed map[int]bool   // hosts that are not asked
	errs   []string       // answers that no fault excuses
}

// ack is a write that was acknowledged.
type ack struct {
	at       time.Time
	begun    time.Time
	revision int64
	message  string
	host     int // who acknowledged it
}

func startWriter(c *cluster) *writer {
	w := &writer{c: c, quit: make(chan struct{}), last: map[string]int{}, begun: map[string]int{}, closed: map[int]bool{}}
	w.stop = sync.OnceFunc(func() { close(w.quit); w.done.Wait() })
	c.t.Cleanup(w.stop)
	for i := range writers {
		w.done.Go(func() { w.client(fmt.Sprintf("count-%d", i), i) })
	}
	return w
}

func (w *writer) client(route string, turn int) {
	for count := 1; ; count++ {
		w.mu.Lock()
		w.begun[route] = count
		w.mu.Unlock()
		if !w.write(route, count, &turn) || !w.pause() {
			return
		}
	}
}

// pause is false when the writer shall end.
func (w *writer) pause() bool {
	select {
	case <-w.quit:
		return false
	case <-time.After(writePause):
		return true
	}
}

// write makes one change, by one node after the other, until it is acknowledged; false if the writer was stopped before.
func (w *writer) write(route string, count int, turn *int) bool {
	id, begun := rand.Text(), time.Now()
	for {
		*turn++
		if host, ok := w.next(*turn); ok {
			message := route + "=" + strconv.Itoa(count)
			revision, err := w.c.node(host).apply(w.quit, message, id, countRoute(route, count))
			if err == nil {
				w.acknowledge(ack{time.Now(), begun, revision, message, host}, route, count)
				return true
			}
			w.judge(host, message, err)
		}
		if !w.pause() {
			return false
		}
	}
}

// next is whose turn it is to be asked.
func (w *writer) next(turn int) (host int, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	hosts := w.c.members()
	if len(hosts) == 0 {
		return 0, false
	}
	host = hosts[turn%len(hosts)]
	return host, !w.closed[host]
}

// judge keeps errors that ask for something else than for the same again.
func (w *writer) judge(host int, message string, err error) {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.errs) < failuresKept {
		w.errs = append(w.errs, fmt.Sprintf("%s by n%d at %s: %v", message, host, time.Now().Format("15:04:05.000"), err))
	}
}

func (w *writer) acknowledge(a ack, route string, count int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.acks = append(w.acks, a)
	w.last[route] = count
}

// since is how long after a moment the first write was acknowledged that began after it; 0 if there is none.
func (w *writer) since(moment time.Time) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range w.acks {
		if a.at.After(moment) && a.begun.After(moment) {
			return a.at.Sub(moment)
		}
	}
	return 0
}

// resumed waits until a write has been acknowledged that began after the moment, and says how long that took.
func (w *writer) resumed(t *testing.T, moment time.Time) time.Duration {
	t.Helper()
	eventually(t, "a write is acknowledged", func() (bool, string) { return w.since(moment) > 0, "" })
	return w.since(moment)
}

// only lets the writer ask these hosts alone; none: all.
func (w *writer) only(hosts ...int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.closed)
	if len(hosts) == 0 {
		return
	}
	for _, host := range w.c.Hosts() {
		w.closed[host] = true
	}
	for _, host := range hosts {
		delete(w.closed, host)
	}
}

// check compares what was acknowledged with what each node holds: nothing is lost, nothing has happened twice, all hold the same.
// It is called while nothing is written.
func (w *writer) check(t *testing.T) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.errs {
		t.Errorf("a write was answered: %s", e)
	}
	w.errs = nil
	held := map[int][]*lbdv1.Revision{}
	for _, host := range w.c.members() {
		held[host] = w.c.node(host).revisions(t)
		for route, count := range w.last {
			w.checkServed(t, host, route, count)
		}
	}
	for _, wrong := range compare(w.acks, held) {
		t.Error(wrong)
	}
	t.Logf("%d writes were acknowledged", len(w.acks))
}

// compare tells what is wrong with what nodes hold, given what was acknowledged.
func compare(acks []ack, held map[int][]*lbdv1.Revision) (wrong []string) {
	hashes := map[int64]string{}
	for _, host := range slices.Sorted(maps.Keys(held)) {
		numbers, messages := map[int64]string{}, map[string]int64{}
		for _, r := range held[host] {
			number, message := r.GetNumber(), r.GetMessage()
			if other, twice := messages[message]; twice && strings.HasPrefix(message, "count-") {
				wrong = append(wrong, fmt.Sprintf("n%d: %s was written twice, by revisions %d and %d", host, message, number, other))
			}
			if hash, known := hashes[number]; known && hash != r.GetContentHash() {
				wrong = append(wrong, fmt.Sprintf("n%d: revision %d has another content", host, number))
			}
			numbers[number], messages[message], hashes[number] = message, number, r.GetContentHash()
		}
		for _, a := range acks {
			if numbers[a.revision] != a.message {
				wrong = append(wrong, fmt.Sprintf("n%d: revision %d is %q, and was acknowledged by n%d as %q at %s",
					host, a.revision, numbers[a.revision], a.host, a.message, a.at.Format("15:04:05.000")))
			}
		}
	}
	return wrong
}

// checkServed looks for what was written last where clients see it.
func (w *writer) checkServed(t *testing.T, host int, route string, count int) {
	t.Helper()
	eventually(t, fmt.Sprintf("n%d serves %s=%d", host, route, count), func() (bool, string) {
		body, err := get(w.c.front(host), "/"+route)
		if err != nil {
			return false, err.Error()
		}
		served, err := strconv.Atoi(body)
		return err == nil && served >= count && served <= w.begun[route], body
	})
}

func countRoute(name string, count int) *lbdv1.Resource {
	route := &lbdv1.Route{
		Name: name, Listeners: []string{"https"}, Matches: []*lbdv1.RouteMatch{{Path: &lbdv1.PathMatch{Match: &lbdv1.PathMatch_Exact{Exact: "/" + name}}}},
		Action: &lbdv1.Route_Respond{Respond: &lbdv1.Respond{Status: 200, Body: strconv.Itoa(count)}},
	}
	return &lbdv1.Resource{Spec: &lbdv1.Resource_Route{Route: route}}
}

// apply is one attempt of a write by this node; it ends early when quit is closed.
func (n *node) apply(quit <-chan struct{}, message, id string, resources ...*lbdv1.Resource) (int64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), writeMax)
	defer cancel()
	go func() {
		select {
		case <-quit:
			cancel()
		case <-ctx.Done():
		}
	}()
	stream, err := lbdv1.NewConfigServiceClient(n.conn).Apply(ctx)
	if err != nil {
		return 0, err
	}
	header := &lbdv1.ApplyHeader{Owner: owner, Message: message, RequestId: id}
	// An error of Send is io.EOF: the reason is what CloseAndRecv returns.
	_ = stream.Send(&lbdv1.ApplyRequest{Part: &lbdv1.ApplyRequest_Header{Header: header}})
	_ = stream.Send(&lbdv1.ApplyRequest{Part: &lbdv1.ApplyRequest_Resources{Resources: &lbdv1.ApplyResources{Resources: resources}}})
	resp, err := stream.CloseAndRecv()
	return resp.GetRevision(), err
}

// revisions are all that the node holds.
func (n *node) revisions(t *testing.T) []*lbdv1.Revision {
	t.Helper()
	var all []*lbdv1.Revision
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for token := ""; ; {
		page, err := lbdv1.NewConfigServiceClient(n.conn).ListRevisions(ctx, &lbdv1.ListRevisionsRequest{PageSize: 1000, PageToken: token})
		if err != nil {
			t.Fatalf("%s: list revisions: %v", n.name, err)
		}
		all = append(all, page.GetRevisions()...)
		if token = page.GetNextPageToken(); token == "" {
			return all
		}
	}
}
