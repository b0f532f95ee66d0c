package rpc

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"sync"

	lbdv1 "lbd/proto/lbd/v1"
)

// fakePlaces answers what a test has set. What it does not know leads to 192.0.2.1.
type fakePlaces struct {
	mu sync.Mutex
	// names are addresses by name; none: there is no such name.
	names map[string][]string
	// taken says what listens at an address.
	taken map[string]string
	// everywhere are addresses of this machine, with the unspecified one of the same port: "192.0.2.7:80" is "0.0.0.0:80".
	everywhere map[string]string
	// asked are the names in the order of the questions.
	asked []string
	// slow names are not answered at all.
	slow map[string]bool
}

func (p *fakePlaces) LookupBackend(ctx context.Context, address string) ([]netip.AddrPort, error) {
	at, err := netip.ParseAddrPort("[::1]" + address[lastColon(address):])
	if err != nil {
		return nil, err
	}
	return p.lookup(ctx, address[:lastColon(address)], at.Port())
}

func lastColon(text string) int {
	for i := len(text) - 1; i >= 0; i-- {
		if text[i] == ':' {
			return i
		}
	}
	return 0
}

func (p *fakePlaces) LookupDiscovery(ctx context.Context, d *lbdv1.Discovery) ([]netip.AddrPort, error) {
	if d.GetSrv() != "" {
		return p.lookup(ctx, d.GetSrv(), 80)
	}
	return p.lookup(ctx, d.GetHost(), uint16(d.GetPort()))
}

func (p *fakePlaces) lookup(ctx context.Context, name string, port uint16) ([]netip.AddrPort, error) {
	p.mu.Lock()
	p.asked = append(p.asked, name+":"+strconv.Itoa(int(port)))
	ips, known := p.names[name]
	slow := p.slow[name]
	p.mu.Unlock()
	switch {
	case slow:
		<-ctx.Done()
		return nil, context.Cause(ctx)
	case !known:
		ips = []string{"192.0.2.1"}
	case len(ips) == 0:
		return nil, errors.New("no such name")
	}
	var all []netip.AddrPort
	for _, ip := range ips {
		all = append(all, netip.AddrPortFrom(netip.MustParseAddr(ip), port))
	}
	return all, nil
}

// Taken knows what a test has set, and listeners at their own addresses.
func (p *fakePlaces) Taken(listeners map[string][]string) func(netip.AddrPort) (what, listener string) {
	return func(at netip.AddrPort) (what, listener string) {
		for name, addresses := range listeners {
			if slices.Contains(addresses, at.String()) || slices.Contains(addresses, p.everywhere[at.String()]) {
				return "listener `" + name + "`", name
			}
		}
		return p.taken[at.String()], ""
	}
}
