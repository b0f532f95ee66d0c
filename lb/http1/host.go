package http1

import "bytes"

// findHost takes the host from an absolute target or else from the one Host field. The field
// must be right in either case (RFC 9112 3.2).
func (r *Request) findHost() fault {
	var field []byte
	count := 0
	if r.Fields.seen.has(nameHost) {
		for i := range r.Fields.list {
			if r.Fields.list[i].id == nameHost {
				field = r.Fields.Value(i)
				count++
			}
		}
	}
	switch {
	case count > 1:
		return duplicateHost
	case count == 0 && r.Minor > 0:
		return noHost
	case count == 1 && splitHost(field) == nil:
		return badHost
	}
	if r.Authority == nil {
		if count == 0 {
			return noFault
		}
		r.Authority = field
	}
	host := splitHost(r.Authority)
	if host == nil {
		return badHost
	}
	r.Host, r.HasHost = r.lowerHost(host), true
	return noFault
}

// lowerHost trims the trailing dot and returns host in lower case, copied only if need be.
func (r *Request) lowerHost(host []byte) []byte {
	if host[len(host)-1] == '.' {
		host = host[:len(host)-1]
	}
	for _, c := range host {
		if c-'A' < 26 {
			r.host = append(r.host[:0], host...)
			for i, c := range r.host {
				if c-'A' < 26 {
					r.host[i] = c | 0x20
				}
			}
			return r.host
		}
	}
	return host
}

// splitHost returns the host of an authority that has a valid host, no user information and a
// port that is a number or missing; else nil.
func splitHost(authority []byte) []byte {
	if len(authority) > 0 && authority[0] == '[' {
		end := bytes.IndexByte(authority, ']')
		if end < 0 || !isIPv6(authority[1:end]) || !isPort(authority[end+1:]) {
			return nil
		}
		return authority[:end+1]
	}
	end := bytes.IndexByte(authority, ':')
	if end < 0 {
		end = len(authority)
	}
	if !isName(authority[:end]) || !isPort(authority[end:]) {
		return nil
	}
	return authority[:end]
}

// isName takes letters, digits, "-", "_" and "." with no empty label but the root's. The
// grammar of RFC 3986 allows more; names that resolve have no more, and what is more has been
// used to say different things to different readers.
func isName(h []byte) bool {
	if len(h) == 0 || len(h) > hostBytesMax {
		return false
	}
	last := byte('.')
	for _, c := range h {
		switch {
		case c == '.' && last == '.':
			return false
		case c-'0' < 10, (c|0x20)-'a' < 26, c == '-', c == '.', c == '_':
		default:
			return false
		}
		last = c
	}
	return true
}

// isPort takes nothing, or a colon and up to a 16-bit number; RFC 3986 3.2.3 lets that be empty.
func isPort(p []byte) bool {
	if len(p) == 0 {
		return true
	}
	n := 0
	for _, c := range p[1:] {
		if c-'0' > 9 {
			return false
		}
		if n = n*10 + int(c-'0'); n > 65535 {
			return false
		}
	}
	return p[0] == ':'
}

// isIPv6 takes the text forms of RFC 4291 2.2 without a zone.
func isIPv6(a []byte) bool {
	groups, gap := 0, false
	if len(a) >= 2 && a[0] == ':' && a[1] == ':' {
		gap, a = true, a[2:]
	}
	for len(a) > 0 {
		n := 0
		for n < len(a) && isHex(a[n]) {
			n++
		}
		if n < len(a) && a[n] == '.' {
			return isIPv4(a) && isCount(groups+2, gap)
		}
		if n == 0 || n > 4 {
			return false
		}
		groups++
		if a = a[n:]; len(a) == 0 {
			break
		}
		if a[0] != ':' || len(a) == 1 {
			return false
		}
		if a = a[1:]; a[0] == ':' {
			if gap {
				return false
			}
			gap, a = true, a[1:]
		}
	}
	return isCount(groups, gap)
}

// isCount: eight groups, or fewer with a gap for the rest.
func isCount(groups int, gap bool) bool {
	return groups == 8 && !gap || groups < 8 && gap
}

func isHex(c byte) bool {
	_, ok := hexValue(c)
	return ok
}

// isIPv4 takes four decimal numbers below 256 without leading zeros.
func isIPv4(a []byte) bool {
	for part := range 4 {
		n, digits := 0, 0
		for digits < len(a) && a[digits]-'0' < 10 && digits < 4 {
			n = n*10 + int(a[digits]-'0')
			digits++
		}
		if digits == 0 || n > 255 || digits > 1 && a[0] == '0' {
			return false
		}
		if a = a[digits:]; part == 3 {
			break
		}
		if len(a) == 0 || a[0] != '.' {
			return false
		}
		a = a[1:]
	}
	return len(a) == 0
}
