package lb

import (
	"bytes"
	"net/netip"
	"slices"

	"lbd/lb/http1"
)

// admit applies what the route demands of a request, and begins the request's own time. The order is that of what an operator
// wants to hear: what is no request to this route at all, who may not come, that it is closed, and only then what is too much.
func (x *exchange) admit() *fault {
	r := x.route
	if f := r.refuses(&x.req, x.clientAddress); f != nil {
		return f
	}
	x.up.bytesMax = r.bodyBytesMax
	if r.pools != nil {
		x.requestBy = after(x.rec.Time, r.timeouts.Request)
	}
	return x.enterLimits()
}

// refuses is what the head and the client's address decide.
func (p *plan) refuses(req *http1.Request, client func() netip.Addr) *fault {
	if req.EncodedSlash && !p.encodedSlash {
		return badRequest(http1.ErrEncodedSlash)
	}
	if len(p.addresses) > 0 {
		from := client()
		for _, a := range p.addresses {
			if !a.permits(from) {
				return faultDenied
			}
		}
	}
	switch {
	case p.maintenance != nil && !p.maintenance.bypass.has(client()):
		return &p.maintenance.fault
	case req.Framing == http1.Length && req.Length > p.bodyBytesMax:
		return faultBodySize
	}
	return nil
}

// enterLimits takes a place under each of the route's limits, or none.
func (x *exchange) enterLimits() *fault {
	for _, c := range x.route.concurrency {
		if c.inFlight.Add(1) > c.max.Load() {
			c.inFlight.Add(-1)
			x.leaveLimits()
			return faultConcurrency
		}
		x.places++
	}
	return nil
}

func (x *exchange) leaveLimits() {
	for ; x.places > 0; x.places-- {
		x.route.concurrency[x.places-1].inFlight.Add(-1)
	}
}

// clientAddress is the client's own address, as far as our proxies can tell, without a zone; IPv4 is IPv4 in any clothes.
func (x *exchange) clientAddress() netip.Addr {
	peer := x.client.remote().Addr()
	if !x.client.trusted(x.form) {
		return plainAddress(peer)
	}
	return clientBehind(&x.req.Fields, peer, x.form.trusted)
}

var xForwardedFor = http1.NewName("x-forwarded-for")

// clientBehind reads X-Forwarded-For from its end, where the nearest proxy has written: the first address that is none of our
// proxies' is the client's. What is no address ends the search, for only what ours have written counts.
func clientBehind(fields *http1.Fields, peer netip.Addr, ours []netip.Prefix) netip.Addr {
	client := plainAddress(peer)
	var lines [forwardedLinesMax]int
	n := 0
	for i := fields.Next(0, &xForwardedFor, true); i >= 0; i = fields.Next(i+1, &xForwardedFor, true) {
		if n == len(lines) { // the first are the oldest, and the last to be asked
			n = copy(lines[:], lines[1:])
		}
		lines[n] = i
		n++
	}
	for n--; n >= 0; n-- {
		for rest := fields.Value(lines[n]); rest != nil; {
			var element []byte
			if comma := bytes.LastIndexByte(rest, ','); comma >= 0 {
				rest, element = rest[:comma], rest[comma+1:]
			} else {
				rest, element = nil, rest
			}
			address, ok := parseForwarded(bytes.TrimSpace(element))
			if !ok {
				return client
			}
			client = address
			if !isOurs(client, ours) {
				return client
			}
		}
	}
	return client
}

func isOurs(address netip.Addr, ours []netip.Prefix) bool {
	return slices.ContainsFunc(ours, func(p netip.Prefix) bool { return p.Contains(address) })
}

// parseForwarded takes an address, some proxies' form of it with a port, and IPv6 in brackets.
func parseForwarded(element []byte) (netip.Addr, bool) {
	if len(element) > forwardedAddressBytesMax {
		return netip.Addr{}, false
	}
	text := string(element)
	if address, err := netip.ParseAddr(text); err == nil {
		return plainAddress(address), true
	}
	if address, err := netip.ParseAddrPort(text); err == nil {
		return plainAddress(address.Addr()), true
	}
	if n := len(text); n > 2 && text[0] == '[' && text[n-1] == ']' {
		if address, err := netip.ParseAddr(text[1 : n-1]); err == nil {
			return plainAddress(address), true
		}
	}
	return netip.Addr{}, false
}

func plainAddress(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

var xForwardedProto = http1.NewName("x-forwarded-proto")

// scheme is the client's: what a proxy of ours says last, else the connection's.
func (x *exchange) scheme() string {
	return schemeOf(&x.req.Fields, x.client.scheme(), x.client.trusted(x.form))
}

func schemeOf(fields *http1.Fields, own string, trusted bool) string {
	if !trusted {
		return own
	}
	scheme := own
	for i := fields.Next(0, &xForwardedProto, true); i >= 0; i = fields.Next(i+1, &xForwardedProto, true) {
		value := fields.Value(i)
		value = bytes.TrimSpace(value[bytes.LastIndexByte(value, ',')+1:])
		switch {
		case bytes.EqualFold(value, []byte("https")):
			scheme = "https"
		case bytes.EqualFold(value, []byte("http")):
			scheme = "http"
		}
	}
	return scheme
}
