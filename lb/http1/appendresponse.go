package http1

import "strconv"

// ResponseEdit is what changes in an answer on its way to the client.
type ResponseEdit struct {
	// Framing is that of the body towards the client: Response.ClientFraming's, or another if
	// the body is changed on the way. Length takes the answer's own length.
	Framing Framing
	// Close ends the connection after this answer. With UntilClose it is implied.
	Close bool
	// Minor is the request's: a client of HTTP/1.0 must be told that its connection stays.
	Minor int

	Date  []byte // used if the backend sent none (RFC 9110 6.6.1)
	Via   string // our name in Via (RFC 9110 7.6.3)
	Rules *Rules
	// Lines are appended behind all of that as they are, each with its CRLF: what differs from answer to answer.
	Lines []byte
	// AllowUnderscores is as in RequestEdit.
	AllowUnderscores bool
}

// ClientFraming is how the body of r goes to a client with the given minor version: as it
// came, but a body that ends with the backend's connection is sent in chunks, so that the
// client sees whether it was cut short, and to HTTP/1.0 no chunks are sent (RFC 9112 6.1).
func (r *Response) ClientFraming(minor int) Framing {
	switch {
	case r.Framing != Chunked && r.Framing != UntilClose:
		return r.Framing
	case minor == 0:
		return UntilClose
	}
	return Chunked
}

// Append appends the head of r as it goes to the client. Interim answers, and 101, are
// written by the same call; they get no Connection: close and no framing.
func (r *Response) Append(dst []byte, e *ResponseEdit) []byte {
	dst = append(dst, "HTTP/1.1 "...)
	dst = strconv.AppendInt(dst, int64(r.Status), 10)
	dst = append(dst, ' ')
	dst = append(dst, r.Text...)
	dst = append(dst, "\r\n"...)

	drop := thisHop
	if e.Framing != Chunked {
		drop |= 1 << nameTrailer
	}
	if e.AllowUnderscores {
		drop &^= 1 << nameLooseTwin
	}
	dst = r.Fields.appendKept(dst, drop, e.Rules, e.AllowUnderscores)
	if len(e.Date) > 0 && r.Status >= 200 && !r.Fields.seen.has(nameDate) && !e.Rules.writes(nameDate) {
		dst = appendLine(dst, "Date", e.Date)
	}
	if !e.Rules.writes(nameVia) {
		dst = appendVia(dst, r.Minor, e.Via)
	}
	dst = e.Rules.append(dst)
	dst = append(dst, e.Lines...)
	dst = r.appendFramingAndConnection(dst, e)
	return append(dst, "\r\n"...)
}

func (r *Response) appendFramingAndConnection(dst []byte, e *ResponseEdit) []byte {
	switch {
	case r.Status == 101:
		return append(dst, "Connection: upgrade\r\nUpgrade: websocket\r\n"...)
	case r.Status < 200:
		return dst
	case e.Framing == NoBody && r.Length >= 0:
		dst = appendFraming(dst, Length, r.Length) // of a body that HEAD or 304 leaves out
	default:
		dst = appendFraming(dst, e.Framing, r.Length)
	}
	switch {
	case e.Close || e.Framing == UntilClose:
		dst = append(dst, "Connection: close\r\n"...)
	case e.Minor == 0:
		dst = append(dst, "Connection: keep-alive\r\n"...)
	}
	return dst
}
