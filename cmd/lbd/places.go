package main

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"

	lbdv1 "lbd/proto/lbd/v1"
)

// port is one of this node's own, beside those of its listeners.
type port struct {
	what string // "the control port"
	at   netip.AddrPort
}

// portsOf are where a socket answers: its own address, and those of this machine if that is unspecified.
func portsOf(what string, bound net.Listener) []port {
	if bound == nil {
		return nil
	}
	at, ok := bound.Addr().(*net.TCPAddr)
	if !ok {
		return nil
	}
	return []port{{what, unzoned(at.AddrPort())}}
}

// ownPorts are the node's beside those of its listeners.
func (a *appliance) ownPorts() []port {
	if a.control == nil {
		return a.ports
	}
	return slices.Concat(a.ports, a.control.reached())
}

// rules are where the backends of what is compiled may be.
func (a *appliance) rules(c *compiled) rules {
	own := c.places()
	for _, p := range a.ownPorts() {
		own = append(own, p.at)
	}
	return rules{Settings: c.settings, own: own, bounds: c.bounds}
}

// Taken says what of this node is at an address when its listeners have the given addresses, which --listen overrules: also the
// listener's name if it is one; empty: nothing.
func (a *appliance) Taken(listeners map[string][]string) func(at netip.AddrPort) (what, listener string) {
	ports, bound := a.ownPorts(), map[string][]netip.AddrPort{}
	for name, addresses := range listeners {
		if override := a.cfg.listen[name]; override != "" {
			addresses = []string{override}
		}
		bound[name] = listenPlaces(addresses)
	}
	return func(at netip.AddrPort) (what, listener string) {
		for _, p := range ports {
			if covers(p.at, at, isLocal) {
				return p.what, ""
			}
		}
		for name, places := range bound {
			if slices.ContainsFunc(places, func(p netip.AddrPort) bool { return covers(p, at, isLocal) }) {
				return "listener `" + name + "`", name
			}
		}
		return "", ""
	}
}

// dialCheck opens a health check's connection, where one may lead.
func (a *appliance) dialCheck(ctx context.Context, network, address string) (net.Conn, error) {
	if err := a.resolver.checkDial(address); err != nil {
		return nil, err
	}
	return (&net.Dialer{KeepAlive: -1}).DialContext(ctx, network, address) // it lasts milliseconds
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
