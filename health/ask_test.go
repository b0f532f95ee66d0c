package health

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestAsk has every way in which a check ends, and what an operator reads about it.
func TestAsk(t *testing.T) {
	const closed = "connection closed before the status line"
	tests := []struct {
		name   string
		behave behaviour
		http   *HTTP // nil: TCP
		want   string
	}{
		{"tcp connects", accept, nil, ""},
		{"tcp refused", refuse, nil, "connect: connection refused"},
		{"tcp black hole", blackHole, nil, "timeout after 500ms connecting"},
		{"no such host", noSuchHost, nil, "resolve: no such host shop.internal"},
		{"200", ok, &HTTP{}, ""},
		{"302 is fine by default", answer("HTTP/1.1 302 Found\r\n\r\n"), &HTTP{}, ""},
		{"no reason phrase", answer("HTTP/1.1 204\r\n\r\n"), &HTTP{}, ""},
		{"HTTP/1.0 and bare LF", answer("HTTP/1.0 200 OK\n\n"), &HTTP{}, ""},
		{"in single bytes", answer(strings.Split("HTTP/1.1 200 OK\r\n\r\n", "")...), &HTTP{}, ""},
		{"interim answers", answer("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"), &HTTP{}, ""},
		{"interim for ever", answer(strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 20)), &HTTP{}, "more than ten interim answers"},
		{"503", answer("HTTP/1.1 503 Service Unavailable\r\n\r\n"), &HTTP{}, "status 503, want 2xx, 3xx"},
		{"404 expected", answer("HTTP/1.1 404 Not Found\r\n\r\n"), &HTTP{Expect: []string{"200", "4xx"}}, ""},
		{"201 is not 200", answer("HTTP/1.1 201 Created\r\n\r\n"), &HTTP{Expect: []string{"200"}}, "status 201, want 200"},
		{"a class that is none", ok, &HTTP{Expect: []string{"2"}}, "status 200, want 2"},
		{"http refused", refuse, &HTTP{}, "connect: connection refused"},
		{"silent", accept, &HTTP{}, "timeout after 500ms waiting for the status line"},
		{"does not read", deaf, &HTTP{}, "timeout after 500ms sending the request"},
		{"closes", answer(), &HTTP{}, closed},
		{"half a line", answer("HTTP/1.1 2"), &HTTP{}, `connection closed within the status line: "HTTP/1.1 2"`},
		{"half an interim answer", answer("HTTP/1.1 100 Continue\r\n"), &HTTP{}, closed},
		{"another protocol", answer("SSH-2.0-OpenSSH_9.9\r\n"), &HTTP{}, `not an HTTP/1 answer: "SSH-2.0-OpenSSH_9.9"`},
		{"HTTP/2", answer("HTTP/2 200\r\n"), &HTTP{}, `not an HTTP/1 answer: "HTTP/2 200"`},
		{"code of four digits", answer("HTTP/1.1 2000\r\n"), &HTTP{}, `not an HTTP/1 answer: "HTTP/1.1 2000"`},
		{"code of letters", answer("HTTP/1.1 abc\r\n"), &HTTP{}, `not an HTTP/1 answer: "HTTP/1.1 abc"`},
		{"code with a sign", answer("HTTP/1.1 -20\r\n"), &HTTP{}, `not an HTTP/1 answer: "HTTP/1.1 -20"`},
		{"code under 100", answer("HTTP/1.1 099\r\n"), &HTTP{}, `not an HTTP/1 answer: "HTTP/1.1 099"`},
		{"empty line", answer("\r\n"), &HTTP{}, `not an HTTP/1 answer: ""`},
		{"the body has it", answer("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nstatus=ok"), &HTTP{ExpectBody: "=ok"}, ""},
		{"the body lacks it", answer("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nstatus=ok"), &HTTP{ExpectBody: "=ok"}, `the body lacks "=ok"`},
		{"a body up to the end of the connection, in single bytes", answer(strings.Split("HTTP/1.0 200 OK\n\nall is well", "")...), &HTTP{ExpectBody: "is well"}, ""},
		{"a chunked body, cut in the middle of the text", answer("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, Chunked\r\n\r\n6;x=y\r\nall is\r\n5\r\n well\r\n0\r\n\r\n"), &HTTP{ExpectBody: "is well"}, ""},
		{"chunks are not the body", answer("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n6\r\nall is\r\n5\r\n well\r\n0\r\n\r\n"), &HTTP{ExpectBody: "5"}, `the body lacks "5"`},
		{"chunks of garbage", answer("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nok"), &HTTP{ExpectBody: "ok"}, `the body lacks "ok"`},
		{"closes in a chunk", answer("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nno"), &HTTP{ExpectBody: "ok"}, `the body lacks "ok"`},
		{"closes in the head", answer("HTTP/1.1 200 OK\r\nContent-"), &HTTP{ExpectBody: "ok"}, "connection closed before the body"},
		{"a field of 5 kB before the body", answer("HTTP/1.1 200 OK\r\nSet-Cookie: " + strings.Repeat("x", 5000) + "\r\nContent-Length: 2\r\n\r\nok"), &HTTP{ExpectBody: "ok"}, ""},
		{"a head of 70 kB", answer("HTTP/1.1 200 OK\r\nA: " + strings.Repeat("x", 70_000) + "\r\n\r\nok"), &HTTP{ExpectBody: "ok"}, "a head of over 64 KiB"},
		{"late in the first 64 KiB", answer("HTTP/1.1 200 OK\r\n\r\n" + strings.Repeat("x", bodyBytesMax-2) + "ok"), &HTTP{ExpectBody: "ok"}, ""},
		{"after the first 64 KiB", answer("HTTP/1.1 200 OK\r\n\r\n" + strings.Repeat("x", bodyBytesMax-1) + "ok"), &HTTP{ExpectBody: "ok"}, `the body lacks "ok" in its first 64 KiB`},
		{"no body in 204", answer("HTTP/1.1 204 No Content\r\n\r\nok"), &HTTP{ExpectBody: "ok"}, `the body lacks "ok"`},
		{"the status comes first", answer("HTTP/1.1 500 Oops\r\n\r\nok"), &HTTP{ExpectBody: "ok"}, "status 500, want 2xx, 3xx"},
		{"the body does not come", stall("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nstat"), &HTTP{ExpectBody: "ok"}, "timeout after 500ms reading the body"},
		{"the body has it, and does not end", stall("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok"), &HTTP{ExpectBody: "ok"}, ""},
		{"endless line", answer(strings.Repeat("x", 4096)), &HTTP{}, "a line of over 1024 bytes where the status line should be"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork()
				n.set("10.0.0.1:80", test.behave)
				check := Check{Address: "10.0.0.1:80", HTTP: test.http, Timeout: 500 * time.Millisecond}.complete()
				began := time.Now()
				err := ask(t.Context(), n.dial, check)
				if got := text(err); got != test.want {
					t.Errorf("got %q, want %q", got, test.want)
				}
				if took := time.Since(began); took > 600*time.Millisecond {
					t.Errorf("took %s", took)
				}
				synctest.Wait()
				if n.open != 0 {
					t.Errorf("%d connections left open", n.open)
				}
			})
		})
	}
}

