package http1

import (
	"errors"
	"strconv"
	"strings"
	"testing"
)

// TestBodyLimits: what costs without carrying data is bounded, by itself and over a body.
func TestBodyLimits(t *testing.T) {
	line := func(n int) string { return "5;" + strings.Repeat("a", n-len("5;\r\n")) + "\r\n" }
	chunk := func(extension string) string { return "5;" + extension + "\r\nhello\r\n" }
	big := "10000;" + strings.Repeat("a", 500) + "\r\n" + strings.Repeat("x", 1<<16) + "\r\n"
	field := func(n int) string { return "X: " + strings.Repeat("a", n-len("X: \r\n")) + "\r\n" }
	for _, c := range []struct {
		name, body, reason string
	}{
		{"line at its limit", line(chunkLineBytesMax) + "hello\r\n", ""},
		{"line over it", line(chunkLineBytesMax+1) + "hello\r\n", "chunk_extension_too_large"},
		{"line without end", "5;" + strings.Repeat("a", chunkLineBytesMax), "chunk_extension_too_large"},
		{"extensions that run ahead", strings.Repeat(chunk(strings.Repeat("a", 504)), 17), "chunk_extension_too_large"},
		{"extensions that do not quite", strings.Repeat(chunk(strings.Repeat("a", 504)), 16), ""},
		{"extensions of chunks with data", strings.Repeat(big, 40), ""},
		{"trailers at their limit", "0\r\n" + field(trailerBytesMax), ""},
		{"trailer over it", "0\r\n" + field(trailerBytesMax+1), "trailer_too_large"},
		{"trailers over it together", "0\r\n" + field(5000) + field(5000), "trailer_too_large"},
		{"trailer without end", "0\r\nX: " + strings.Repeat("a", trailerBytesMax), "trailer_too_large"},
		{"trailer fields at their limit", "0\r\n" + strings.Repeat("Host: a\r\n", trailerFieldsMax), ""},
		{"one more", "0\r\n" + strings.Repeat("Host: a\r\n", trailerFieldsMax+1), "trailer_too_large"},
	} {
		for _, size := range []int{len(c.body), 4096, 7} {
			var d Body
			d.start(Chunked, -1, false)
			var err error
			for rest := []byte(c.body); len(rest) > 0 && err == nil; {
				n := min(size, len(rest))
				_, _, err = d.Decode(rest[:n])
				rest = rest[n:]
			}
			reason := ""
			if err != nil {
				reason = err.Error()
			}
			if reason != c.reason {
				t.Errorf("%s, in pieces of %d: %q, want %q", c.name, size, reason, c.reason)
			}
		}
	}
}

// TestReuse: a Request, Response or Body carries nothing over to the next message.
func TestReuse(t *testing.T) {
	var r Request
	full := "POST http://B.test/x/../y%2f?q HTTP/1.0\r\nHost: B.test\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\n"
	for _, broken := range []string{full, "GET / HTTP/1.1\r\nHost: a\r\nX", "GET / HTTP/1.1\r\nHost: a\r\nX : y\r\n", "\r\n"} {
		r.Reset()
		r.Parse([]byte(broken), &DefaultLimits)
		r.Reset()
		var fresh Request
		n, err := r.Parse([]byte(smallHead), &DefaultLimits)
		if wantN, wantErr := fresh.Parse([]byte(smallHead), &DefaultLimits); n != wantN || err != wantErr {
			t.Fatal(n, err)
		}
		if summary(&r) != summary(&fresh) {
			t.Errorf("after %q:\n%s\nfresh:\n%s", broken, summary(&r), summary(&fresh))
		}
	}
	var a Response
	if _, err := a.Parse([]byte("HTTP/1.0 304 X\r\nContent-Length: 9\r\nKeep-Alive: timeout=3\r\n\r\n"), &DefaultLimits, nil); err != nil {
		t.Fatal(err)
	}
	a.Reset()
	if _, err := a.Parse([]byte("HTTP/1.1 200\r\n\r\n"), &DefaultLimits, nil); err != nil {
		t.Fatal(err)
	}
	if got := answerSummary(&a); got != "200 \"\" close until-close\n" {
		t.Error(got)
	}
	var d Body
	d.start(Chunked, -1, false)
	d.Decode([]byte("5;a\r\nhello\r\n0\r\nX: y\r\n\r\n"))
	d.start(Chunked, -1, false)
	if data, n, err := d.Decode([]byte("1\r\nx\r\n0\r\n\r\n")); string(data) != "x" || n != 11 || err != nil || !d.Done() || len(d.Trailer()) != 0 {
		t.Errorf("%q %d %v %q", data, n, err, d.Trailer())
	}
}

func TestHostLimit(t *testing.T) {
	for n, want := range map[int]bool{hostBytesMax: true, hostBytesMax + 1: false} {
		var r Request
		host := strings.Repeat("A", n)
		_, err := r.Parse([]byte("GET / HTTP/1.1\r\nHost: "+host+"\r\n\r\n"), &DefaultLimits)
		if (err == nil) != want || want && string(r.Host) != strings.ToLower(host) {
			t.Errorf("%d octets: %q %v", n, r.Host, err)
		}
	}
}

func TestGet(t *testing.T) {
	var r Request
	head := "GET / HTTP/1.1\r\nHost: a\r\nX-Tag: 1\r\nx_tag: 2\r\nX-TAG: 3\r\nCookie: c\r\n\r\n"
	if _, err := r.Parse([]byte(head), &DefaultLimits); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"x-tag": "1", "X-Tag": "1", "X_Tag": "2", "cookie": "c", "HOST": "a"} {
		if got, found := r.Fields.Get(name); !found || string(got) != want {
			t.Errorf("%s: %q %v", name, got, found)
		}
	}
	if got, found := r.Fields.Get("X-Ta"); found || got != nil {
		t.Errorf("X-Ta: %q", got)
	}
	for name := range r.Fields.All() {
		if string(name) != "Host" {
			t.Errorf("the first field is %s", name)
		}
		break
	}
}

func TestAppendChunkSize(t *testing.T) {
	for _, n := range []int{1, 9, 10, 15, 16, 17, 255, 256, 4095, 4096, 1<<16 - 1, 1 << 16, 1<<31 - 1} {
		if got, want := string(AppendChunkSize([]byte("x"), n)), "x"+strconv.FormatInt(int64(n), 16)+"\r\n"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestNothingToRead: a body of no octets is over before anything is read.
func TestNothingToRead(t *testing.T) {
	for _, head := range []string{"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"} {
		var r Request
		if _, err := r.Parse([]byte(head), &DefaultLimits); err != nil {
			t.Fatal(err)
		}
		var d Body
		r.StartBody(&d)
		if !d.Done() || d.EOF() != nil {
			t.Errorf("%q waits for a body", head)
		}
	}
}

// TestErrorsAreDistinct: every fault has a reason of its own and a status that fits its sender.
func TestErrorsAreDistinct(t *testing.T) {
	seen := map[string]bool{}
	for f := badRequestLine; f < faultCount; f++ {
		var e *Error
		if !errors.As(requestError(f), &e) || e.Reason == "" || e.Error() != e.Reason || seen[e.Reason] || e.Status < 400 {
			t.Errorf("fault %d: %+v", f, e)
		}
		seen[e.Reason] = true
		if !errors.As(responseError(f), &e) || e.Status != 502 {
			t.Errorf("fault %d of an answer: %+v", f, e)
		}
	}
}
