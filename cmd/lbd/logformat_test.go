package main

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"lbd/lb"
)

// fullRecord has every field.
func fullRecord() *lb.Record {
	return &lb.Record{
		Time: time.Date(2026, 3, 4, 5, 6, 7, 89_999_999, time.UTC), Node: "n1", Listener: "https", Client: netip.MustParseAddrPort("[2001:db8::1]:4711"),
		TLS:    &lb.TLSFacts{Version: "1.3", Suite: "TLS_AES_128_GCM_SHA256", ServerName: "a.test", Protocol: "http/1.1", Resumed: true},
		Target: []byte("/a/../b?q=1"), Method: []byte("GET"), Host: []byte("a.test"), Path: []byte("/b"), Query: []byte("q=1"), Minor: 1,
		UserAgent: []byte(`quo"te`), Referer: []byte("http://r.test/"), RequestID: []byte("0123456789abcdef"),
		Route: "web", Pool: "app", Backend: "10.0.0.1:80", Status: 502, Reason: lb.BackendAborted, Detail: "no_answer",
		RequestBytes: 12, ResponseBytes: 345, Tries: 2, Reused: true,
		Head: 1500 * time.Microsecond, Connect: 20 * time.Millisecond, FirstByte: 3 * time.Microsecond, Total: 2 * time.Second,
	}
}

// refusedRecord is of a head that could not be read.
func refusedRecord() *lb.Record {
	return &lb.Record{
		Time: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC), Node: "n1", Listener: "http", Client: netip.MustParseAddrPort("192.0.2.1:80"),
		Line: []byte("GET \"\x00\xff\\ HTTP/9"), RequestID: []byte("ff"), Status: 400, Reason: lb.BadRequest, Detail: "bad_version",
	}
}

// handshakeRecord is of a connection without a request.
func handshakeRecord() *lb.Record {
	return &lb.Record{
		Time: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC), Node: "n1", Listener: "https", Client: netip.MustParseAddrPort("192.0.2.1:80"),
		TLS: &lb.TLSFacts{ServerName: "b.test"}, Reason: lb.ClientTimeout, Detail: "handshake_timeout", Total: 10 * time.Second,
	}
}

func TestLogFormats(t *testing.T) {
	time.Local = time.FixedZone("test", 2*3600)
	for _, c := range []struct {
		format string
		record *lb.Record
		want   string
	}{
		{"json", fullRecord(), `{"time":"2026-03-04T05:06:07.089Z","node":"n1","listener":"https","client":"[2001:db8::1]:4711",` +
			`"request_id":"0123456789abcdef","protocol":"HTTP/1.1","method":"GET","host":"a.test","path":"/b","query":"q=1",` +
			`"user_agent":"quo\"te","referer":"http://r.test/","route":"web","pool":"app","backend":"10.0.0.1:80","status":502,` +
			`"reason":"backend_aborted","detail":"no_answer","request_bytes":12,"response_bytes":345,"tries":2,"reused":true,` +
			`"head_ms":1.500,"connect_ms":20,"first_byte_ms":0.003,"total_ms":2000,` +
			`"tls_version":"1.3","tls_cipher":"TLS_AES_128_GCM_SHA256","tls_server_name":"a.test","tls_alpn":"http/1.1","tls_resumed":true}`},
		{"json", refusedRecord(), `{"time":"2026-03-04T05:06:07.000Z","node":"n1","listener":"http","client":"192.0.2.1:80","request_id":"ff",` +
			`"line":"GET \"\u0000\u00ff\\ HTTP/9","status":400,"reason":"bad_request","detail":"bad_version",` +
			`"request_bytes":0,"response_bytes":0,"tries":0,"head_ms":0,"total_ms":0}`},
		{"json", handshakeRecord(), `{"time":"2026-03-04T05:06:07.000Z","node":"n1","listener":"https","client":"192.0.2.1:80","status":0,` +
			`"reason":"client_timeout","detail":"handshake_timeout","request_bytes":0,"response_bytes":0,"tries":0,"head_ms":0,"total_ms":10000,` +
			`"tls_server_name":"b.test"}`},
		{"common", fullRecord(), `2001:db8::1 - - [04/Mar/2026:07:06:07 +0200] "GET /a/../b?q=1 HTTP/1.1" 502 345`},
		{"combined", fullRecord(), `2001:db8::1 - - [04/Mar/2026:07:06:07 +0200] "GET /a/../b?q=1 HTTP/1.1" 502 345 "http://r.test/" "quo\"te"`},
		{"common", refusedRecord(), `192.0.2.1 - - [04/Mar/2026:07:06:07 +0200] "GET \"\x00\xff\\ HTTP/9" 400 0`},
		{"combined", handshakeRecord(), `192.0.2.1 - - [04/Mar/2026:07:06:07 +0200] "-" 0 0 "-" "-"`},
	} {
		got := string(logFormats[c.format]([]byte("before\n"), c.record))
		if got != "before\n"+c.want+"\n" {
			t.Errorf("%s:\n got %s\nwant %s", c.format, got, c.want)
		}
	}
}

