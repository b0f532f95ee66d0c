package lb

import (
	"slices"
	"strings"
	"testing"

	"lbd/lb/lbtest"
)

// Faults that other proxies have had, by a number and a name, each with siblings that such a proxy may have, too. Here what a
// client sends; in cases_answer_test.go what comes back. Where another test of this package has the case, its comment has
// the number.

// requestCase is one request on a connection of its own.
type requestCase struct {
	name, say string
	// A refusal: status and detail, and nothing at the backend.
	status int
	detail string
	// Else what the backend gets, without the lines that every request gets from us, and decoded body.
	line   string
	fields []string
	body   string
}

const tail = " HTTP/1.1\r\nHost: a.test\r\n"

var requestCases = []requestCase{
	{name: "A14 length and chunks", say: "POST /" + tail + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		status: 400, detail: "length_and_chunked"},
	{name: "A14 sibling: the other order, a length of nothing", say: "POST /" + tail + "Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n0\r\n\r\n",
		status: 400, detail: "length_and_chunked"},
	{name: "A14 sibling: chunks in HTTP/1.0", say: "POST / HTTP/1.0\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		status: 400, detail: "transfer_encoding_in_1_0"},

	{name: "A15 LF ends a chunk size", say: "POST /" + tail + "Transfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n",
		status: 400, detail: "bad_line_end"},
	{name: "A15 sibling: LF ends a chunk", say: "POST /" + tail + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\n0\r\n\r\n",
		status: 400, detail: "bad_chunk_end"},
	{name: "A15 sibling: LF ends an extension", say: "POST /" + tail + "Transfer-Encoding: chunked\r\n\r\n5;x\nhello\r\n0\r\n\r\n",
		status: 400, detail: "bad_line_end"},
	{name: "A15 sibling: LF ends a trailer", say: "POST /" + tail + "Transfer-Encoding: chunked\r\n\r\n0\r\nX: y\n\r\n",
		status: 400, detail: "bad_line_end"},

	{name: "A16 authority form", say: "GET a.test:443" + tail + "\r\n", status: 400, detail: "bad_target"},
	{name: "A16 sibling: no port", say: "POST a.test" + tail + "\r\n", status: 400, detail: "bad_target"},
	{name: "A16 sibling: asterisk for another method", say: "GET *" + tail + "\r\n", status: 400, detail: "bad_target"},
	{name: "A16 sibling: the method that it is for", say: "CONNECT a.test:443" + tail + "\r\n", status: 405, detail: "method_not_allowed"},

	{name: "A17 another host in the target", say: "GET http://b.test/p" + tail + "\r\n", line: "GET /p", fields: []string{"Host: b.test"}},
	{name: "A17 sibling: capitals, a port, no path", say: "GET HTTP://B.test:8080?q" + tail + "\r\n", line: "GET /?q", fields: []string{"Host: B.test:8080"}},
	{name: "A17 sibling: user information", say: "GET http://a.test@b.test/p" + tail + "\r\n", status: 400, detail: "bad_host"},
	{name: "A17 sibling: the field that is not used is bad", say: "GET http://b.test/ HTTP/1.1\r\nHost: a b\r\n\r\n", status: 400, detail: "bad_host"},

	{name: "A18 no host", say: "GET / HTTP/1.1\r\n\r\n", status: 400, detail: "no_host"},
	{name: "A18 two hosts", say: "GET /" + tail + "Host: a.test\r\n\r\n", status: 400, detail: "duplicate_host"},
	{name: "A18 sibling: an empty one", say: "GET / HTTP/1.1\r\nHost:\r\n\r\n", status: 400, detail: "bad_host"},
	{name: "A18 sibling: two in one line", say: "GET / HTTP/1.1\r\nHost: a.test, b.test\r\n\r\n", status: 400, detail: "bad_host"},
	{name: "A18 sibling: two in HTTP/1.0", say: "GET / HTTP/1.0\r\nHost: a.test\r\nHost: b.test\r\n\r\n", status: 400, detail: "duplicate_host"},

	{name: "A19 fields of this hop", say: "GET /" + tail + "Connection: keep-alive, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nProxy-Connection: x\r\n" +
		"TE: gzip\r\nUpgrade: x\r\nX: y\r\n\r\n", line: "GET /", fields: []string{"Host: a.test", "X: y"}},
	{name: "A19 sibling: trailers are taken", say: "GET /" + tail + "Connection: TE\r\nTE: trailers, deflate;q=0.5\r\n\r\n",
		line: "GET /", fields: []string{"Host: a.test", "Connection: TE", "TE: trailers"}},
	{name: "A19 sibling: framing and host are named", say: "POST /" + tail + "Connection: Host, Content-Length, Connection\r\nContent-Length: 2\r\n\r\nhi",
		line: "POST /", fields: []string{"Host: a.test", "Content-Length: 2"}, body: "hi"},
	{name: "A19 sibling: named twice, in two lines and in other letters", say: "GET /" + tail + "Connection: x-a\r\nX-A: 1\r\nX-B: 2\r\nX-A: 3\r\nConnection: ,X-b,\r\n\r\n",
		line: "GET /", fields: []string{"Host: a.test"}},

	{name: "A20 h2c", say: "GET /" + tail + "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n\r\n",
		line: "GET /", fields: []string{"Host: a.test"}},
	{name: "A20 sibling: h2c beside websocket", say: "GET /" + tail + "Connection: Upgrade\r\nUpgrade: h2c, websocket\r\n\r\n",
		line: "GET /", fields: []string{"Host: a.test", "Connection: upgrade", "Upgrade: websocket"}},
	{name: "A20 sibling: not named in Connection", say: "GET /" + tail + "Upgrade: websocket\r\nHTTP2-Settings: AAMA\r\n\r\n",
		line: "GET /", fields: []string{"Host: a.test"}},
	{name: "A20 sibling: with a body", say: "POST /" + tail + "Connection: Upgrade\r\nUpgrade: TLS/1.0\r\nContent-Length: 2\r\n\r\nhi",
		line: "POST /", fields: []string{"Host: a.test", "Content-Length: 2"}, body: "hi"},

	{name: "A22 twins of what we set", say: "GET /" + tail + "X_Forwarded_For: 1.2.3.4\r\nX-Request_Id: 1\r\nx_real_ip: 1\r\n\r\n",
		line: "GET /", fields: []string{"Host: a.test", "x_real_ip: 1"}},
	{name: "A22 sibling: twins of framing", say: "POST /" + tail + "Content_Length: 9\r\nTransfer_Encoding: chunked\r\nContent-Length: 2\r\n\r\nhi",
		line: "POST /", fields: []string{"Host: a.test", "Content-Length: 2"}, body: "hi"},
	{name: "A22 sibling: a twin that Connection names", say: "GET /" + tail + "Connection: X_Forwarded_Proto\r\nX_Forwarded_Proto: https\r\n\r\n",
		line: "GET /", fields: []string{"Host: a.test"}},

	{name: "A23 who the client says it is", say: "GET /" + tail + "Client-Cert: :YQ==:\r\nClient-Cert-Chain: :YQ==:\r\n\r\n",
		line: "GET /", fields: []string{"Host: a.test"}},
	{name: "A23 sibling: in other letters, twice, as a twin", say: "GET /" + tail + "client-cert: a\r\nClient-CERT: b\r\nClient_Cert: c\r\n\r\n",
		line: "GET /", fields: []string{"Host: a.test"}},
	{name: "A23 sibling: as a trailer", say: "POST /" + tail + "Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nClient-Cert: a\r\n\r\n",
		line: "POST /", fields: []string{"Host: a.test", "Transfer-Encoding: chunked"}, body: "hi"},

	{name: "A24 escaped dots", say: "GET /pfx/%2e%2E/admin?x=/.." + tail + "\r\n", status: 403},
	{name: "A24 sibling: doubly escaped dots are a name", say: "GET /pfx/%252e%252e/admin" + tail + "\r\n",
		line: "GET /pfx/%252e%252e/admin", fields: []string{"Host: a.test"}},
	{name: "A24 sibling: escaped letters", say: "GET /%61dmin/" + tail + "\r\n", status: 403},
	{name: "A24 sibling: dots and a parameter", say: "GET /pfx/..;/admin" + tail + "\r\n", status: 400, detail: "dot_segment"},
	{name: "A24 sibling: dots and an escaped slash", say: "GET /pfx/..%2fadmin" + tail + "\r\n", status: 400, detail: "dot_segment"},
	{name: "A24 sibling: an escaped slash", say: "GET /pfx%2Fadmin" + tail + "\r\n", status: 400, detail: "encoded_slash"},
	{name: "A24 sibling: one that the route takes", say: "GET /slash/a%2fb" + tail + "\r\n", line: "GET /slash/a%2Fb", fields: []string{"Host: a.test"}},
}

func TestRequestCases(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		b := lbtest.New(t, lbtest.OK("hi"))
		n := start(t, setup{kind: kind, backends: addrs(b), routes: []RouteConfig{
			{Name: "admin", Listeners: []string{"main"}, Matches: []Match{{Prefix: "/admin"}}, Respond: &Respond{Status: 403}},
			{Name: "slash", Listeners: []string{"main"}, Matches: []Match{{Prefix: "/slash"}}, Forward: &Forward{Pools: []WeightedPool{{Pool: "p", Weight: 1}}}, EncodedSlash: true},
			{Name: "all", Listeners: []string{"main"}, Forward: &Forward{Pools: []WeightedPool{{Pool: "p", Weight: 1}}}},
		}})
		for _, tc := range requestCases {
			t.Run(tc.name, func(t *testing.T) { tc.run(t, n, b) })
		}
	})
}

