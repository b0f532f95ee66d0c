package http1

import (
	"bytes"
	"errors"
	"testing"
)

// checkPrefixes checks that a head which comes in pieces, in a buffer that moves, is
// understood as the whole is: every prefix is incomplete or has the error of the whole.
func checkPrefixes(t *testing.T, b []byte, lim *Limits, n int, err error) {
	t.Helper()
	var whole, inPieces Request
	whole.Parse(b, lim)
	moved := mover()
	for i := range cuts(b, n) {
		var fresh Request
		if _, got := fresh.Parse(bytes.Clone(b[:i]), lim); !errors.Is(got, ErrIncomplete) && (got == nil || got != err) {
			t.Fatalf("%.200q cut at %d: %v, whole: %v", b, i, got, err)
		}
		_, got := inPieces.Parse(moved(b[:i]), lim)
		if got == nil || !errors.Is(got, ErrIncomplete) && got != err {
			t.Fatalf("%.200q in pieces to %d: %v, whole: %v", b, i, got, err)
		}
		if !errors.Is(got, ErrIncomplete) {
			return
		}
	}
	gotN, got := inPieces.Parse(moved(b), lim)
	if gotN != n || got != err {
		t.Fatalf("%.200q in pieces: %d %v, whole: %d %v", b, gotN, got, n, err)
	}
	if err == nil && summary(&inPieces) != summary(&whole) {
		t.Fatalf("in pieces:\n%s\nwhole:\n%s", summary(&inPieces), summary(&whole))
	}
}

// checkAnswerPrefixes does the same for an answer.
func checkAnswerPrefixes(t *testing.T, b []byte, lim *Limits, req *Request, n int, err error) {
	t.Helper()
	var whole, inPieces Response
	whole.Parse(b, lim, req)
	moved := mover()
	for i := range cuts(b, n) {
		_, got := inPieces.Parse(moved(b[:i]), lim, req)
		if got == nil || !errors.Is(got, ErrIncomplete) && got != err {
			t.Fatalf("%.200q in pieces to %d: %v, whole: %v", b, i, got, err)
		}
		if !errors.Is(got, ErrIncomplete) {
			return
		}
	}
	gotN, got := inPieces.Parse(moved(b), lim, req)
	if gotN != n || got != err {
		t.Fatalf("%.200q in pieces: %d %v, whole: %d %v", b, gotN, got, n, err)
	}
	if err == nil && answerSummary(&inPieces) != answerSummary(&whole) {
		t.Fatalf("in pieces:\n%s\nwhole:\n%s", answerSummary(&inPieces), answerSummary(&whole))
	}
}

// mover returns a function that copies octets to a new place and makes the old one useless.
func mover() func([]byte) []byte {
	var last []byte
	return func(b []byte) []byte {
		next := bytes.Clone(b)
		for i := range last {
			last[i] = 0
		}
		last = next
		return next
	}
}

// cuts says how many proper prefixes of b are tried: all that are shorter than the head, but
// of the very long ones only the first few thousand.
func cuts(b []byte, n int) int {
	if n == 0 {
		n = len(b)
	}
	return min(n, 3000)
}

// TestPiecesCostNoMore feeds a head of 64 KiB octet by octet. Looking at everything again each
// time would be two billion octets.
func TestPiecesCostNoMore(t *testing.T) {
	head := []byte("GET / HTTP/1.1\r\nHost: a\r\nX: ")
	head = append(head, bytes.Repeat([]byte("x"), 40<<10)...)
	head = append(head, "\r\n\r\n"...)
	var r Request
	for i := range head {
		if _, err := r.Parse(head[:i], &DefaultLimits); !errors.Is(err, ErrIncomplete) {
			t.Fatal(i, err)
		}
		if r.scan != i && i > 2 {
			t.Fatalf("after %d octets the next look begins at %d", i, r.scan)
		}
	}
	if n, err := r.Parse(head, &DefaultLimits); n != len(head) || err != nil {
		t.Fatal(n, err)
	}
}
