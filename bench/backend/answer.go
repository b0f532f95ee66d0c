//go:build linux

package backend

import (
	"bytes"
	"crypto/sha1"
	"encoding/base64"
	"fmt"
	"strconv"
)

var (
	headEnd       = []byte("\r\n\r\n")
	contentLength = []byte("content-length:")
	closeField    = []byte("connection: close")
	websocketKey  = []byte("sec-websocket-key:")
)

// bodyBytesMax is the largest body that a path may ask for.
const bodyBytesMax = 64 << 20

// asked is what a request head asks for.
type asked struct {
	size      int    // bytes of answer
	bodyBytes int    // bytes of request body that follow the head
	last      bool   // the connection ends with the answer
	key       []byte // of an upgrade to websocket; nil: none
}

// parse reads a head that a proxy wrote: it is not the place to check one. A path that is no number asks for nothing.
func parse(head []byte) asked {
	var a asked
	if i := bytes.IndexByte(head, ' '); i >= 0 {
		a.size = min(leadingNumber(bytes.TrimPrefix(head[i+1:], []byte("/"))), bodyBytesMax)
	}
	if i := indexFold(head, contentLength); i >= 0 {
		a.bodyBytes = leadingNumber(bytes.TrimLeft(head[i+len(contentLength):], " "))
	}
	a.last = indexFold(head, closeField) >= 0
	if i := indexFold(head, websocketKey); i >= 0 {
		line, _, _ := bytes.Cut(head[i+len(websocketKey):], []byte("\r\n"))
		a.key = bytes.TrimSpace(line)
	}
	return a
}

// indexFold finds a lower-case field at the start of a line, in any case.
func indexFold(head, field []byte) int {
	for at := 0; ; {
		line := bytes.IndexByte(head[at:], '\n')
		if line < 0 {
			return -1
		}
		at += line + 1
		if len(head)-at >= len(field) && head[at]|0x20 == field[0] && bytes.EqualFold(head[at:at+len(field)], field) {
			return at
		}
	}
}

func leadingNumber(b []byte) int {
	n := 0
	for _, c := range b {
		if c < '0' || c > '9' || n > bodyBytesMax {
			break
		}
		n = n*10 + int(c-'0')
	}
	return n
}

// upgraded is the answer to an upgrade: RFC 6455, section 4.2.2.
func upgraded(key []byte) []byte {
	digest := sha1.Sum(append(bytes.Clone(key), "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"...))
	return fmt.Appendf(nil, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n\r\n",
		base64.StdEncoding.EncodeToString(digest[:]))
}

// Body is the content of every body of that many bytes. The generator compares what it gets with it. No two of its 4 KiB blocks are
// the same, so a block that is lost, doubled or swapped on the way is seen.
func Body(size int) []byte {
	body := make([]byte, 0, size+16)
	for i := 0; len(body) < size; i++ {
		body = strconv.AppendUint(body, uint64(i)*2654435761%1e9+1e9, 36)
		body = append(body, '.')
	}
	return body[:size]
}

// answers holds whole answers, head and body, by the size of the body: an answer is one write.
type answers map[int][]byte

func (a answers) of(size int) []byte {
	answer, ok := a[size]
	if !ok {
		answer = fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: %d\r\n\r\n", size)
		answer = append(answer, Body(size)...)
		a[size] = answer
	}
	return answer
}
