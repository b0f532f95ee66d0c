package http1

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"lbd/lb/vectest"
)

// The fuzz targets compare with the slow twin. Without -fuzz they run their seeds: the
// vectors, the inputs of the scripts, and some heads cut or glued together.

func seeds(f *testing.F, proto string) {
	for _, octets := range vectorOctets(f, proto) {
		f.Add(octets)
	}
	f.Add([]byte(smallHead))
	f.Add([]byte(realisticHead))
	f.Add([]byte(smallAnswer))
}

// vectorOctets are the payloads of the vectors with this proto, but for the huge ones.
func vectorOctets(t testing.TB, proto string) (all [][]byte) {
	vectors, err := vectest.Load("../testdata/vectors/A")
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range vectors {
		if octets := bytes.Join(v.Segments, nil); v.Proto == proto && len(octets) < 10_000 {
			all = append(all, octets)
		}
	}
	return all
}

func FuzzRequest(f *testing.F) {
	seeds(f, "h1")
	f.Add([]byte("POST /a/./%2e%2e/%2F HTTP/1.1\r\nHost: [::1]:80\r\nConnection: x, TE\r\nX_: 1\r\nContent_Length: 5\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) { compareRequest(t, b) })
}

// compareRequest holds the parser against its twin and reports whether both took b.
func compareRequest(t *testing.T, b []byte) bool {
	t.Helper()
	lim := &Limits{HeadBytes: 4 << 10, Fields: 20}
	var r Request
	n, err := r.Parse(b, lim)
	want, wantN, ok := slowRequest(string(b), lim)
	if ok != (err == nil) || n != wantN {
		t.Fatalf("%q\nfast: %d %v\nslow: %d %v", b, n, err, wantN, ok)
	}
	checkPrefixes(t, b, lim, n, err)
	if !ok {
		return false
	}
	if got := fastRequest(&r); got.String() != want.String() {
		t.Fatalf("%q\nfast: %v\nslow: %v", b, got, want)
	}
	checkForwarded(t, &r)
	return true
}

// fastRequest puts what Parse and Append say into the twin's form.
func fastRequest(r *Request) *slowMessage {
	m := &slowMessage{
		method: string(r.Method), host: string(r.Host), authority: string(r.Authority), path: string(r.Path),
		hasHost: r.HasHost, slash: r.EncodedSlash, minor: r.Minor, framing: r.Framing, length: r.Length,
		keepAlive: r.KeepAlive, expect: r.ExpectContinue, upgrade: r.Upgrade, trailers: r.Trailers,
		fields: pairs(&r.Fields),
	}
	if r.Query != nil {
		m.query = "?" + string(r.Query)
	}
	m.kept = keptPairs(r.Append(nil, &RequestEdit{Rules: onlyKept}), "Host")
	return m
}

// onlyKept switches off the one field that Append would write without being told anything.
var onlyKept = &Rules{known: 1 << nameXForwardedHost}

func pairs(f *Fields) (list [][2]string) {
	for name, value := range f.All() {
		list = append(list, [2]string{string(name), string(value)})
	}
	return list
}

// keptPairs reads the fields of a written head back, without those that Append adds itself.
func keptPairs(head []byte, own ...string) (list [][2]string) {
	own = append(own, "Content-Length", "Transfer-Encoding", "Connection", "Upgrade", "TE", "Expect")
	lines := strings.Split(strings.TrimSuffix(string(head), "\r\n\r\n"), "\r\n")[1:]
	for _, line := range lines {
		name, value, _ := strings.Cut(line, ": ")
		mine := false
		for _, o := range own {
			mine = mine || name == o
		}
		if !mine {
			list = append(list, [2]string{name, value})
		}
	}
	return list
}

// checkForwarded: what goes to a backend is a request that means the same, that no strict
// reader refuses, and that a second balancer forwards as it is.
func checkForwarded(t *testing.T, r *Request) {
	head := r.Append(nil, &RequestEdit{Rules: onlyKept, Host: hostOr(r, "none")})
	var again Request
	n, err := again.Parse(head, &Limits{HeadBytes: 64 << 10, Fields: 40})
	if err != nil || n != len(head) {
		t.Fatalf("%q is forwarded as %q: %d, %v", r.Target, head, n, err)
	}
	meaning := func(r *Request) string {
		return fmt.Sprintf("%s %s %s %q %v %d", r.Method, r.Path, hostOr(r, "none"), r.Query, r.Framing, r.Length)
	}
	if meaning(&again) != meaning(r) || again.ExpectContinue != r.ExpectContinue || again.Upgrade != r.Upgrade || !again.KeepAlive {
		t.Fatalf("%s is forwarded as %s", meaning(r), meaning(&again))
	}
	if twice := again.Append(nil, &RequestEdit{Rules: onlyKept}); !bytes.Equal(head, twice) {
		t.Fatalf("forwarded again:\n%q\nonce:\n%q", twice, head)
	}
}

func hostOr(r *Request, none string) []byte {
	if r.HasHost {
		return r.Authority
	}
	return []byte(none)
}

func FuzzResponse(f *testing.F) {
	seeds(f, "resp")
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, asked := range []string{"GET", "HEAD", "upgrade"} {
			compareAnswer(t, b, asked)
		}
	})
}

