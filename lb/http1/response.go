package http1

// Response is the head of a backend's answer; its field lines are in Fields. Its byte slices are good until Reset. The zero
// Response is ready for Parse.
type Response struct {
	head

	Status int    // 100 to 599
	Text   []byte // the reason phrase, may be empty
	Minor  int    // 0 for HTTP/1.0, 1 for every later HTTP/1.x

	Framing Framing
	// Length is the Content-Length, or -1. It is the body's only if Framing is Length: the
	// answer to HEAD and a 304 announce that of a body which does not follow (RFC 9110 8.6).
	Length int64

	KeepAlive bool // the backend's connection may be used again after the body
	// KeepAliveSeconds is how long the backend says it keeps an idle connection, or -1.
	KeepAliveSeconds int
}

// Reset makes r ready for the next head. It keeps the memory.
func (r *Response) Reset() {
	list := r.Fields.list[:0]
	*r = Response{} // in place, as in Request.Reset
	r.Fields.list = list
}

// Interim reports whether a further answer to the same request follows this one. 101 is none:
// after it the connection speaks another protocol.
func (r *Response) Interim() bool { return r.Status < 200 && r.Status != 101 }

// Parse reads the head of an answer to req from the front of b; nil stands for a plain GET.
// For the rest it works as Request.Parse does. Every *Error has the status 502.
func (r *Response) Parse(b []byte, lim *Limits, req *Request) (n int, err error) {
	if f := r.parse(b, lim, req); f != noFault {
		return 0, responseError(f)
	}
	return r.line, nil
}

func (r *Response) parse(whole []byte, lim *Limits, req *Request) fault {
	b := r.take(whole, lim)
	if r.firstN == 0 {
		line, f := r.next(b)
		if f == noFault {
			r.firstN = len(line)
			f = r.parseStatusLine(line)
		}
		if f != noFault {
			return r.tooLong(f, whole, lim, headTooLarge)
		}
	} else {
		r.pieces = true
	}
	if f := r.fields(b, lim, true); f != noFault {
		return r.tooLong(f, whole, lim, headTooLarge)
	}
	if r.pieces {
		r.parseStatusLine(b[:r.firstN]) // a fresh slice: b may have moved
	}
	o, f := r.Fields.connection()
	if f != noFault {
		return f
	}
	r.KeepAlive = !o.close && (r.Minor > 0 || o.keepAlive)
	r.KeepAliveSeconds = r.Fields.keepAliveTimeout()
	return r.findBody(o, req)
}

// parseStatusLine takes version SP 3DIGIT [SP text] (RFC 9112 4). The space before an empty
// text is often left out.
func (r *Response) parseStatusLine(line []byte) fault {
	if len(line) < len("HTTP/1.1 200") {
		return badStatusLine
	}
	minor, f := parseVersion(line[:8])
	if f != noFault {
		return f
	}
	status := 0
	for _, c := range line[9:12] {
		if c-'0' > 9 {
			return badStatusLine
		}
		status = status*10 + int(c-'0')
	}
	text := line[12:]
	if line[8] != ' ' || status < 100 || status > 599 || len(text) > 0 && text[0] != ' ' {
		return badStatusLine
	}
	if len(text) > 0 {
		text = text[1:]
	}
	if forbiddenOctet(text) >= 0 {
		return badStatusLine
	}
	r.Minor, r.Status, r.Text = min(minor, 1), status, text
	return noFault
}

// findBody determines the framing of an answer by RFC 9112 6.3. A backend that is not sure
// how long its answer is gets no benefit of the doubt either.
func (r *Response) findBody(o options, req *Request) fault {
	r.Framing, r.Length = NoBody, -1
	coded := r.Fields.seen.has(nameTransferEncoding)
	sized := r.Fields.seen.has(nameContentLength)
	if coded {
		if f := r.Fields.checkCoding(r.Minor); f != noFault {
			return f
		}
	}
	if sized {
		var f fault
		if r.Length, f = r.Fields.contentLength(); f != noFault {
			return f
		}
	}
	switch {
	case r.Status == 101:
		if req == nil || !req.Upgrade || !o.upgrade || !r.Fields.lists(nameUpgrade, "websocket") {
			return unexpectedUpgrade
		}
	case r.Status < 200, r.Status == 204:
		if coded || r.Length > 0 {
			r.KeepAlive = false // what may follow is no answer to anybody
		}
		r.Length = -1
	case r.Status == 304, req != nil && string(req.Method) == "HEAD":
	case coded:
		r.Framing = Chunked
	case sized:
		r.Framing = Length
	default:
		r.Framing, r.KeepAlive = UntilClose, false
	}
	return noFault
}

// keepAliveTimeout reads the timeout parameter of Keep-Alive, in seconds; -1 if there is none.
func (f *Fields) keepAliveTimeout() int {
	if !f.seen.has(nameKeepAlive) {
		return -1
	}
	const key = "timeout="
	for rest := f.first(nameKeepAlive); rest != nil; {
		var e []byte
		e, rest = nextElement(rest)
		if len(e) > len(key) && equalFold(e[:len(key)], key) {
			if n, ok := parseLength(e[len(key):]); ok {
				return int(min(n, 1<<30))
			}
		}
	}
	return -1
}
