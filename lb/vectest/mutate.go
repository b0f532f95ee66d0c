package vectest

import (
	"bytes"
	"math/rand/v2"
)

// octetsMax bounds what mutants are made of: larger vectors only say how large is too large.
const octetsMax = 12_000

// mutator makes requests that are nearly right.
type mutator struct {
	random *rand.Rand
	seeds  [][]byte // of vectors
}

// seedsOf are the octets of the vectors that a mutator can begin with.
func seedsOf(vectors []*Vector) (seeds [][]byte) {
	for _, v := range vectors {
		if octets := join(v.Segments); v.Proto == "h1" && len(octets) <= octetsMax {
			seeds = append(seeds, octets)
		}
	}
	return seeds
}

// Lines and pieces that some server has once understood in its own way.
var (
	oddLines = []string{
		"Content-Length: 0", "Content-Length: 5", "Content-Length: 5, 5", "Content-Length: +5", "Content-Length: 0x5", "Content-Length:", "Content_Length: 50",
		"Transfer-Encoding: chunked", "Transfer-Encoding: identity", "Transfer-Encoding: gzip, chunked", "Transfer-Encoding: xchunked",
		"Transfer-Encoding:\x0bchunked", "Transfer-Encoding : chunked", "Transfer_Encoding: chunked", " Transfer-Encoding: chunked",
		"Connection: close", "Connection: keep-alive", "Connection: Content-Length", "Connection: Transfer-Encoding, Host", "Connection: X-Tag",
		"Host: v.test", "Host: other.test", "Host: v.test:0", "Host: a b", "Expect: 100-continue", "Expect: x", "Upgrade: websocket", "Upgrade: h2c",
		"HTTP2-Settings: AAMA", "TE: trailers", "TE: chunked", "Trailer: Content-Length", "X-Forwarded-For: 1.2.3.4", "X_Forwarded_For: 1.2.3.4",
		"Proxy: x", "Proxy-Authorization: Basic eDp5", "Via: 1.1 x", "Early-Data: 1", "Keep-Alive: timeout=1", "X: \xff\xfe", "X:", ": x", "X", "X: a\x00b",
	}
	oddPieces = []string{
		"\r", "\n", "\r\n", "\n\n", "\r\n\r\n", "\r\r\n", "\x00", " ", "  ", "\t", "\x0b", "\x7f", "\x80", "\xa0", ":", ";", ",", "=", "\"", "#", "?", "\\",
		"0\r\n\r\n", "5\r\nhello\r\n", "ffffffffffffffff", "0x", "-", "+", "_", "%", "%2e%2e/", "/../", "%2f", "%00", "//", "..;/", "HTTP/1.0", "HTTP/1.2",
		"HTTP/2.0", " HTTP/1.1", "chunked", ";ext=1", "GET /inner HTTP/1.1\r\nHost: v.test\r\n\r\n", "http://v.test", "@", "[::1]", "CONNECT", "HEAD",
	}
)

// next returns a request, real or of a vector, with a few changes or none, and a tag that comes back with its answer if
// the tag has survived.
func (m *mutator) next(tag string) []byte {
	octets := m.seed()
	if i := bytes.Index(octets, []byte("\r\n")); i > 0 {
		octets = bytes.Join([][]byte{octets[:i], []byte("X-Tag: " + tag), octets[i+2:]}, []byte("\r\n"))
	}
	for n := []int{0, 0, 1, 1, 1, 1, 2, 2, 4}[m.random.IntN(9)]; n > 0; n-- {
		octets = m.change(octets)
	}
	return octets
}

func (m *mutator) seed() []byte {
	if m.random.IntN(3) > 0 {
		return []byte(realRequests[m.random.IntN(len(realRequests))].octets)
	}
	return m.seeds[m.random.IntN(len(m.seeds))]
}

// change makes one change. It never writes into b.
func (m *mutator) change(b []byte) []byte {
	if len(b) == 0 {
		return m.seed()
	}
	at := m.random.IntN(len(b))
	switch m.random.IntN(12) {
	case 0, 1:
		return m.insertLine(b, pick(m.random, oddLines)+"\r\n")
	case 2, 3:
		return cat(b[:at], []byte(pick(m.random, oddPieces)), b[at:])
	case 4: // an octet for another
		return cat(b[:at], []byte{byte(m.random.Uint32())}, b[at+1:])
	case 5: // some octets less
		return cat(b[:at], b[min(len(b), at+1+m.random.IntN(4)):])
	case 6: // another case, or what differs from the octet in that bit
		return cat(b[:at], []byte{b[at] ^ 0x20}, b[at+1:])
	case 7: // CRLF becomes LF
		return replaceAt(b, at, "\r\n", "\n")
	case 8:
		return m.repeatLine(b)
	case 9: // another number
		return m.changeDigit(b)
	case 10: // ends early
		if m.random.IntN(4) == 0 {
			return b[:at]
		}
		return replaceAt(b, at, ": ", " : ")
	}
	other := m.seed() // its head with the other's body
	head, _, _ := bytes.Cut(b, []byte("\r\n\r\n"))
	_, body, _ := bytes.Cut(other, []byte("\r\n\r\n"))
	return cat(head, []byte("\r\n\r\n"), body)
}

// insertLine puts a line behind one of the head's lines.
func (m *mutator) insertLine(b []byte, line string) []byte {
	at := m.lineStart(b)
	return cat(b[:at], []byte(line), b[at:])
}

// repeatLine copies a line to where another begins, or takes it away.
func (m *mutator) repeatLine(b []byte) []byte {
	from := m.lineStart(b)
	end := from + bytes.Index(b[from:], []byte("\r\n")) + 2
	if end < from+2 {
		return b
	}
	if m.random.IntN(2) == 0 {
		return cat(b[:from], b[end:])
	}
	to := m.lineStart(b)
	return cat(b[:to], b[from:end], b[to:])
}

// lineStart is where one of b's lines begins, the first seldom.
func (m *mutator) lineStart(b []byte) int {
	at := m.random.IntN(len(b))
	return bytes.LastIndexByte(b[:at], '\n') + 1
}

func (m *mutator) changeDigit(b []byte) []byte {
	at := m.random.IntN(len(b))
	i := bytes.IndexAny(b[at:], "0123456789")
	if i < 0 {
		return b
	}
	return cat(b[:at+i], []byte{byte('0' + m.random.IntN(10))}, b[at+i+1:])
}

// replaceAt replaces the first old at or behind a place.
func replaceAt(b []byte, at int, old, by string) []byte {
	return cat(b[:at], bytes.Replace(b[at:], []byte(old), []byte(by), 1))
}

func cat(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

func pick(random *rand.Rand, from []string) string { return from[random.IntN(len(from))] }
