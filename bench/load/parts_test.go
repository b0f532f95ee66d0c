//go:build linux

package load

import (
	"crypto/tls"
	"errors"
	"fmt"
	"testing"
	"time"
)

func TestScheduleIsEven(t *testing.T) {
	start := time.Unix(1000, 0)
	s := newSchedule(start, 3)
	for k := range 300 {
		want := time.Duration(float64(k) / 3 * float64(time.Second))
		if got := s.take().Sub(start); got < want-2 || got > want+2 {
			t.Fatalf("request %d is due after %v, want %v", k, got, want)
		}
	}
}

func TestSleepersWakeInOrder(t *testing.T) {
	s := newSchedule(time.Unix(0, 0), 1)
	var asleep []*client
	for round := range 200 {
		for range round % 5 {
			c := &client{}
			s.sleep(c)
			asleep = append(asleep, c)
		}
		for range round % 4 {
			if s.next() == nil {
				break
			}
			if s.next() != asleep[0] {
				t.Fatalf("round %d: the wrong client is next", round)
			}
			s.pop()
			asleep = asleep[1:]
		}
	}
	if len(asleep) == 0 || s.next() != asleep[0] {
		t.Fatalf("%d clients should still sleep", len(asleep))
	}
}

func TestSingleUseTickets(t *testing.T) {
	s := ticketStore{singleUse: true}
	var put []*tls.ClientSessionState
	for range ticketsMax + 2 {
		put = append(put, &tls.ClientSessionState{})
		s.Put("", put[len(put)-1])
	}
	for i := range ticketsMax {
		if got, ok := s.Get(""); !ok || got != put[len(put)-1-i] {
			t.Fatalf("ticket %d is not the newest one left", i)
		}
	}
	if _, ok := s.Get(""); ok {
		t.Fatal("a ticket was given out twice, or more were kept than allowed")
	}
}

func TestTicketsUsedAgain(t *testing.T) {
	var s ticketStore
	first, second := &tls.ClientSessionState{}, &tls.ClientSessionState{}
	s.Put("", first)
	for range 2 {
		if got, ok := s.Get(""); !ok || got != first {
			t.Fatal("the ticket is gone")
		}
	}
	s.Put("", second)
	if got, _ := s.Get(""); got != second {
		t.Fatal("the old ticket was not replaced")
	}
	s.Put("", nil)
	if _, ok := s.Get(""); ok {
		t.Fatal("a refused session is still there")
	}
}

func TestParseHead(t *testing.T) {
	for _, c := range []struct {
		head   string
		length int
		reason string
	}{
		{"HTTP/1.1 200 OK\r\nServer: x\r\nContent-Length: 12\r\n", 12, ""},
		{"HTTP/1.1 200 OK\r\ncontent-length:7\r\n", 7, ""},
		{"HTTP/1.0 200\r\nContent-Length: 0\r\n", 0, ""},
		{"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 7\r\n", 0, "status 502"},
		{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n", 0, "wrong length"},
		{"HTTP/1.1 200 OK\r\nX-Content-Length: 7\r\n", 0, "wrong length"},
		{"HTTP/1.1 200 OK\r\nContent-Length: x\r\n", 0, "malformed head"},
		{"HTTP/2 200\r\n", 0, "malformed head"},
		{"\r\n", 0, "malformed head"},
	} {
		length, err := parseHead([]byte(c.head))
		got := ""
		if err != nil {
			got = reason(err)
		}
		if length != c.length || got != c.reason {
			t.Errorf("%q: length %d, reason %q", c.head, length, got)
		}
	}
}

func TestReasonOfATimeoutInAHandshake(t *testing.T) {
	if got := reason(fmt.Errorf("%w: %w", errHandshake, errTimeout)); got != "timeout" {
		t.Errorf("reason %q", got)
	}
	if got := reason(errors.New("read: connection reset by peer")); got != errClosed.Error() {
		t.Errorf("reason %q", got)
	}
}