func TestLogFormatsAllocateNothing(t *testing.T) {
	dst := make([]byte, 0, 64<<10)
	for name, format := range logFormats {
		for _, r := range []*lb.Record{fullRecord(), refusedRecord(), handshakeRecord()} {
			if n := testing.AllocsPerRun(100, func() { format(dst, r) }); n != 0 {
				t.Errorf("%s: %v allocations", name, n)
			}
		}
	}
}

// TestLogCutsLongFields: a head of 64 KiB is no line of 400.
func TestLogCutsLongFields(t *testing.T) {
	r := fullRecord()
	long := bytes.Repeat([]byte{0xff}, 64<<10)
	r.Target, r.Path, r.Query, r.UserAgent, r.Referer, r.Host = long, long, long, long, long, long
	for name, format := range logFormats {
		if n := len(format(nil, r)); n > 6*6*logFieldBytesMax {
			t.Errorf("%s: a line of %d bytes", name, n)
		}
	}
}

// FuzzLog: whatever a client sends, a record is one line; as JSON it is an object that gives every text back.
func FuzzLog(f *testing.F) {
	f.Add("GET", "/b", "q=1", "curl", "a.test", "GET / HTTP/1.1")
	f.Add("", "", "\xff\xfe\"\\\n\r\x00\x7f", "\u2028\ufffd\U0010ffff", "\xed\xa0\x80", "\xf0\x9f\x98")
	f.Fuzz(func(t *testing.T, method, path, query, agent, name, line string) {
		r := fullRecord()
		r.Path, r.Query, r.UserAgent, r.TLS.ServerName, r.Line = []byte(path), []byte(query), []byte(agent), name, []byte(line)
		r.Target, r.Referer = r.Path, r.Query
		for format, write := range logFormats {
			for _, refused := range []bool{false, true} {
				r.Method = []byte(method)
				if refused {
					r.Method = nil
				}
				got := write(nil, r)
				if bytes.IndexByte(got, '\n') != len(got)-1 || bytes.ContainsAny(got[:len(got)-1], "\r\x00\x1b\x7f") {
					t.Fatalf("%s: not one line of text: %q", format, got)
				}
				if format == "json" {
					checkJSON(t, got, refused, r)
				}
			}
		}
	})
}

func checkJSON(t *testing.T, line []byte, refused bool, r *lb.Record) {
	var fields map[string]any
	if err := json.Unmarshal(line, &fields); err != nil {
		t.Fatalf("%v: %q", err, line)
	}
	want := map[string]string{"path": string(r.Path), "query": string(r.Query), "user_agent": string(r.UserAgent), "line": ""}
	if refused {
		want = map[string]string{"path": "", "query": "", "user_agent": "", "line": string(r.Line)}
	}
	want["tls_server_name"] = r.TLS.ServerName
	for key, sent := range want {
		got, _ := fields[key].(string)
		if expected := readable(sent); got != expected {
			t.Fatalf("%s: %q reads as %q, want %q", key, sent, got, expected)
		}
	}
}

// readable is what a reader of the log gets: the text, with each byte that is not UTF-8 as the character of its number.
func readable(sent string) string {
	sent = sent[:min(len(sent), logFieldBytesMax)]
	var out strings.Builder
	for len(sent) > 0 {
		c, n := utf8.DecodeRuneInString(sent)
		if c == utf8.RuneError && n == 1 {
			c = rune(sent[0])
		}
		out.WriteRune(c)
		sent = sent[n:]
	}
	return out.String()
}

func BenchmarkLogJSON(b *testing.B) {
	r, dst := fullRecord(), make([]byte, 0, 4096)
	b.ReportAllocs()
	for b.Loop() {
		dst = appendJSON(dst[:0], r)
	}
	b.SetBytes(int64(len(dst)))
}
