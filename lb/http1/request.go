package http1

// Framing says how the end of a body is known (RFC 9112 6.3).
type Framing uint8

const (
	NoBody     Framing = iota
	Length             // Content-Length
	Chunked            // Transfer-Encoding: chunked
	UntilClose         // answers only: the body ends with the connection
)

// Request is the head of a request; its field lines are in Fields. All byte slices refer to
// the parsed octets or to memory of the Request, and are good until Reset. The zero Request is
// ready for Parse.
type Request struct {
	head

	Method []byte // a token; never CONNECT or TRACE
	Target []byte // as it was sent, for the log
	Minor  int    // 0 for HTTP/1.0, 1 for every later HTTP/1.x

	// Host is for choosing a route: lower case, no port, no trailing dot, IPv6 in brackets.
	// Empty only where HasHost is false.
	Host []byte
	// Authority is for the next hop: host and port as the client wrote them. That of an
	// absolute target replaces the Host field (RFC 9112 3.2.2).
	Authority []byte
	HasHost   bool // false: an HTTP/1.0 request that names no host

	// Path is what is matched and what is forwarded: normalised once, as AppendPath says.
	// It is "*" for OPTIONS *, and begins with a slash otherwise.
	Path []byte
	// Query is what follows the "?", as it was sent; nil if there is none.
	Query []byte
	// EncodedSlash says that the path came with a %2F, a %5C or a backslash. Unless the route allows that, the request
	// is refused with ErrEncodedSlash.
	EncodedSlash bool

	Framing Framing // NoBody, Length or Chunked
	Length  int64   // octets of the body if Framing is Length, else -1

	KeepAlive      bool // the client takes another answer on this connection
	ExpectContinue bool // the client waits for a 100 before it sends the body
	Upgrade        bool // the client wants to go on with WebSocket; nothing else may be asked for
	Trailers       bool // the client takes trailer fields (TE: trailers)

	host []byte // lower-cased Host, if that differs
	path []byte // normalised Path, if that differs
}

// Reset makes r ready for the next head. It keeps the memory.
func (r *Request) Reset() {
	list, host, path := r.Fields.list[:0], r.host[:0], r.path[:0]
	*r = Request{} // in place: a literal with something in it is made elsewhere and copied
	r.Fields.list, r.host, r.path = list, host, path
}

// Parse reads a request head from the front of b. It returns the length of the head once that
// is whole, ErrIncomplete if b ends before it does, and an *Error if it must be refused, as
// soon as that is certain. After ErrIncomplete it is called again with the same limits and
// the same octets and more, which may have moved; it does not look at them twice. After
// anything else, Reset comes first. The octets b[:n] must not change until r is done with.
// One empty line before the request is skipped (RFC 9112 2.2).
func (r *Request) Parse(b []byte, lim *Limits) (n int, err error) {
	if f := r.parse(b, lim); f != noFault {
		return 0, requestError(f)
	}
	return r.line, nil
}

// parse is the whole flow.
//
//  1. the request line, at once when it is there
//  2. the field lines
//  3. what they mean together: host, body, connection, expectation
func (r *Request) parse(whole []byte, lim *Limits) fault {
	b := r.take(whole, lim)
	if r.firstN == 0 {
		if f := r.readRequestLine(b); f != noFault {
			return r.tooLong(f, whole, lim, targetTooLong)
		}
	} else {
		r.pieces = true
	}
	if f := r.fields(b, lim, false); f != noFault {
		return r.tooLong(f, whole, lim, headTooLarge)
	}
	if r.pieces {
		r.parseRequestLine(b[r.start : r.start+r.firstN]) // fresh slices: b may have moved
	}
	if f := r.findHost(); f != noFault {
		return f
	}
	if f := r.findBody(); f != noFault {
		return f
	}
	if f := r.findConnection(); f != noFault {
		return f
	}
	return r.findExpectation()
}

// tooLong turns incomplete into its own fault where the head has used up its limit.
func (h *head) tooLong(f fault, b []byte, lim *Limits, long fault) fault {
	if f == incomplete && len(b) >= lim.HeadBytes {
		return long
	}
	return f
}

// readRequestLine finds and parses the request line.
func (r *Request) readRequestLine(b []byte) fault {
	if r.start == 0 && len(b) >= 2 && b[0] == '\r' && b[1] == '\n' {
		r.start, r.line, r.scan = 2, 2, 2
	}
	if len(b) > r.start && fold[b[r.start]] == 0 && !(r.start == 0 && b[0] == '\r' && len(b) == 1) {
		return badMethod // at once: something else than HTTP has no reason to send a line end
	}
	line, f := r.next(b)
	if f != noFault {
		return f
	}
	r.firstN = len(line)
	return r.parseRequestLine(line)
}

// parseRequestLine takes method SP target SP version, single spaces only (RFC 9112 3).
func (r *Request) parseRequestLine(line []byte) fault {
	m := 0
	for m < len(line) && fold[line[m]] != 0 {
		m++
	}
	if m == len(line) || line[m] != ' ' {
		return badMethod
	}
	const version = len(" HTTP/1.1")
	v := len(line) - version
	if v < m+1 || line[v] != ' ' {
		return badRequestLine
	}
	minor, f := parseVersion(line[v+1:])
	if f != noFault {
		return f
	}
	r.Method, r.Target, r.Minor = line[:m:m], line[m+1:v:v], min(minor, 1)
	switch {
	case m > methodBytesMax:
		return methodTooLong
	case string(r.Method) == "CONNECT", string(r.Method) == "TRACE":
		return methodNotAllowed
	}
	return r.parseTarget()
}

// parseVersion takes HTTP/1.DIGIT in capitals. A later minor version is a 1.1 with things
// that may be ignored (RFC 9110 2.5); another major version is none that we speak.
func parseVersion(v []byte) (minor int, f fault) {
	if len(v) != 8 || string(v[:5]) != "HTTP/" || v[5]-'0' > 9 || v[6] != '.' || v[7]-'0' > 9 {
		return 0, badVersion
	}
	if v[5] != '1' {
		return 0, versionNotSupported
	}
	return int(v[7] - '0'), noFault
}
