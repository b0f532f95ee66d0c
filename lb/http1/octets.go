package http1

import (
	"encoding/binary"
)

// fold maps an octet to the form in which field names are compared: lower case, and "_" as
// "-" because many a backend cannot tell them apart. Zero means that the octet may not be in
// a token (RFC 9110 5.6.2).
var fold = func() (t [256]byte) {
	for _, c := range "!#$%&'*+-.^`|~0123456789abcdefghijklmnopqrstuvwxyz" {
		t[c] = byte(c)
	}
	for c := 'A'; c <= 'Z'; c++ {
		t[c] = byte(c) | 0x20
	}
	t['_'] = '-'
	return t
}()

// isToken reports whether b is a token: at least one octet, all of them allowed.
func isToken(b []byte) bool {
	for _, c := range b {
		if fold[c] == 0 {
			return false
		}
	}
	return len(b) > 0
}

// equalFold reports whether b is the word lower, given in lower case, in any case.
func equalFold(b []byte, lower string) bool {
	if len(b) != len(lower) {
		return false
	}
	for i, c := range b {
		if c-'A' < 26 {
			c |= 0x20
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}

// forbiddenOctet returns the index of the first octet that a field value may not hold
// (RFC 9110 5.5: controls other than a tab, and DEL), or -1. Values are most of a head, so
// it looks at several octets at a time.
func forbiddenOctet(v []byte) int {
	i := 0
	for ; len(v)-i >= 32; i += 32 {
		w := v[i : i+32 : i+32]
		if suspects(w)|suspects(w[8:])|suspects(w[16:])|suspects(w[24:]) != 0 {
			break
		}
	}
	for ; len(v)-i >= 8 && suspects(v[i:]) == 0; i += 8 {
	}
	for ; i < len(v); i++ {
		if isForbidden(v[i]) {
			return i
		}
	}
	return -1
}

// suspects is not zero if one of the first eight octets is a control, which may be a tab.
func suspects(v []byte) uint64 {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	x := binary.LittleEndian.Uint64(v)
	del := x ^ 0x7f*ones
	// A top bit is left where x has an octet below 0x20, or where del has a zero octet.
	return ((x-0x20*ones)&^x | (del-ones)&^del) & tops
}

func isForbidden(c byte) bool { return c < ' ' && c != '\t' || c == 0x7f }

// trimSpace cuts optional whitespace (RFC 9110 5.6.3) off both ends.
func trimSpace(b []byte) []byte {
	for len(b) > 0 && isSpace(b[0]) {
		b = b[1:]
	}
	for len(b) > 0 && isSpace(b[len(b)-1]) {
		b = b[:len(b)-1]
	}
	return b
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' }

// nextElement cuts the first element off a comma-separated list (RFC 9110 5.6.1). Empty
// elements come back as such.
func nextElement(list []byte) (element, rest []byte) {
	for i, c := range list {
		if c == ',' {
			return trimSpace(list[:i]), list[i+1:]
		}
	}
	return trimSpace(list), nil
}

// parseLength reads 1*DIGIT (RFC 9110 8.6); false if there is anything else in b or if it is
// no int64.
func parseLength(b []byte) (int64, bool) {
	n := int64(0)
	for _, c := range b {
		d := int64(c - '0')
		if d > 9 || n > (1<<63-1-d)/10 {
			return 0, false
		}
		n = n*10 + d
	}
	return n, len(b) > 0
}

// hexValue returns the value of a hex digit, or false.
func hexValue(c byte) (byte, bool) {
	switch {
	case c-'0' < 10:
		return c - '0', true
	case (c|0x20)-'a' < 6:
		return (c | 0x20) - 'a' + 10, true
	}
	return 0, false
}
