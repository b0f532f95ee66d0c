package health

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
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
	for _, test := range []struct {
		http HTTP
		want string
	}{
		{HTTP{}, "GET / HTTP/1.1\r\nHost: 10.0.0.1:80\r\n"},
		{HTTP{Path: "/healthz?deep=1", Host: "shop.example.com"}, "GET /healthz?deep=1 HTTP/1.1\r\nHost: shop.example.com\r\n"},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork()
			n.set("10.0.0.1:80", ok)
			if err := ask(t.Context(), n.dial, Check{Address: "10.0.0.1:80", HTTP: &test.http}.complete()); err != nil {
				t.Fatal(err)
			}
			if got := n.requests[0]; !strings.HasPrefix(got, test.want) || !strings.Contains(got, "\r\nConnection: close\r\n") {
				t.Errorf("got %q", got)
			}
		})
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
	check.HTTP.Path = "/other"
	if err := ask(t.Context(), dial, check); text(err) != "status 404, want 2xx, 3xx" {
		t.Error(err)
	}
	server.Close()
	if err := ask(t.Context(), dial, check); text(err) != "connect: connection refused" {
		t.Error(err)
	}
}
