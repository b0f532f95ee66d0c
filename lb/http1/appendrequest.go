package http1

import (
	"strconv"
	"strings"
)

// RequestEdit is what changes in a request on its way to a backend. Empty fields are left
// out of the head. The values must be good field values; they are not checked again.
type RequestEdit struct {
	Host []byte // sent as Host instead of the client's; needed where the request has none
	Path []byte // sent instead of the request's Path, in normal form

	ClientAddress string // of the peer, without port; IPv6 without brackets
	Scheme        string // "http" or "https"
	Port          string // of the listener
	// Trusted says that the peer is a proxy of ours: what it says about the client is kept and
	// ours is added to it. From anybody else it is dropped.
	Trusted   bool
	Forwarded bool // write Forwarded (RFC 7239), too

	RequestID       []byte // replaces whatever came; the caller keeps a trusted peer's
	Via             string // our name in Via (RFC 9110 7.6.3)
	ClientCert      []byte // RFC 9440 2.2; from a client it is never taken
	ClientCertChain []byte // RFC 9440 2.3

	Rules *Rules
	// AllowUnderscores lets a field through that differs from one in Rules, from X-Forwarded-* or
	// from X-Request-Id only in "_" for "-". Twins of the fields that frame a message, describe its
	// connection or vouch for a client never pass.
	AllowUnderscores bool
	Close            bool // the backend shall close the connection after its answer
}

// Append appends the head of r as it goes to a backend, in strict canonical form: always
// HTTP/1.1, origin form, one Host, one framing, nothing that is for one hop only.
func (r *Request) Append(dst []byte, e *RequestEdit) []byte {
	dst = r.appendRequestLine(dst, e)
	host := r.Authority
	if len(e.Host) > 0 {
		host = e.Host
	}
	dst = appendLine(dst, "Host", host)

	drop := thisHop | ownRequest
	if r.Framing != Chunked {
		drop |= 1 << nameTrailer
	}
	if !e.Trusted || e.Forwarded {
		drop |= 1 << nameForwarded
	}
	if e.AllowUnderscores {
		drop &^= 1 << nameLooseTwin
	}
	dst = r.Fields.appendKept(dst, drop, e.Rules, e.AllowUnderscores)
	dst = r.appendForwarding(dst, e)
	dst = r.appendIdentity(dst, e)
	dst = e.Rules.append(dst)
	dst = appendFraming(dst, r.Framing, r.Length)
	if r.ExpectContinue {
		dst = append(dst, "Expect: 100-continue\r\n"...)
	}
	dst = r.appendConnection(dst, e.Close)
	return append(dst, "\r\n"...)
}

func (r *Request) appendRequestLine(dst []byte, e *RequestEdit) []byte {
	path := r.Path
	if len(e.Path) > 0 {
		path = e.Path
	}
	dst = append(dst, r.Method...)
	dst = append(dst, ' ')
	dst = append(dst, path...)
	if r.Query != nil {
		dst = append(dst, '?')
		dst = append(dst, r.Query...)
	}
	return append(dst, " HTTP/1.1\r\n"...)
}

// appendForwarding says where the request came from, behind what a trusted peer said.
func (r *Request) appendForwarding(dst []byte, e *RequestEdit) []byte {
	dst = appendForwarded(dst, r, e, nameXForwardedFor, "X-Forwarded-For: ", e.ClientAddress)
	dst = appendForwarded(dst, r, e, nameXForwardedProto, "X-Forwarded-Proto: ", e.Scheme)
	dst = appendForwarded(dst, r, e, nameXForwardedHost, "X-Forwarded-Host: ", r.Authority)
	dst = appendForwarded(dst, r, e, nameXForwardedPort, "X-Forwarded-Port: ", e.Port)
	if e.Forwarded && !e.Rules.writes(nameForwarded) {
		dst = append(dst, "Forwarded: "...)
		if e.Trusted {
			dst = r.Fields.appendList(dst, nameForwarded)
		}
		dst = r.appendForwardedElement(dst, e)
	}
	return dst
}

func appendForwarded[V string | []byte](dst []byte, r *Request, e *RequestEdit, id nameID, name string, value V) []byte {
	if len(value) == 0 || e.Rules.writes(id) {
		return dst
	}
	dst = append(dst, name...)
	if e.Trusted {
		dst = r.Fields.appendList(dst, id)
	}
	dst = append(dst, value...)
	return append(dst, "\r\n"...)
}

// appendForwardedElement: RFC 7239 4. What has a colon must be quoted, an IPv6 address also
// in brackets.
func (r *Request) appendForwardedElement(dst []byte, e *RequestEdit) []byte {
	dst = append(dst, "for="...)
	switch {
	case e.ClientAddress == "":
		dst = append(dst, "unknown"...)
	case strings.IndexByte(e.ClientAddress, ':') >= 0:
		dst = append(dst, `"[`...)
		dst = append(dst, e.ClientAddress...)
		dst = append(dst, `]"`...)
	default:
		dst = append(dst, e.ClientAddress...)
	}
	if len(r.Authority) > 0 {
		dst = append(dst, `;host="`...)
		dst = append(dst, r.Authority...)
		dst = append(dst, '"')
	}
	if e.Scheme != "" {
		dst = append(dst, ";proto="...)
		dst = append(dst, e.Scheme...)
	}
	return append(dst, "\r\n"...)
}

func (r *Request) appendIdentity(dst []byte, e *RequestEdit) []byte {
	if len(e.RequestID) > 0 && !e.Rules.writes(nameXRequestID) {
		dst = appendLine(dst, "X-Request-Id", e.RequestID)
	}
	if len(e.ClientCert) > 0 {
		dst = appendLine(dst, "Client-Cert", e.ClientCert)
	}
	if len(e.ClientCertChain) > 0 {
		dst = appendLine(dst, "Client-Cert-Chain", e.ClientCertChain)
	}
	if !e.Rules.writes(nameVia) {
		dst = appendVia(dst, r.Minor, e.Via)
	}
	return dst
}

// appendConnection writes what this hop needs of Connection and the fields it names.
func (r *Request) appendConnection(dst []byte, last bool) []byte {
	switch {
	case r.Upgrade:
		return append(dst, "Connection: upgrade\r\nUpgrade: websocket\r\n"...)
	case r.Trailers && last:
		return append(dst, "Connection: close, TE\r\nTE: trailers\r\n"...)
	case r.Trailers:
		return append(dst, "Connection: TE\r\nTE: trailers\r\n"...)
	case last:
		return append(dst, "Connection: close\r\n"...)
	}
	return dst
}

// appendVia appends a Via line; a list may be continued in a line of its own.
func appendVia(dst []byte, minor int, name string) []byte {
	if name == "" {
		return dst
	}
	dst = append(dst, "Via: 1."...)
	dst = append(dst, '0'+byte(minor), ' ')
	dst = append(dst, name...)
	return append(dst, "\r\n"...)
}

func appendFraming(dst []byte, f Framing, length int64) []byte {
	switch f {
	case Length:
		dst = append(dst, "Content-Length: "...)
		dst = strconv.AppendInt(dst, length, 10)
		return append(dst, "\r\n"...)
	case Chunked:
		return append(dst, "Transfer-Encoding: chunked\r\n"...)
	}
	return dst
}
