package http1

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"lbd/lb/vectest"
)

// TestVectors runs the vectors through the parser alone, checks their class, and holds what
// became of each against testdata/vectors.golden, reason included.
func TestVectors(t *testing.T) {
	vectors, err := vectest.Load("../testdata/vectors/A")
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, v := range vectors {
		octets := bytes.Join(v.Segments, nil)
		var o outcome
		switch v.Proto {
		case "h1":
			o = forwardAll(t, octets)
			checkClass(t, v, &o)
		case "resp":
			o = relayAll(octets, v.Fin)
			checkAnswerClass(t, v, &o)
		default:
			continue
		}
		fmt.Fprintf(&out, "%-24s %-20s %s\n", v.ID, v.Expect, o.String())
	}
	const golden = "testdata/vectors.golden"
	if *update {
		if err := os.WriteFile(golden, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	for i, line := range strings.Split(string(want), "\n") {
		if got := strings.Split(out.String(), "\n"); i >= len(got) || got[i] != line {
			t.Fatalf("%s:%d: %q is now %q", golden, i+1, line, got[min(i, len(got)-1)])
		}
	}
}

// outcome is what became of a stream of messages.
type outcome struct {
	passed  int    // messages that went on whole
	octets  []byte // all that went on
	closing bool   // the last one ends the connection
	err     error  // what ended it; ErrIncomplete if it broke off
}

func (o *outcome) String() string {
	s := fmt.Sprintf("%d passed", o.passed)
	switch {
	case o.err != nil:
		return s + ", then " + strings.TrimSpace(describe(o.err))
	case o.closing:
		return s + ", then close"
	}
	return s
}

// forwardAll does with a client's octets what a connection does.
func forwardAll(t *testing.T, b []byte) (o outcome) {
	for len(b) > 0 && !o.closing {
		var r Request
		n, err := r.Parse(b, &DefaultLimits)
		checkPrefixes(t, b, &DefaultLimits, n, err)
		if err == nil && r.EncodedSlash {
			err = ErrEncodedSlash
		}
		if err != nil {
			o.err = err
			return o
		}
		o.octets = r.Append(o.octets, &RequestEdit{})
		var d Body
		r.StartBody(&d)
		b = b[n:]
		if n, o.err = o.body(&d, r.Framing, bytes.Clone(b)); o.err != nil {
			return o
		}
		b = b[n:]
		o.passed++
		o.closing = !r.KeepAlive
	}
	return o
}

// body passes one body on in the given framing.
func (o *outcome) body(d *Body, f Framing, b []byte) (int, error) {
	data, n, err := d.Decode(b)
	if err != nil {
		return n, err
	}
	if f == Chunked && len(data) > 0 {
		o.octets = append(AppendChunkSize(o.octets, len(data)), data...)
		o.octets = append(o.octets, "\r\n"...)
	} else {
		o.octets = append(o.octets, data...)
	}
	if !d.Done() {
		return n, ErrIncomplete
	}
	if f == Chunked {
		o.octets = AppendLastChunk(o.octets, d.Trailer())
	}
	return n, nil
}

func checkClass(t *testing.T, v *vectest.Vector, o *outcome) {
	t.Helper()
	refused := o.err != nil && !errors.Is(o.err, ErrIncomplete)
	right := o.passed <= v.Requests
	switch v.Expect {
	case vectest.Reject:
		right = right && refused
	case vectest.Forward:
		right = o.passed == v.Requests && o.err == nil
	case vectest.Either:
		right = right && !errors.Is(o.err, ErrIncomplete)
	case vectest.Close:
		right = right && o.err != nil
	}
	if !right {
		t.Errorf("%s (%s; %s): %v", v.ID, v.Expect, v.Why, o)
	}
	if v.MustClose && !o.closing && !refused {
		t.Errorf("%s: the connection stays open", v.ID)
	}
	for _, problem := range vectest.Inspect(v, o.octets) {
		t.Errorf("%s: %s\n%q", v.ID, problem, o.octets)
	}
}

// relayAll does with a backend's octets what a connection does that asked GET.
func relayAll(b []byte, fin bool) (o outcome) {
	var r Response
	n, err := r.Parse(b, &DefaultLimits, nil)
	if err != nil {
		return outcome{err: err}
	}
	framing := r.ClientFraming(1)
	o.octets = r.Append(nil, &ResponseEdit{Framing: framing, Minor: 1})
	var d Body
	r.StartBody(&d)
	if _, o.err = o.body(&d, framing, bytes.Clone(b[n:])); errors.Is(o.err, ErrIncomplete) && fin {
		o.err = d.EOF()
	}
	if o.err == nil {
		o.passed, o.closing = 1, !r.KeepAlive
	}
	return o
}

func checkAnswerClass(t *testing.T, v *vectest.Vector, o *outcome) {
	t.Helper()
	right := true
	switch v.Expect {
	case vectest.Reject5:
		right = o.err != nil && o.passed == 0
	case vectest.Forward:
		right = o.err == nil && o.passed == 1
	case vectest.Close:
		right = o.err != nil
	}
	if !right {
		t.Errorf("%s (%s; %s): %v", v.ID, v.Expect, v.Why, o)
	}
	for _, a := range v.Absent {
		if strings.Contains(strings.ToLower(string(o.octets)), a) {
			t.Errorf("%s: the client gets %q", v.ID, a)
		}
	}
}

// TestWhatClientsSend: of the vectors where refusing would be allowed, these are forwarded,
// because real clients send them or the RFC wants it.
func TestWhatClientsSend(t *testing.T) {
	senders := map[string]string{
		"absolute-form-03":   "clients that think we are their proxy, and RFC 9112 3.2.2",
		"expect-01":          "curl, for bodies over a megabyte",
		"expect-03":          "libraries that set it whatever the method",
		"expect-05":          "curl; what a body holds is its own business",
		"http10-03":          "clients of HTTP/1.0, whose Expect means nothing (RFC 9110 10.1.1)",
		"cl-valid-03":        "search clients that send a query in a GET",
		"cl-valid-05":        "the same",
		"host-valid-05":      "health checks of other balancers",
		"large-ok-01":        "browsers, with single sign-on in the target",
		"large-ok-03":        "meshes that add their own fields",
		"leading-crlf-01":    "old browsers and embedded clients, after a POST",
		"method-11":          "WebDAV, CalDAV and cache purges",
		"method-09":          "scripts; methods are the backend's to judge",
		"chunk-extension-09": "nobody known, but RFC 9112 7.1.1 wants bad whitespace read",
		"path-segments-01":   "clients that put relative links together themselves",
		"path-segments-09":   "the same",
		"path-segments-11":   "applications that escape twice",
		"target-bytes-11":    "curl, which sends what it is given",
		"upgrade-01":         "clients that try h2c on every first request: curl --http2",
		"hop-by-hop-07":      "libwww-perl",
		"version-19":         "RFC 9110 2.5: a later minor version is no error",
	}
	vectors, err := vectest.Load("../testdata/vectors/A")
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range vectors {
		who, listed := senders[v.ID]
		if !listed {
			continue
		}
		if o := forwardAll(t, bytes.Join(v.Segments, nil)); o.err != nil || o.passed != v.Requests {
			t.Errorf("%s, sent by %s: %v", v.ID, who, &o)
		}
		delete(senders, v.ID)
	}
	for id := range senders {
		t.Errorf("there is no vector %s", id)
	}
}
