package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cluster/rpc"
	"lbd/lb"
	lbdv1 "lbd/proto/lbd/v1"
)

const (
	// eventsMax bounds what a node remembers: a few hundred bytes each.
	eventsMax = 10000
	// eventBytesMax bounds a message, as that of a revision that is refused for many reasons.
	eventBytesMax = 2 << 10
)

// events are what has happened on this node, newest last.
type events struct {
	node string
	now  func() time.Time

	mu   sync.Mutex
	ring []*lbdv1.WatchEventsResponse
	last time.Time
	next chan struct{} // closed when there is one more
}

func newEvents(node string) *events {
	return &events{node: node, now: time.Now, next: make(chan struct{})}
}

// add never blocks: it may be called from a loop.
func (e *events) add(kind, resource, message string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.ring) == eventsMax {
		e.ring = append(e.ring[:0:0], e.ring[eventsMax/10:]...)
	}
	now := e.now().Round(0) // the wall's time alone, which is what clients have: it may go back
	if !now.After(e.last) { // times tell events apart
		now = e.last.Add(time.Nanosecond)
	}
	e.last = now
	if len(message) > eventBytesMax {
		message = strings.ToValidUTF8(message[:eventBytesMax], "") + "…"
	}
	e.ring = append(e.ring, &lbdv1.WatchEventsResponse{
		Time: timestamppb.New(now), Node: e.node, Type: kind, Resource: resource, Message: message,
	})
	close(e.next)
	e.next = make(chan struct{})
}

// since lists the events after a time, and says when there are more.
func (e *events) since(t time.Time) (past []*lbdv1.WatchEventsResponse, next <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	from := len(e.ring)
	for from > 0 && e.ring[from-1].GetTime().AsTime().After(t) {
		from--
	}
	return append(past, e.ring[from:]...), e.next
}

// tellProgress makes events of what a publish has changed: what is served, and what is not as it is stored.
func (a *appliance) tellProgress(before, now rpc.Progress) {
	reasons := func(p rpc.Progress) map[string]string {
		all := map[string]string{}
		for _, r := range p.Refused {
			if r.Kind != "" { // a whole revision tells itself
				all[r.Kind+"/"+r.Name] = r.Reason
			}
		}
		return all
	}
	was, is := reasons(before), reasons(now)
	for _, resource := range slices.Sorted(maps.Keys(is)) {
		if was[resource] != is[resource] {
			a.events.add("resource_refused", resource, is[resource])
		}
	}
	for _, resource := range slices.Sorted(maps.Keys(was)) {
		if _, still := is[resource]; !still {
			a.events.add("resource_restored", resource, "served as it is stored, or gone")
		}
	}
	if now.Revision != before.Revision {
		message := "all of it"
		if len(is) > 0 {
			message = fmt.Sprintf("all but %s", strings.Join(slices.Sorted(maps.Keys(is)), ", "))
		}
		a.events.add("revision_served", fmt.Sprintf("revisions/%d", now.Revision), message)
	}
}

// tellTraffic makes an event of what the data plane has decided by itself. It is called under the server's lock.
func (a *appliance) tellTraffic(e lb.Event) {
	resource := "pools/" + e.Pool
	if e.Backend != "" {
		resource += "/" + e.Backend
	}
	a.events.add(string(e.Type), resource, e.Message)
}

// logTraffic writes down the data plane's events since a time. It returns the time of the last event, and what is closed when there is
// one more.
func (a *appliance) logTraffic(since time.Time) (time.Time, <-chan struct{}) {
	past, next := a.events.since(since)
	for _, e := range past {
		since = e.GetTime().AsTime()
		switch lb.EventType(e.GetType()) {
		case lb.BackendEjected, lb.BackendRestored, lb.FailOpenBegun, lb.FailOpenEnded:
			a.log.Info("backend changed", "event", e.GetType(), "resource", e.GetResource(), "message", e.GetMessage())
		}
	}
	return since, next
}
