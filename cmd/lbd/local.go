package main

import (
	"net"
	"net/netip"
	"sync"
	"time"
)

// localAge is how long the kernel's answer holds: a change of ten thousand backends asks as often, and addresses move between machines.
const localAge = time.Second

// localAddresses are this machine's.
type localAddresses struct {
	mu    sync.Mutex
	asked time.Time
	all   map[netip.Addr]bool
}

var ofThisMachine localAddresses

// isLocal reports whether an address, without a zone, is one of this machine's.
func isLocal(ip netip.Addr) bool { return ofThisMachine.has(ip) }

func (l *localAddresses) has(ip netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if age := time.Since(l.asked); l.all == nil || age < 0 || age > localAge {
		l.all, l.asked = map[netip.Addr]bool{}, time.Now()
		interfaces, _ := net.InterfaceAddrs() // on an error none is known, and asked for again soon
		for _, a := range interfaces {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				l.all[p.Addr().Unmap()] = true
			}
		}
	}
	return l.all[ip]
}