// run sends the request with another behind it, which must be answered if it is not refused, and only then.
func (tc *requestCase) run(t *testing.T, n *node, b *lbtest.Backend) {
	before := len(b.Requests())
	c := n.dial()
	c.t = t
	c.say(tc.say + get("/next"))
	method, _, _ := strings.Cut(tc.say, " ")
	resp, _ := c.answer(method)
	r := n.record()
	if tc.status == 400 || tc.status == 405 {
		if resp.StatusCode != tc.status || r.Status != tc.status || r.Reason != BadRequest || r.Detail != tc.detail || !resp.Close {
			t.Errorf("got %d %v (%s), close %v", resp.StatusCode, r.Reason, r.Detail, resp.Close)
		}
		c.expectEnd()
		if got := b.Requests()[before:]; len(got) > 0 {
			t.Errorf("the backend got %+v", got)
		}
		return
	}
	next, _ := c.answer("GET")
	if next.StatusCode != 200 {
		t.Errorf("the next request: %d", next.StatusCode)
	}
	if tail := n.want(200, OK); string(tail.Path) != "/next" {
		t.Errorf("the next request was for %s", tail.Path)
	}
	got := b.Requests()[before:]
	if tc.status != 0 {
		if resp.StatusCode != tc.status || len(got) != 1 {
			t.Errorf("got %d, the backend %+v", resp.StatusCode, got)
		}
		return
	}
	if resp.StatusCode != 200 || len(got) != 2 {
		t.Fatalf("got %d, the backend %+v", resp.StatusCode, got)
	}
	if got[0].Line() != tc.line+" HTTP/1.1" || got[0].Body != tc.body {
		t.Errorf("line %q, body %q", got[0].Line(), got[0].Body)
	}
	if fields := foreign(got[0].Head); !slices.Equal(fields, tc.fields) {
		t.Errorf("fields %q, want %q", fields, tc.fields)
	}
}

// foreign are the field lines of a head without those that we write into every one.
func foreign(head string) []string {
	lines := strings.Split(strings.TrimSuffix(head, "\r\n\r\n"), "\r\n")[1:]
	return slices.DeleteFunc(lines, func(line string) bool {
		name, _, _ := strings.Cut(line, ":")
		return strings.HasPrefix(name, "X-Forwarded-") || name == "Via" || name == "X-Request-Id" || name == "Date"
	})
}
