package main

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"lbd/cluster/state"
	lbdv1 "lbd/proto/lbd/v1"
)

// discoveredMax bounds what one name may lead to, as a document bounds a pool's backends.
const discoveredMax = 1000

// question is what is asked of DNS. As a key it is written as backends are, "host:port", or with a word before it for a discovery:
// "all host:port", "srv _http._tcp.example.com"; and with the owner whose bounds the answers have to keep: "host:port for shop".
type question struct {
	kind   questionKind
	host   string
	port   uint16
	within string // owner; empty: no bounds
}

type questionKind string

const (
	oneAddress   questionKind = ""    // one address of a name, always the same
	allAddresses questionKind = "all" // every address of a name
	service      questionKind = "srv" // every target of a service (RFC 2782)
)

func (q question) String() string {
	text := net.JoinHostPort(q.host, strconv.Itoa(int(q.port)))
	if q.kind == service {
		text = q.host
	}
	if q.kind != oneAddress {
		text = string(q.kind) + " " + text
	}
	if q.within != "" {
		text += " for " + q.within
	}
	return text
}

func parseQuestion(text string) (question, bool) {
	text, within, _ := strings.Cut(text, " for ")
	kind, rest, is := strings.Cut(text, " ")
	if !is {
		kind, rest = "", text
	}
	if questionKind(kind) == service {
		return question{kind: service, host: rest, within: within}, true
	}
	host, port, err := net.SplitHostPort(rest)
	n, perr := strconv.ParseUint(port, 10, 16)
	return question{kind: questionKind(kind), host: host, port: uint16(n), within: within}, err == nil && perr == nil
}

// anywhere is the question without bounds.
func (q question) anywhere() question {
	q.within = ""
	return q
}

// discoveryOf is the question that a pool's discovery asks.
func discoveryOf(d *lbdv1.Discovery) question {
	if d.GetSrv() != "" {
		return question{kind: service, host: d.GetSrv()}
	}
	return question{kind: allAddresses, host: d.GetHost(), port: uint16(d.GetPort())}
}

// discovered is one place where a name leads.
type discovered struct {
	addr   netip.AddrPort
	weight int
	backup bool
}

// discovered lists where a discovery leads now, by address.
func (r *resolver) discovered(q question) []discovered {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := r.names[q.String()]; n != nil {
		return n.found
	}
	return nil
}

// srvFunc asks for a service's targets.
type srvFunc func(ctx context.Context, name string) ([]*net.SRV, error)

func lookupSRV(ctx context.Context, name string) ([]*net.SRV, error) {
	_, targets, err := net.DefaultResolver.LookupSRV(ctx, "", "", name)
	return targets, err
}

// answer asks. The addresses of a service's targets are asked for one after another; a target that has none is left out. Of one that
// could not be asked for nothing is known: then the error comes beside what the others have answered.
func (r *resolver) answer(ctx context.Context, q question) ([]discovered, error) {
	if q.kind != service {
		ips, err := r.lookup(ctx, "ip", q.host)
		return places(ips, q.port, 1, false), err
	}
	targets, err := r.srv(ctx, q.host)
	if err != nil {
		return nil, err
	}
	var all []discovered
	var none, unknown error
	lowest := uint16(1<<16 - 1)
	for _, t := range targets {
		lowest = min(lowest, t.Priority)
	}
	for _, t := range targets {
		ips, err := r.lookup(ctx, "ip", strings.TrimSuffix(t.Target, "."))
		switch {
		case notFound(err):
			none = err
			continue
		case err != nil:
			unknown = err
			continue
		}
		all = append(all, places(ips, t.Port, srvWeight(t.Weight), t.Priority > lowest)...)
	}
	if unknown == nil && len(all) == 0 {
		unknown = none
	}
	return all, unknown
}

// notFound reports whether an error is an answer: there is no such name, or it has no address.
func notFound(err error) bool {
	var answered *net.DNSError
	return errors.As(err, &answered) && answered.IsNotFound
}

// srvWeight is a weight of RFC 2782, where 0 is "hardly ever", within ours.
func srvWeight(weight uint16) int { return min(max(int(weight), 1), 256) }

func places(ips []netip.Addr, port uint16, weight int, backup bool) []discovered {
	var all []discovered
	for _, ip := range ips {
		all = append(all, discovered{netip.AddrPortFrom(ip.Unmap(), port), weight, backup})
	}
	return all
}

// chosen is the same for the same answer in any order: for one address the least, IPv4 first, else all of them.
func (q question) chosen(found []discovered) []discovered {
	slices.SortFunc(found, func(a, b discovered) int {
		return cmp.Or(cmp.Compare(a.addr.Addr().BitLen(), b.addr.Addr().BitLen()), a.addr.Compare(b.addr), cmp.Compare(b.weight, a.weight))
	})
	found = slices.CompactFunc(found, func(a, b discovered) bool { return a.addr == b.addr })
	if q.kind == oneAddress {
		return found[:1]
	}
	return found[:min(len(found), discoveredMax)]
}

// rules are where backends may be: where a document may name one, and nowhere a request would come back to this node.
type rules struct {
	state.Settings
	own    []netip.AddrPort          // this node's listeners and its own ports; an unspecified address is every one of the machine
	bounds map[string][]netip.Prefix // of owners, where those have any
	local  func(netip.Addr) bool
}

func (r rules) same(other rules) bool {
	return r.Settings == other.Settings && slices.Equal(r.own, other.own) && maps.EqualFunc(r.bounds, other.bounds, slices.Equal[[]netip.Prefix])
}

// circles reports whether this node itself is at an address.
func (r rules) circles(a netip.AddrPort) bool {
	return slices.ContainsFunc(r.own, func(own netip.AddrPort) bool { return covers(own, a, r.local) })
}

// inside reports whether an address keeps the bounds of an owner.
func (r rules) inside(owner string, ip netip.Addr) bool {
	bounds, limited := r.bounds[owner]
	return !limited || slices.ContainsFunc(bounds, func(p netip.Prefix) bool { return p.Contains(ip) })
}

// covers reports whether what is bound to an address answers at another. A zone says by which link an address is reached, and not
// whose it is.
func covers(bound, at netip.AddrPort, local func(netip.Addr) bool) bool {
	bound, at = unzoned(bound), unzoned(at)
	return bound.Port() == at.Port() && (bound.Addr() == at.Addr() || bound.Addr().IsUnspecified() && (at.Addr().IsLoopback() || local(at.Addr())))
}

func unzoned(p netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(p.Addr().Unmap().WithZone(""), p.Port())
}

// allowed leaves out what the rules forbid the pools of an owner.
func allowed(found []discovered, rules rules, owner string) []discovered {
	var out []discovered
	for _, d := range found {
		ip := d.addr.Addr()
		if rules.Forbids(ip) == "" && state.OneMachine(ip) && !rules.circles(d.addr) && rules.inside(owner, ip) {
			out = append(out, d)
		}
	}
	return out
}

func joined(found []discovered) string {
	var out []string
	for _, d := range found {
		out = append(out, d.addr.Addr().String())
	}
	return strings.Join(out, ", ")
}
