package http1

import (
	"flag"
	"math/rand/v2"
	"strings"
	"testing"
)

var (
	twinMessages = flag.Int("messages", 3000, "messages of each kind for TestTwinsAgree")
	twinSeed     = flag.Uint64("seed", 1, "their seed")
)

// TestTwinsAgree makes messages out of good and bad pieces, where a fuzzer would have to find
// the words first. The seed is fixed: a failure is there again in the next run.
func TestTwinsAgree(t *testing.T) {
	g := &generator{rand.New(rand.NewPCG(*twinSeed, 2))}
	messages := *twinMessages
	taken := [3]int{}
	for range messages {
		if compareRequest(t, g.request()) {
			taken[0]++
		}
		if compareAnswer(t, g.answer(), g.pick("GET|HEAD|upgrade")) {
			taken[1]++
		}
		if compareChunked(t, g.chunked(), 1+g.IntN(40)) {
			taken[2]++
		}
	}
	for i, n := range taken {
		if n < messages/20 || n > messages*19/20 {
			t.Errorf("%d of %d messages of kind %d were taken: the generator makes too few of one sort", n, messages, i)
		}
	}
}

type generator struct{ *rand.Rand }

// pick returns one of the words parted by bars.
func (g *generator) pick(words string) string {
	list := strings.Split(words, "|")
	return list[g.IntN(len(list))]
}

// mostly returns the usual word nine times out of ten.
func (g *generator) mostly(usual, others string) string {
	if g.IntN(10) > 0 {
		return usual
	}
	return g.pick(others)
}

func (g *generator) some(words string, most int) string {
	var b strings.Builder
	for range g.IntN(most + 1) {
		b.WriteString(g.pick(words))
	}
	return b.String()
}

func (g *generator) lineEnd() string {
	if g.IntN(100) > 0 {
		return "\r\n"
	}
	return g.pick("\n|\r|\r\r\n|\r\n |\n\r")
}

// spoil changes, drops or doubles an octet of every tenth message.
func (g *generator) spoil(s string) []byte {
	b := []byte(s)
	if g.IntN(10) > 0 || len(b) == 0 {
		return b
	}
	i := g.IntN(len(b))
	switch g.IntN(3) {
	case 0:
		b[i] = byte(g.IntN(256))
	case 1:
		b = append(b[:i], b[i+1:]...)
	case 2:
		b = append(b[:i+1], b[i:]...)
	}
	return b
}

func (g *generator) request() []byte {
	minor := g.pick("1|1|1|0")
	var b strings.Builder
	b.WriteString(g.mostly("", "\r\n|\r\n\r\n|\n| "))
	b.WriteString(g.mostly(g.pick("GET|POST|HEAD|OPTIONS"), "get|CONNECT|TRACE|M-SEARCH|G@T|") + g.mostly(" ", "  |\t|"))
	b.WriteString(g.target() + g.mostly(" ", "  |\t|"))
	b.WriteString(g.mostly("HTTP/1."+minor, "HTTP/1.2|HTTP/2.0|HTTP/0.9|http/1.1|HTTP/1.|HTTP/1.10|") + g.lineEnd())
	b.WriteString(g.mostly("Host: "+g.host()+"\r\n", "|Host: a\r\nHost: b\r\n|Host:\r\n|X: y\r\n"))
	b.WriteString(g.fields(
		"Expect|X_Forwarded_For|Client-Cert|client_cert_chain|Early-Data|Proxy|Forwarded|X-Request-Id|Cookie"))
	b.WriteString(g.mostly("\r\n", "\n||\r\n\r\n"))
	return g.spoil(b.String())
}

func (g *generator) target() string {
	path := "/" + g.some("a|b|/|/|.|..|/../|/./|%2e|%2E%2e|%2f|%5c|\\|;|%61|%c3|é|\"|{", 6)
	query := g.mostly("", "?|?a=b|?%zz|?a?b|?\"|?#|?é")
	switch g.IntN(12) {
	case 0:
		return g.pick("http|HTTP|https|ftp") + "://" + g.mostly(g.host(), "|u@a|a b") + g.mostly(path, "|?q") + query
	case 1:
		return g.pick("*|a:80|?q|%2f|/a%00|/a%|/a%2|/#|/a\x7f|/a\x00|")
	}
	return path + query
}

