package lb

import (
	"fmt"

	"lbd/lb/http1"
)

// rewrite is a compiled Rewrite.
type rewrite struct {
	host   []byte
	prefix []byte // without the slash at the end, which the rest of the path brings
	slash  bool   // it had one
	paths  bool   // there is a prefix
}

func newRewrite(cfg *Rewrite) (rewrite, error) {
	r := rewrite{host: []byte(cfg.Host), paths: cfg.Prefix != ""}
	if !r.paths {
		return r, nil
	}
	prefix, _, err := http1.AppendPath(nil, []byte(cfg.Prefix))
	if err != nil {
		return r, fmt.Errorf("rewrite to prefix %q: %w", cfg.Prefix, err)
	}
	r.prefix = prefix
	if last := len(prefix) - 1; prefix[last] == '/' {
		r.prefix, r.slash = prefix[:last], true
	}
	return r, nil
}

// appendPath appends the path that the backend gets, where it is not the request's: with the first matched octets, which were whole
// segments, replaced. Both parts are in normal form and meet at a slash, so the result is, too.
func (r *rewrite) appendPath(dst, path []byte, matched int) []byte {
	if !r.paths || matched == noPrefix {
		return dst
	}
	rest := path[matched:]
	dst = append(dst, r.prefix...)
	if len(rest) == 0 && (r.slash || len(r.prefix) == 0) {
		return append(dst, '/')
	}
	return append(dst, rest...)
}

// backendHost is the Host that the backend gets in place of the client's: the route's, or the backend's own name where an HTTP/1.0
// client named none, since HTTP/1.1 demands one.
func (x *exchange) backendHost() []byte {
	switch {
	case len(x.route.rewrite.host) > 0:
		return x.route.rewrite.host
	case x.req.HasHost:
		return nil
	}
	return []byte(x.backend.name)
}
