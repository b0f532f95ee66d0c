package main

import (
	"context"
	"errors"
	"net"
	"net/netip"

	lbdv1 "lbd/proto/lbd/v1"
)

// port is one of this node's own, beside those of its listeners.
type port struct {
	what string // "the control port"
	at   netip.AddrPort
}

// ownPorts are those that the command line names. An address without a host is all of the machine's.
func (c *config) ownPorts() []port {
	var all []port
	for _, p := range []struct{ what, address string }{{"the control port", c.control}, {"the control port", c.advertise}, {"the metrics port", c.metrics}} {
		for _, at := range addressesOf(p.address) {
			all = append(all, port{p.what, at})
		}
	}
	return all
}

// addressesOf are where "host:port" is on this machine; nowhere for what is no such address.
func addressesOf(address string) []netip.AddrPort {
	host, service, err := net.SplitHostPort(address)
	if err != nil {
		return nil
	}
	n, err := net.LookupPort("tcp", service)
	if err != nil {
		return nil
	}
	switch ip, err := netip.ParseAddr(host); {
	case err == nil:
		return []netip.AddrPort{netip.AddrPortFrom(ip.Unmap().WithZone(""), uint16(n))}
	case host == "":
		return []netip.AddrPort{netip.AddrPortFrom(netip.IPv6Unspecified(), uint16(n))}
	case host == "localhost":
		return []netip.AddrPort{netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(n)), netip.AddrPortFrom(netip.IPv6Loopback(), uint16(n))}
	}
	return nil
}

// rules are where the backends of what is compiled may be.
func (a *appliance) rules(c *compiled) rules {
	own := c.places()
	for _, p := range a.ports {
		own = append(own, p.at)
	}
	return rules{Settings: c.settings, own: own, bounds: c.bounds}
}

// Taken says what of this node listens at an address, and the listener's name if it is one; empty: nothing.
func (a *appliance) Taken(at netip.AddrPort) (what, listener string) {
	for _, p := range a.ports {
		if covers(p.at, at, isLocal) {
			return p.what, ""
		}
	}
	view := a.view.Load()
	if view == nil {
		return "", ""
	}
	for name, l := range view.listeners { // a large change asks this for each of its backends
		for _, bound := range l.places() {
			if covers(bound, at, isLocal) {
				return "listener `" + name + "`", name
			}
		}
	}
	return "", ""
}

// LookupBackend asks DNS once where a backend's address leads.
func (a *appliance) LookupBackend(ctx context.Context, address string) ([]netip.AddrPort, error) {
	q, ok := parseQuestion(address)
	if !ok {
		return nil, errors.New("it is no address")
	}
	return a.resolver.once(ctx, q)
}

// LookupDiscovery asks DNS once where a discovery leads.
func (a *appliance) LookupDiscovery(ctx context.Context, d *lbdv1.Discovery) ([]netip.AddrPort, error) {
	return a.resolver.once(ctx, discoveryOf(d))
}

// once asks beside the questions that are kept.
func (r *resolver) once(ctx context.Context, q question) ([]netip.AddrPort, error) {
	found, err := r.answer(ctx, q)
	var all []netip.AddrPort
	for _, d := range found {
		all = append(all, d.addr)
	}
	switch {
	case len(all) > 0:
		return all, nil
	case err != nil:
		return nil, plainly(err)
	}
	return nil, errNoAddress
}

// plainly is why a look-up failed, without the server that was asked.
func plainly(err error) error {
	var dns *net.DNSError
	switch {
	case errors.As(err, &dns) && dns.IsNotFound:
		return errors.New("no such name")
	case errors.Is(err, context.DeadlineExceeded) || errors.As(err, &dns) && dns.IsTimeout:
		return errors.New("DNS does not answer in time")
	}
	return err
}