func noSuchHost(context.Context, *network) (net.Conn, error) {
	return nil, &net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", Name: "shop.internal", IsNotFound: true}}
}

// deaf accepts and never reads; a pipe has no buffer, so that sending blocks.
func deaf(context.Context, *network) (net.Conn, error) {
	near, far := net.Pipe()
	context.AfterFunc(context.Background(), func() { _ = far.Close() })
	return near, nil
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestRequest(t *testing.T) {
	const end = "Connection: close\r\n\r\n"
	for _, test := range []struct {
		http HTTP
		want string
	}{
		{HTTP{}, "GET / HTTP/1.1\r\nHost: 10.0.0.1:80\r\nAccept: */*\r\nUser-Agent: lbd-health\r\n" + end},
		{HTTP{Path: "/healthz?deep=1", Host: "shop.example.com"},
			"GET /healthz?deep=1 HTTP/1.1\r\nHost: shop.example.com\r\nAccept: */*\r\nUser-Agent: lbd-health\r\n" + end},
		{HTTP{Method: "HEAD"}, "HEAD / HTTP/1.1\r\nHost: 10.0.0.1:80\r\nAccept: */*\r\nUser-Agent: lbd-health\r\n" + end},
		{HTTP{Method: "POST"}, "POST / HTTP/1.1\r\nHost: 10.0.0.1:80\r\nAccept: */*\r\nUser-Agent: lbd-health\r\nContent-Length: 0\r\n" + end},
		{HTTP{Headers: map[string]string{"X-Probe": "1", "Authorization": "Bearer x", "user-agent": "ours", "Connection": "keep-alive", "Content-Length": "7"}},
			"GET / HTTP/1.1\r\nHost: 10.0.0.1:80\r\nAccept: */*\r\nAuthorization: Bearer x\r\nuser-agent: ours\r\nX-Probe: 1\r\n" + end},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork()
			n.set("10.0.0.1:80", ok)
			if err := ask(t.Context(), n.dial, Check{Address: "10.0.0.1:80", HTTP: &test.http}); err != nil {
				t.Fatal(err)
			}
			if got := n.requests[0]; got != test.want {
				t.Errorf("got  %q\nwant %q", got, test.want)
			}
		})
	}
}

