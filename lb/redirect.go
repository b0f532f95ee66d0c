package lb

import (
	"bytes"
	"cmp"
	"net/netip"
	"strconv"

	"lbd/lb/http1"
)

// redirect is a compiled Redirect.
type redirect struct {
	scheme, host, path string
	port               string
	code               int
}

func newRedirect(cfg *Redirect) *redirect {
	r := &redirect{scheme: cfg.Scheme, host: cfg.Host, path: cfg.Path, code: cmp.Or(cfg.Code, 302)}
	if cfg.Port != 0 {
		r.port = strconv.Itoa(cfg.Port)
	}
	if a, err := netip.ParseAddr(cfg.Host); err == nil && a.Is6() {
		r.host = "[" + cfg.Host + "]"
	}
	return r
}

// appendLocation appends where a request with the given scheme is sent. Without a host (HTTP/1.0) that is a path alone if the
// scheme stays; else there is nothing to say. A port that its scheme has anyway is left out, and so is none at all.
func (r *redirect) appendLocation(dst []byte, req *http1.Request, scheme string) ([]byte, *fault) {
	path := req.Path
	if r.path != "" {
		path = append(dst, r.path...)[len(dst):]
	}
	to := cmp.Or(r.scheme, scheme)
	host := req.Host
	if r.host != "" {
		host = []byte(r.host)
	}
	port := r.portFor(req)
	if isDefaultPort(port, to) {
		port = nil
	}
	asked := portOf(req.Authority)
	if isDefaultPort(asked, scheme) {
		asked = nil
	}
	switch {
	case to == scheme && bytes.EqualFold(host, req.Host) && bytes.Equal(port, asked) && bytes.Equal(path, req.Path):
		return dst, faultRedirectLoop
	case len(host) > 0:
		dst = append(append(append(dst, to...), "://"...), host...)
		if len(port) > 0 {
			dst = append(append(dst, ':'), port...)
		}
	case to != scheme, len(port) > 0, len(path) > 1 && path[1] == '/': // "//" would begin with a host
		return dst, faultNoHost
	}
	if r.path != "" {
		dst = append(dst, r.path...)
	} else {
		dst = append(dst, req.Path...)
	}
	if req.Query != nil {
		dst = append(append(dst, '?'), req.Query...)
	}
	return dst, nil
}

// portFor is the port that the client is sent to; nil: the scheme's.
func (r *redirect) portFor(req *http1.Request) []byte {
	switch {
	case r.port != "":
		return []byte(r.port)
	case r.scheme != "":
		return nil
	}
	return portOf(req.Authority)
}

// portOf is the port of a good authority, without its zeros in front; nil if it names none.
func portOf(authority []byte) []byte {
	colon := bytes.LastIndexByte(authority, ':')
	if colon < 0 || bytes.IndexByte(authority[colon:], ']') >= 0 || colon+1 == len(authority) {
		return nil
	}
	return bytes.TrimLeft(authority[colon+1:], "0")
}

func isDefaultPort(port []byte, scheme string) bool {
	return string(port) == "80" && scheme == "http" || string(port) == "443" && scheme == "https"
}

// redirect answers with the route's redirect.
func (x *exchange) redirect() step {
	r := x.route.redirect
	line, f := r.appendLocation(append(x.line[:0], "Location: "...), &x.req, x.scheme())
	x.line = line
	if f != nil {
		return x.refuse(f)
	}
	x.line = append(x.line, "\r\n"...)
	return x.answered(x.sendOwn(r.code, x.line, nil))
}
