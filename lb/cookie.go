package lb

import (
	"bytes"
	"strconv"
	"time"

	"lbd/lb/http1"
)

// cookieValue returns the value of the first cookie of that name in a request (RFC 6265 4.2.1), as it lies in the head, and false
// if there is none. Names are compared as they are; quotes stay.
func cookieValue(fields *http1.Fields, name string) ([]byte, bool) {
	for field, value := range fields.All() {
		if len(field) != len("cookie") || !bytes.EqualFold(field, []byte("cookie")) {
			continue
		}
		if found, ok := cookieIn(value, name); ok {
			return found, true
		}
	}
	return nil, false
}

// cookieIn looks into one Cookie field's value.
func cookieIn(field []byte, name string) ([]byte, bool) {
	for len(field) > 0 {
		var pair []byte
		pair, field, _ = bytes.Cut(field, []byte{';'})
		key, content, ok := bytes.Cut(pair, []byte{'='})
		if ok && string(bytes.TrimSpace(key)) == name {
			return bytes.TrimSpace(content), true
		}
	}
	return nil, false
}

// setCookie is a cookie of ours that an answer sets: for all paths of its host, and never for scripts.
type setCookie struct {
	name     string
	maxAge   time.Duration // 0: until the browser closes
	sameSite string        // "Lax", "Strict" or "None"
	secure   bool
}

// append appends the whole field line (RFC 6265 4.1.1).
func (c *setCookie) append(dst, value []byte) []byte {
	dst = append(dst, "Set-Cookie: "...)
	dst = append(dst, c.name...)
	dst = append(dst, '=')
	dst = append(dst, value...)
	dst = append(dst, "; Path=/; HttpOnly; SameSite="...)
	dst = append(dst, c.sameSite...)
	if c.maxAge > 0 {
		dst = append(dst, "; Max-Age="...)
		dst = strconv.AppendInt(dst, int64((c.maxAge+time.Second-1)/time.Second), 10)
	}
	if c.secure || c.sameSite == "None" { // browsers demand it
		dst = append(dst, "; Secure"...)
	}
	return append(dst, "\r\n"...)
}