// TestTarget: where a check goes, by address, by what the address answers at, and by port.
func TestTarget(t *testing.T) {
	there := netip.MustParseAddrPort("[2001:db8::7]:81")
	for _, test := range []struct {
		check Check
		want  string
	}{
		{Check{Address: "shop.internal:80"}, "shop.internal:80"},
		{Check{Address: "shop.internal:80", Port: 8080}, "shop.internal:8080"},
		{Check{Address: "[::1]:80", Port: 8080}, "[::1]:8080"},
		{Check{Address: "shop.internal:80", Dial: there}, "[2001:db8::7]:81"},
		{Check{Address: "shop.internal:80", Dial: there, Port: 8080}, "[2001:db8::7]:8080"},
	} {
		var dialled string
		_ = ask(t.Context(), func(_ context.Context, _, address string) (net.Conn, error) {
			dialled = address
			return nil, errors.New("enough")
		}, test.check)
		if dialled != test.want {
			t.Errorf("%+v: %s, want %s", test.check, dialled, test.want)
		}
	}
}

// TestAskEndlessBody: a stream of events as a health page costs no more than the time set aside for politeness.
func TestAskEndlessBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		n.set("10.0.0.1:80", func(context.Context, *network) (net.Conn, error) {
			near, far := net.Pipe()
			go func() {
				defer far.Close()
				_, _ = far.Read(make([]byte, 512))
				_, _ = far.Write([]byte("HTTP/1.1 200 OK\r\n\r\n"))
				for {
					time.Sleep(10 * time.Millisecond)
					if _, err := far.Write([]byte("data: x\n\n")); err != nil {
						return
					}
				}
			}()
			return near, nil
		})
		began := time.Now()
		if err := ask(t.Context(), n.dial, Check{Address: "10.0.0.1:80", HTTP: &HTTP{}}.complete()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took != drainTimeout {
			t.Errorf("took %s, want %s", took, drainTimeout)
		}
		time.Sleep(20 * time.Millisecond) // the server finds its connection closed
	})
}

// TestAskRealServer has the kernel and a real HTTP server in place of the script.
func TestAskRealServer(t *testing.T) {
	var agent string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		agent = r.UserAgent()
		if r.URL.Path != "/healthz" || r.Host != "shop" {
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = w.Write(make([]byte, 10_000))
		_, _ = w.Write([]byte("and the end"))
	}))
	address := server.Listener.Addr().String()
	dial := (&net.Dialer{}).DialContext
	check := Check{Address: address, HTTP: &HTTP{Path: "/healthz", Host: "shop"}, Timeout: 5 * time.Second}.complete()
	if err := ask(t.Context(), dial, check); err != nil {
		t.Error(err)
	}
	if agent != "lbd-health" {
		t.Errorf("user agent %q", agent)
	}
	check.HTTP.ExpectBody = "\x00and the end"
	if err := ask(t.Context(), dial, check); err != nil { // net/http sends it in chunks
		t.Error(err)
	}
	check.HTTP.Path = "/other"
	if err := ask(t.Context(), dial, check); text(err) != "status 404, want 2xx, 3xx" {
		t.Error(err)
	}
	server.Close()
	if err := ask(t.Context(), dial, check); text(err) != "connect: connection refused" {
		t.Error(err)
	}
}

// ask is one check through a network.
func ask(ctx context.Context, dial DialFunc, c Check) error {
	return asker{dial: dial, explainTLS: error.Error}.ask(ctx, c.complete())
}
