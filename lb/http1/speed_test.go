package http1

import (
	"bytes"
	"strings"
	"testing"
)

const smallHead = "GET /index.html HTTP/1.1\r\nHost: www.example.com\r\nUser-Agent: curl/8.5.0\r\nAccept: */*\r\n\r\n"

// realisticHead is what a browser sends: 20 fields, 2 kB of cookies.
var realisticHead = "GET /shop/items/1234?sort=price&page=2 HTTP/1.1\r\n" +
	"Host: www.example.com\r\n" +
	"Connection: keep-alive\r\n" +
	"sec-ch-ua: \"Chromium\";v=\"140\", \"Not=A?Brand\";v=\"24\"\r\n" +
	"sec-ch-ua-mobile: ?0\r\n" +
	"sec-ch-ua-platform: \"Linux\"\r\n" +
	"Upgrade-Insecure-Requests: 1\r\n" +
	"User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36\r\n" +
	"Accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8\r\n" +
	"Sec-Fetch-Site: same-origin\r\n" +
	"Sec-Fetch-Mode: navigate\r\n" +
	"Sec-Fetch-User: ?1\r\n" +
	"Sec-Fetch-Dest: document\r\n" +
	"Referer: https://www.example.com/shop/items/1234?sort=price&page=1\r\n" +
	"Accept-Encoding: gzip, deflate, br, zstd\r\n" +
	"Accept-Language: de-DE,de;q=0.9,en;q=0.8\r\n" +
	"If-None-Match: W/\"5f3a-18c2b\"\r\n" +
	"Cache-Control: max-age=0\r\n" +
	"DNT: 1\r\n" +
	"Priority: u=0, i\r\n" +
	"Cookie: " + strings.Repeat("session=0123456789abcdef; ", 80) + "last=1\r\n\r\n"

const smallAnswer = "HTTP/1.1 200 OK\r\nServer: x\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\nContent-Type: text/plain\r\nContent-Length: 1024\r\n\r\n"

var usualEdit = RequestEdit{
	ClientAddress: "192.0.2.7", Scheme: "https", Port: "443",
	RequestID: []byte("0123456789abcdef0123456789abcdef"), Via: "lbd",
}

// TestNoAllocation states the budget: none, for heads and bodies alike, once the memory of a
// Request, a Response, a Body and a buffer is there.
func TestNoAllocation(t *testing.T) {
	heads := []string{
		smallHead,
		realisticHead,
		"POST /a/../b%2fc?d HTTP/1.1\r\nHost: WWW.Example.COM.:80\r\nTransfer-Encoding: chunked\r\nTE: trailers\r\n" +
			"Connection: TE, X-A-Name-That-Is-Longer-Than-Thirty-Two-Octets\r\nExpect: 100-continue\r\n\r\n",
		"GET http://[2001:DB8::1]:80/ HTTP/1.0\r\nHost: a\r\n\r\n",
	}
	rules, err := CompileRules(map[string]string{"X-Auth-User": "a"}, nil, []string{"Cookie"})
	if err != nil {
		t.Fatal(err)
	}
	edit := usualEdit
	edit.Rules, edit.Trusted, edit.Forwarded = rules, true, true
	var r Request
	out := make([]byte, 0, 8<<10)
	for _, head := range heads {
		b := []byte(head)
		expectNone(t, head[:20], func() {
			r.Reset()
			if _, err := r.Parse(b, &DefaultLimits); err != nil {
				t.Fatal(err)
			}
			out = r.Append(out[:0], &edit)
		})
	}
	bad := []byte("GET / HTTP/1.1\r\nHost: a\r\nX : y\r\n\r\n")
	expectNone(t, "a refusal", func() {
		r.Reset()
		if _, err := r.Parse(bad, &DefaultLimits); err == nil {
			t.Fatal("accepted")
		}
	})
	var a Response
	answer := []byte(smallAnswer)
	expectNone(t, "an answer", func() {
		a.Reset()
		if _, err := a.Parse(answer, &DefaultLimits, nil); err != nil {
			t.Fatal(err)
		}
		out = a.Append(out[:0], &ResponseEdit{Framing: a.ClientFraming(1), Minor: 1, Via: "lbd", Rules: rules})
	})
	var d Body
	body := []byte("5;a=b\r\nhello\r\n5\r\nhello\r\n0\r\nX-Sum: 9\r\n\r\n")
	piece := make([]byte, len(body))
	expectNone(t, "a body", func() {
		d.start(Chunked, -1, false)
		for i := 0; i < len(body); i += 7 {
			n := copy(piece, body[i:min(i+7, len(body))])
			data, _, err := d.Decode(piece[:n])
			if err != nil {
				t.Fatal(err)
			}
			out = append(AppendChunkSize(out[:0], 1+len(data)), data...)
		}
		if out = AppendLastChunk(out, d.Trailer()); !d.Done() {
			t.Fatal("not done")
		}
	})
}

func expectNone(t *testing.T, what string, f func()) {
	t.Helper()
	if n := testing.AllocsPerRun(100, f); n != 0 {
		t.Errorf("%q: %v allocations", what, n)
	}
}

func BenchmarkRequest(b *testing.B) {
	for _, c := range []struct{ name, head string }{{"small", smallHead}, {"realistic", realisticHead}} {
		head := []byte(c.head)
		var r Request
		b.Run("parse/"+c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				r.Reset()
				if _, err := r.Parse(head, &DefaultLimits); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("append/"+c.name, func(b *testing.B) {
			out := make([]byte, 0, 8<<10)
			b.ReportAllocs()
			for b.Loop() {
				out = r.Append(out[:0], &usualEdit)
			}
		})
	}
}

func BenchmarkAnswer(b *testing.B) {
	head := []byte(smallAnswer)
	out := make([]byte, 0, 1<<10)
	var r Response
	b.ReportAllocs()
	for b.Loop() {
		r.Reset()
		if _, err := r.Parse(head, &DefaultLimits, nil); err != nil {
			b.Fatal(err)
		}
		out = r.Append(out[:0], &ResponseEdit{Framing: r.ClientFraming(1), Minor: 1, Via: "lbd"})
	}
}

// BenchmarkChunks decodes 16 KiB as it comes from one read: one chunk, or many small ones.
func BenchmarkChunks(b *testing.B) {
	for _, c := range []struct {
		name string
		size int
	}{{"one", 16 << 10}, {"of64", 64}} {
		var stream []byte
		for n := 0; n < 16<<10; n += c.size {
			stream = AppendChunkSize(stream, c.size)
			stream = append(stream, bytes.Repeat([]byte("x"), c.size)...)
			stream = append(stream, "\r\n"...)
		}
		stream = AppendLastChunk(stream, nil)
		work := make([]byte, len(stream))
		b.Run(c.name, func(b *testing.B) {
			var d Body
			b.ReportAllocs()
			for b.Loop() {
				copy(work, stream)
				d.start(Chunked, -1, false)
				if data, _, err := d.Decode(work); err != nil || len(data) != 16<<10 || !d.Done() {
					b.Fatal(len(data), err)
				}
			}
		})
	}
}
