package main

import (
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestEventsHaveTimesOfTheirOwn(t *testing.T) {
	e := newEvents("n1")
	clock := time.Unix(1_000_000, 0)
	e.now = func() time.Time { return clock }
	e.add("a", "pools/p", "")
	e.add("b", "pools/p", "")
	clock = clock.Add(-time.Hour) // somebody sets it
	e.add("c", "pools/p", "")
	clock = clock.Add(2 * time.Hour)
	e.add("d", "pools/p", "")
	var since time.Time
	for _, want := range []string{"a", "b", "c", "d"} {
		past, _ := e.since(since)
		if len(past) == 0 || past[0].GetType() != want || past[0].GetNode() != "n1" || !past[0].GetTime().AsTime().After(since) {
			t.Fatalf("after %s: %v, want %s", since, past, want)
		}
		since = past[0].GetTime().AsTime()
	}
	past, next := e.since(since)
	if len(past) > 0 {
		t.Errorf("after the last: %v", past)
	}
	select {
	case <-next:
		t.Error("woken for nothing")
	default:
	}
	e.add("e", "pools/p", "")
	select {
	case <-next:
	default:
		t.Error("not woken")
	}
}

func TestEventsAreBounded(t *testing.T) {
	e := newEvents("n1")
	for i := range 3 * eventsMax {
		e.add("a", "pools/p", strconv.Itoa(i))
	}
	past, _ := e.since(time.Time{})
	if len(past) > eventsMax || len(past) < eventsMax*8/10 || past[len(past)-1].GetMessage() != strconv.Itoa(3*eventsMax-1) {
		t.Errorf("%d are remembered, the last is %s", len(past), past[len(past)-1].GetMessage())
	}
	e.add("a", "pools/p", strings.Repeat("é", eventBytesMax))
	past, _ = e.since(time.Time{})
	if m := past[len(past)-1].GetMessage(); len(m) > eventBytesMax+len("…") || !utf8.ValidString(m) {
		t.Errorf("a message of %d bytes is remembered, valid: %v", len(m), utf8.ValidString(m))
	}
}
