package http1

import "bytes"

// Octets of a request target: what may stand as it is, and what needs a closer look.
const (
	targetPlain   = iota
	targetDot     // may begin a dot segment
	targetEncode  // is written as %XX in a path; stays in a query
	targetPercent // begins an escape
	targetQuery   // ends the path
	targetBad     // refused everywhere
)

// targetClass follows RFC 3986 3.3 and 3.4, with what clients really send in addition: curl
// and old libraries leave quotes, braces and octets above 0x7f as they are. Controls, spaces
// and a fragment are refused (RFC 9112 3.2).
var targetClass = func() (t [256]uint8) {
	for c := range t {
		t[c] = targetEncode
		if c <= ' ' || c == 0x7f {
			t[c] = targetBad
		}
	}
	for _, c := range "/:@!$&'()*+,;=-_~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ" {
		t[c] = targetPlain
	}
	t['.'], t['%'], t['?'], t['#'] = targetDot, targetPercent, targetQuery, targetBad
	return t
}()

// parseTarget takes the three forms that a reverse proxy may see (RFC 9112 3.2): origin,
// absolute, and the asterisk of OPTIONS.
func (r *Request) parseTarget() fault {
	t := r.Target
	switch {
	case len(t) == 0:
		return badRequestLine
	case t[0] == '/':
		return r.parsePathAndQuery(t)
	case len(t) == 1 && t[0] == '*' && string(r.Method) == "OPTIONS":
		r.Path = t
		return noFault
	}
	rest, ok := cutScheme(t)
	if !ok {
		return badTarget
	}
	end := len(rest)
	if i := bytes.IndexAny(rest, "/?#"); i >= 0 {
		end = i
	}
	r.Authority = rest[:end:end]
	if end == 0 {
		return badHost
	}
	if rest = rest[end:]; len(rest) > 0 && rest[0] == '/' {
		return r.parsePathAndQuery(rest)
	}
	if len(rest) == 0 && string(r.Method) == "OPTIONS" {
		r.Path = asterisk // RFC 9112 3.2.4: no path asks about the server as a whole
		return noFault
	}
	if f := r.parsePathAndQuery(rest); f != noFault {
		return f
	}
	r.Path = root
	return noFault
}

var (
	asterisk = []byte("*")
	root     = []byte("/")
)

// cutScheme cuts "http://" or "https://" in any case off an absolute target.
func cutScheme(t []byte) ([]byte, bool) {
	for _, s := range [...]string{"http://", "https://"} {
		if len(t) >= len(s) && equalFold(t[:len(s)], s) {
			return t[len(s):], true
		}
	}
	return nil, false
}

// parsePathAndQuery splits t and normalises the path, which is copied only if that changes it.
func (r *Request) parsePathAndQuery(t []byte) fault {
	end, changes := len(t), false
scan:
	for i, c := range t {
		switch targetClass[c] {
		case targetDot:
			changes = changes || t[i-1] == '/' // t[0] is a slash or the query's mark
		case targetEncode, targetPercent:
			changes = true
		case targetQuery:
			end = i
			break scan
		case targetBad:
			return badTarget
		}
	}
	if end < len(t) {
		r.Query = t[end+1:]
		for _, c := range r.Query {
			if targetClass[c] == targetBad {
				return badTarget
			}
		}
	}
	r.Path = t[:end:end]
	if !changes {
		return noFault
	}
	var f fault
	r.path, r.EncodedSlash, f = normalisePath(r.path[:0], r.Path)
	r.Path = r.path
	return f
}
