package http1

// findBody determines the framing of a request by RFC 9112 6.3. Whatever two readers could
// understand in two ways is refused.
func (r *Request) findBody() fault {
	r.Framing, r.Length = NoBody, -1
	switch {
	case r.Fields.seen.has(nameTransferEncoding):
		r.Framing = Chunked
		return r.Fields.checkCoding(r.Minor)
	case r.Fields.seen.has(nameContentLength):
		var f fault
		r.Framing = Length
		r.Length, f = r.Fields.contentLength()
		return f
	}
	return noFault
}

// checkCoding accepts Transfer-Encoding if it is "chunked" and nothing else, in HTTP/1.1 and
// without a Content-Length (RFC 9112 6.1). An error of form is told from a coding that we do
// not have.
func (f *Fields) checkCoding(minor int) fault {
	codings, chunked, last := 0, 0, false
	for i := range f.list {
		if f.list[i].id != nameTransferEncoding {
			continue
		}
		for rest := f.Value(i); rest != nil; {
			var coding []byte
			coding, rest = nextElement(rest)
			if !isToken(coding) {
				return badTransferEncoding
			}
			codings++
			if last = equalFold(coding, "chunked"); last {
				chunked++
			}
		}
	}
	switch {
	case chunked != 1 || !last:
		return badTransferEncoding
	case codings != 1:
		return unknownCoding
	case minor == 0:
		return codingIn10
	case f.seen.has(nameContentLength):
		return lengthAndChunked
	}
	return noFault
}

// contentLength takes one Content-Length with one number. Twins of equal value are refused
// like all others (RFC 9110 8.6 leaves it open): no client sends them.
func (f *Fields) contentLength() (int64, fault) {
	count, n := 0, int64(-1)
	for i := range f.list {
		if f.list[i].id != nameContentLength {
			continue
		}
		var ok bool
		if n, ok = parseLength(f.Value(i)); !ok {
			return -1, badContentLength
		}
		count++
	}
	if count > 1 {
		return -1, duplicateContentLength
	}
	return n, noFault
}
