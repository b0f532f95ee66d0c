package http1

import "bytes"

const upperHex = "0123456789ABCDEF"

// AppendPath appends the normal form of an absolute path, the one in which paths are matched
// and forwarded, so that no two readers of a request can see two paths:
//
//   - an escape of an unreserved octet is decoded, every other is written in upper case, and
//     what may not stand in a path unescaped is escaped (RFC 3986 6.2.2)
//   - after that, dot segments are resolved; those above the root vanish (RFC 3986 5.2.4)
//   - "//" stays, and so do %2F and %5C; slash reports that there was one of those two, even
//     in a segment that a later ".." took away: who decodes first takes away another one
//
// Refused with an *Error are broken escapes, %00, octets that no target may hold, and the
// disguises of a dot segment that some backends resolve after us: "..;x" and "..%2F".
// Normalising the result again changes nothing.
func AppendPath(dst, path []byte) (out []byte, slash bool, err error) {
	if len(path) == 0 || path[0] != '/' {
		return dst, false, requestError(badTarget)
	}
	for _, c := range path {
		if k := targetClass[c]; k == targetBad || k == targetQuery {
			return dst, false, requestError(badTarget)
		}
	}
	out, slash, f := normalisePath(dst, path)
	if f != noFault {
		return dst, false, requestError(f)
	}
	return out, slash, nil
}

// normalisePath does so for a path that begins with a slash and has no targetBad in it.
func normalisePath(dst, p []byte) (out []byte, slash bool, f fault) {
	base := len(dst)
	for i := 0; i < len(p); {
		start := len(dst)
		end := len(p)
		if j := bytes.IndexByte(p[i+1:], '/'); j >= 0 {
			end = i + 1 + j
		}
		escaped := false
		if dst, escaped, f = appendSegment(append(dst, '/'), p[i+1:end]); f != noFault {
			return dst, false, f
		}
		slash = slash || escaped
		switch dots(dst[start+1:]) {
		case oneDot:
			dst = dst[:start]
		case twoDots:
			dst = dst[:base+max(0, bytes.LastIndexByte(dst[base:start], '/'))]
		case disguised:
			return dst, false, dotSegment
		default:
			i = end
			continue
		}
		if i = end; i == len(p) {
			dst = append(dst, '/') // what a last dot segment leaves is a directory
		}
	}
	return dst, slash, noFault
}

// appendSegment appends one segment with its escapes in normal form.
func appendSegment(dst, s []byte) (out []byte, slash bool, f fault) {
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch targetClass[c] {
		case targetPercent:
			if i+2 >= len(s) {
				return dst, false, badEscape
			}
			hi, ok1 := hexValue(s[i+1])
			lo, ok2 := hexValue(s[i+2])
			if !ok1 || !ok2 || hi|lo == 0 {
				return dst, false, badEscape
			}
			i += 2
			c = hi<<4 | lo
			if isUnreserved(c) {
				dst = append(dst, c)
				continue
			}
			slash = slash || c == '/' || c == '\\'
			dst = append(dst, '%', upperHex[hi], upperHex[lo])
		case targetEncode:
			slash = slash || c == '\\'
			dst = append(dst, '%', upperHex[c>>4], upperHex[c&15])
		default:
			dst = append(dst, c)
		}
	}
	return dst, slash, noFault
}

// isUnreserved: RFC 3986 2.3.
func isUnreserved(c byte) bool {
	return c-'0' < 10 || (c|0x20)-'a' < 26 || c == '-' || c == '.' || c == '_' || c == '~'
}

type dotKind uint8

const (
	noDots dotKind = iota
	oneDot
	twoDots
	disguised
)

// dots tells what kind of dot segment a normalised segment is. Disguised is one that only
// shows after parameters are cut off or an escaped slash is decoded.
func dots(s []byte) dotKind {
	switch string(s) {
	case ".":
		return oneDot
	case "..":
		return twoDots
	}
	for len(s) > 0 {
		part := s
		i := escapedSlash(s)
		if i >= 0 {
			part = s[:i]
		}
		if j := bytes.IndexByte(part, ';'); j >= 0 {
			part = part[:j]
		}
		if string(part) == "." || string(part) == ".." {
			return disguised
		}
		if i < 0 {
			break
		}
		s = s[i+3:]
	}
	return noDots
}

// escapedSlash returns the index of the first %2F or %5C in a normalised segment, or -1.
func escapedSlash(s []byte) int {
	for i := 0; i+2 < len(s); i++ {
		if s[i] == '%' && (s[i+1] == '2' && s[i+2] == 'F' || s[i+1] == '5' && s[i+2] == 'C') {
			return i
		}
	}
	return -1
}
