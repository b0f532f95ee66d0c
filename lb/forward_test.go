package lb

import (
	"fmt"
	"strings"
	"testing"

	"lbd/lb/lbtest"
)

func TestForward(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		b := lbtest.New(t, lbtest.OK("hello"))
		n := start(t, setup{kind: kind, backends: addrs(b)})
		c := n.dial()
		for range 5 {
			c.say(get("/x?q=1"))
			resp := c.expect("GET", 200, "hello")
			if resp.ContentLength != 5 || resp.Close || resp.Header.Get("Date") == "" {
				t.Errorf("head %v", resp.Header)
			}
			r := n.want(200, OK)
			if string(r.Method) != "GET" || string(r.Path) != "/x" || string(r.Query) != "q=1" || string(r.Host) != "a.test" ||
				r.Route != "all" || r.Pool != "p" || r.Backend != b.Addr().String() || r.ResponseBytes != 5 || r.Tries != 1 {
				t.Errorf("record %+v", r)
			}
		}
		if b.Accepted() != 1 {
			t.Errorf("%d backend connections, want one, reused", b.Accepted())
		}
		eventually(t, "counters", func() bool {
			s := n.backend(0)
			return s.Requests == 5 && s.NewConnections == 1 && s.Reused == 4 && s.Idle == 1 && s.InFlight == 0 && s.Failures == 0
		})
		request := b.Requests()[0]
		if request.Line() != "GET /x?q=1 HTTP/1.1" {
			t.Errorf("line %q", request.Line())
		}
		for name, want := range map[string]string{
			"Host": "a.test", "X-Forwarded-For": "127.0.0.1", "X-Forwarded-Proto": "http", "X-Forwarded-Host": "a.test",
			"X-Forwarded-Port": n.addr()[strings.LastIndexByte(n.addr(), ':')+1:], "Via": "1.1 lbd",
		} {
			if got := request.Field(name); len(got) != 1 || got[0] != want {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
		ids := map[string]bool{}
		for _, r := range b.Requests() {
			ids[r.Field("X-Request-Id")[0]] = true
		}
		if len(ids) != 5 {
			t.Errorf("%d different ids in 5 requests", len(ids))
		}
		stats := n.Stats().Listeners[0]
		if stats.Requests[2] != 5 || stats.Ended[OK] != 5 || stats.Accepted != 1 || stats.Connections != 1 {
			t.Errorf("listener %+v", stats)
		}
	})
}

func TestRequestBodies(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		b := lbtest.New(t, lbtest.Echo)
		n := start(t, setup{kind: kind, backends: addrs(b)})
		c := n.dial()
		big := strings.Repeat("0123456789abcdef", 1<<16) // 1 MiB
		for _, body := range []string{"", "short", big[:16<<10], big[:17<<10], big} {
			c.say(post("/", body))
			c.expect("POST", 200, body)
			r := n.want(200, OK)
			if r.RequestBytes != int64(len(body)) || r.ResponseBytes != int64(len(body)) {
				t.Errorf("%d and %d bytes, want %d", r.RequestBytes, r.ResponseBytes, len(body))
			}
			c.say("POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n")
			for rest := body; rest != ""; {
				piece := rest[:min(len(rest), 10_000)]
				rest = rest[len(piece):]
				c.say(fmt.Sprintf("%x\r\n%s\r\n", len(piece), piece))
			}
			c.say("0\r\n\r\n")
			c.expect("POST", 200, body)
			n.want(200, OK)
		}
		if b.Accepted() != 1 {
			t.Errorf("%d backend connections", b.Accepted())
		}
		for i, r := range b.Requests() {
			if r.Chunk != (i%2 == 1) {
				t.Errorf("request %d: chunked %v", i, r.Chunk)
			}
		}
	})
}