func (g *generator) host() string {
	return g.mostly(g.pick("a|A.Test|a.test.|192.0.2.1|[::1]|[2001:DB8::192.0.2.1]|a_b"),
		".|a..b|[::|[1::2::3]|[::1.2.3]|[1:2:3:4:5:6:7:8]|[1:2:3:4:5:6:7::]|[1:2:3:4:5:6:7:8::]|[::01.2.3.4]|[::]|[12345::]|[:1::2]|[1:]|a,b|a%41|é|u@a|") +
		g.mostly("", ":|:80|:9090|:65535|:65536|:x|::")
}

func (g *generator) fields(more string) string {
	var b strings.Builder
	for range g.IntN(6) {
		name := g.pick("X|Connection|Connection|Content-Length|Transfer-Encoding|Upgrade|TE|Keep-Alive|Trailer|X-A|x_a|" +
			"Content_Length|content-type|Via|Date|Proxy-Connection|" + more)
		b.WriteString(name + g.mostly(":", " :|:\t|") + g.mostly(" ", "|\t|  ") + g.value(strings.ToLower(name)) +
			g.mostly("", " |\t") + g.lineEnd())
	}
	return b.String()
}

func (g *generator) value(name string) string {
	switch name {
	case "content-length", "content_length":
		return g.mostly("5", "0|05|+5|5, 5|5x|-1|9223372036854775807|9223372036854775808|")
	case "transfer-encoding":
		return g.mostly("chunked", "Chunked|gzip, chunked|chunked, chunked|identity|,chunked|chunked,|\x0bchunked|")
	case "connection":
		return g.pick("close|keep-alive|upgrade|Upgrade, X-A|x_a|TE, x|Host|via,date|close,close|, ,|\"x\"|keep-alive, content-type")
	case "upgrade":
		return g.pick("websocket|h2c|h2c, WebSocket|")
	case "te":
		return g.pick("trailers|gzip|gzip, Trailers|trailers;q=1")
	case "expect":
		return g.mostly("100-continue", "100-Continue|x")
	}
	return g.mostly("value", "|a\x00b|a\rb|a\x7f|é|0123456789\x01|a \t b")
}

func (g *generator) answer() []byte {
	var b strings.Builder
	b.WriteString(g.mostly("HTTP/1."+g.pick("1|1|0"), "HTTP/1.2|HTTP/2.0|http/1.1|") + g.mostly(" ", "  |"))
	b.WriteString(g.mostly(g.pick("200|204|304|100|101|103|500"), "099|600|20|2000|2x0|"))
	b.WriteString(g.mostly(" OK", "| | a b|\tOK| \x00| é") + g.lineEnd())
	b.WriteString(g.fields("Server|Set-Cookie|Proxy-Authenticate|X-Forwarded-For"))
	b.WriteString(g.mostly("\r\n", "\n||\r\n\r\n"))
	return g.spoil(b.String())
}

func (g *generator) chunked() []byte {
	var b strings.Builder
	for range g.IntN(5) {
		b.WriteString(g.mostly("5", "05|0x5|5 |g|0000000000000005|00000000000000005|8000000000000000|") +
			g.mostly("", ";a|;a=b|; a = \"b\\\"c\"|;|;a=|;a=\"|;\x00| ;a;b|,a") +
			g.lineEnd() + g.mostly("hello", "hell|hello!") + g.lineEnd())
	}
	b.WriteString(g.mostly("0", "00|0;x|") + g.lineEnd())
	for range g.IntN(3) {
		b.WriteString(g.mostly("X-Sum: 9", "Host: a|x_forwarded_for: 1|X : y|GET / HTTP/1.1|set_cookie: a| x|X:\ty") + g.lineEnd())
	}
	b.WriteString(g.lineEnd() + g.mostly("", "GET /"))
	return g.spoil(b.String())
}