// compareAnswer does so for an answer to a request of a kind.
func compareAnswer(t *testing.T, b []byte, asked string) bool {
	t.Helper()
	lim := &Limits{HeadBytes: 4 << 10, Fields: 20}
	req := &Request{Method: []byte(asked), Upgrade: asked == "upgrade"}
	var r Response
	n, err := r.Parse(b, lim, req)
	want, wantN, ok := slowAnswer(string(b), lim, asked == "HEAD", asked == "upgrade")
	if !ok {
		wantN = 0
	}
	if ok != (err == nil) || n != wantN {
		t.Fatalf("%q\nfast: %d %v\nslow: %d %v", b, n, err, wantN, ok)
	}
	checkAnswerPrefixes(t, b, lim, req, n, err)
	if !ok {
		return false
	}
	if got := fastAnswer(&r, want); got.String() != want.String() {
		t.Fatalf("%q\nfast: %v\nslow: %v", b, got, want)
	}
	checkRelayed(t, &r, req)
	return true
}

func fastAnswer(r *Response, want *slowMessage) *slowMessage {
	return &slowMessage{
		status: r.Status, minor: r.Minor, framing: r.Framing, length: r.Length, keepAlive: r.KeepAlive,
		fields: pairs(&r.Fields), kept: keptPairs(r.Append(nil, &ResponseEdit{Framing: r.Framing, Minor: 1})),
		upgrade: want.upgrade, trailers: want.trailers, // of requests only
	}
}

// checkRelayed: what goes to a client has one meaning, the same.
func checkRelayed(t *testing.T, r *Response, req *Request) {
	framing := r.ClientFraming(1)
	head := r.Append(nil, &ResponseEdit{Framing: framing, Minor: 1})
	var again Response
	n, err := again.Parse(head, &Limits{HeadBytes: 64 << 10, Fields: 40}, req)
	if err != nil || n != len(head) {
		t.Fatalf("%d is relayed as %q: %d, %v", r.Status, head, n, err)
	}
	if again.Status != r.Status || again.Framing != framing || again.Framing == Length && again.Length != r.Length {
		t.Fatalf("%d %v is relayed as %q", r.Status, r.Framing, head)
	}
	if again.Framing == UntilClose || !again.KeepAlive {
		t.Fatalf("an answer to a 1.1 client ends its connection: %q", head)
	}
}

func FuzzChunked(f *testing.F) {
	for _, octets := range vectorOctets(f, "h1") {
		if _, body, found := strings.Cut(string(octets), "\r\n\r\n"); found {
			f.Add([]byte(body), uint8(3))
		}
	}
	f.Add([]byte("5;a=\"\\\"\";b\r\nhello\r\n0\r\nX: y\r\n\r\nrest"), uint8(1))
	f.Fuzz(func(t *testing.T, b []byte, step uint8) { compareChunked(t, b, 1+int(step)) })
}

// compareChunked does so for a chunked body that comes in pieces of a size.
func compareChunked(t *testing.T, b []byte, size int) bool {
	t.Helper()
	payload, trailer, rest, ok := slowChunked(string(b))
	var d Body
	d.start(Chunked, -1, false)
	var got []byte
	used := 0
	var err error
	for used < len(b) && !d.Done() && err == nil {
		var data []byte
		var n int
		piece := bytes.Clone(b[used:min(used+size, len(b))])
		data, n, err = d.Decode(piece)
		if err == nil && n < len(piece) && !d.Done() {
			t.Fatalf("%q: %d of %d octets used, and not done", b, n, len(piece))
		}
		got = append(got, data...)
		used += n
	}
	if ok != (err == nil && d.Done()) {
		t.Fatalf("%q in pieces of %d: %v, done %v; slow: %v", b, size, err, d.Done(), ok)
	}
	if ok && (string(got) != payload || string(d.Trailer()) != trailer || string(b[used:]) != rest) {
		t.Fatalf("%q: %q %q %q; slow: %q %q %q", b, got, d.Trailer(), b[used:], payload, trailer, rest)
	}
	if err != nil {
		if _, _, again := d.Decode([]byte("0\r\n\r\n")); again == nil {
			t.Fatalf("%q: goes on after %v", b, err)
		}
	}
	return ok
}

func FuzzPath(f *testing.F) {
	for _, p := range []string{"/", "/a/../b", "/%2e%2e/%2F", "/..;/x", "/a/..\\", "/é%", "/a//../.", "/%61%zz"} {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, p string) {
		if !strings.HasPrefix(p, "/") || strings.ContainsAny(p, "?#\x7f") || strings.ContainsFunc(p, func(r rune) bool { return r <= ' ' }) {
			if _, _, err := AppendPath(nil, []byte(p)); err == nil {
				t.Fatalf("%q taken", p)
			}
			return
		}
		want, slash, ok := slowPath(p)
		got, gotSlash, err := AppendPath([]byte("kept"), []byte(p))
		if (err == nil) != ok {
			t.Fatalf("%q: fast %v, slow %v", p, err, ok)
		}
		if ok && (string(got) != "kept"+want || gotSlash != slash) {
			t.Fatalf("%q: fast %q %v, slow %q %v", p, got, gotSlash, want, slash)
		}
		if ok && !strings.HasPrefix(want, "/") {
			t.Fatalf("%q becomes %q", p, want)
		}
	})
}