func TestAnswerFraming(t *testing.T) {
	big := strings.Repeat("x", 200_000)
	cases := []struct {
		name, method, minor, answer string
		status                      int
		body                        string
		keeps                       bool   // the client's connection lives on
		field, value                string // a field of the answer
	}{
		{"length", "GET", "1", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", 200, "hi", true, "Content-Length", "2"},
		{"empty", "GET", "1", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, "", true, "Content-Length", "0"},
		{"chunks", "GET", "1", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n", 200, "hi", true, "Content-Length", ""},
		{"chunks to 1.0", "GET", "0", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n", 200, "hi", false, "", ""},
		{"until close", "GET", "1", "HTTP/1.1 200 OK\r\n\r\n" + big, 200, big, true, "", ""},
		{"until close to 1.0", "GET", "0", "HTTP/1.0 200 OK\r\n\r\n" + big, 200, big, false, "", ""},
		{"head", "HEAD", "1", "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n", 200, "", true, "Content-Length", "7"},
		{"no content", "GET", "1", "HTTP/1.1 204 No Content\r\n\r\n", 204, "", true, "Content-Length", ""},
		{"not modified", "GET", "1", "HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", 304, "", true, "", ""},
		{"big", "GET", "1", fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(big), big), 200, big, true, "", ""},
		{"error", "GET", "1", "HTTP/1.1 500 Oops\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno", 500, "no", true, "", ""},
	}
	onEngines(t, func(t *testing.T, kind string) {
		for _, tc := range cases {
			t.Run(tc.name, func(t *testing.T) {
				untilClose := !strings.Contains(tc.answer, "Content-Length") && strings.Contains(tc.answer, " 200 ") &&
					!strings.Contains(tc.answer, "chunked")
				b := lbtest.New(t, func(c *lbtest.Conn) {
					for {
						if _, err := c.ReadRequest(); err != nil {
							return
						}
						c.Say(tc.answer)
						if untilClose {
							return
						}
					}
				})
				n := start(t, setup{kind: kind, backends: addrs(b)})
				c := n.dial()
				for range 2 {
					c.say(tc.method + " / HTTP/1." + tc.minor + "\r\nHost: a.test\r\n\r\n")
					resp := c.expect(tc.method, tc.status, tc.body)
					n.want(tc.status, OK)
					if got := resp.Header.Get(tc.field); tc.field != "" && got != tc.value {
						t.Errorf("%s: %q, want %q", tc.field, got, tc.value)
					}
					if resp.Close == tc.keeps {
						t.Errorf("close: %v", resp.Close)
					}
					if !tc.keeps {
						c.expectEnd()
						c = n.dial()
					}
				}
			})
		}
	})
}

func TestPipelining(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		b := lbtest.New(t, lbtest.Echo)
		n := start(t, setup{kind: kind, backends: addrs(b)})
		c := n.dial()
		var all strings.Builder
		for i := range 50 {
			all.WriteString(post("/", strings.Repeat(fmt.Sprint(i%10), 1+i*37)))
			all.WriteString(get("/"))
		}
		c.say(all.String())
		for i := range 50 {
			c.expect("POST", 200, strings.Repeat(fmt.Sprint(i%10), 1+i*37))
			c.expect("GET", 200, "")
		}
		if b.Accepted() != 1 {
			t.Errorf("%d backend connections", b.Accepted())
		}
	})
}

func TestHTTP10KeepAlive(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		n := start(t, setup{kind: kind, backends: addrs(lbtest.New(t, lbtest.OK("hi")))})
		c := n.dial()
		for range 2 {
			c.say("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
			if resp := c.expect("GET", 200, "hi"); resp.Header.Get("Connection") != "keep-alive" {
				t.Errorf("head %v", resp.Header)
			}
		}
		c.say("GET / HTTP/1.0\r\n\r\n")
		c.expect("GET", 200, "hi")
		c.expectEnd()
	})
}

// TestOneWrite: head and first body bytes leave together, both ways; seen by a peer that reads once.
func TestOneWrite(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		first := make(chan string, 1)
		b := lbtest.New(t, func(c *lbtest.Conn) {
			buf := make([]byte, 4096)
			k, _ := c.Conn.Read(buf)
			first <- string(buf[:k])
			c.Say("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nworld")
		})
		n := start(t, setup{kind: kind, backends: addrs(b)})
		c := n.dial()
		c.say(post("/", "hello"))
		if got := <-first; !strings.HasSuffix(got, "\r\n\r\nhello") {
			t.Errorf("backend's first read: %q", got)
		}
		buf := make([]byte, 4096)
		k, err := c.Read(buf)
		if err != nil || !strings.HasSuffix(string(buf[:k]), "\r\n\r\nworld") {
			t.Errorf("client's first read: %q, %v", buf[:k], err)
		}
	})
}
