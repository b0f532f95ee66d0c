package main

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"lbd/cluster/state"
)

// neighbours are the control ports of the cluster's other nodes: no backend may be there. An address that is a name counts for where it leads,
// once that is known.
type neighbours struct {
	self  string // this node's id
	store interface {
		State() *state.State
		Next() <-chan struct{}
	}
	lookup lookupFunc
	// named is where the names lead. Only run writes it, and never what it has given out.
	named atomic.Pointer[map[string][]netip.AddrPort]
}

// run asks for the names, again and again, until ctx ends.
func (n *neighbours) run(ctx context.Context) {
	for {
		next := n.store.Next() // before the state, so that none is missed
		known := map[string][]netip.AddrPort{}
		if before := n.named.Load(); before != nil {
			maps.Copy(known, *before)
		}
		wait, names := resolveInterval, n.names()
		maps.DeleteFunc(known, func(name string, _ []netip.AddrPort) bool { return !slices.Contains(names, name) })
		for _, name := range names {
			if found, err := n.ask(ctx, name); err == nil {
				known[name] = found
			} else {
				wait = resolveRetry
			}
		}
		n.named.Store(&known)
		if !n.pause(ctx, next, names, wait) {
			return
		}
	}
}

// pause waits until it is time to ask again, or the nodes have other names.
func (n *neighbours) pause(ctx context.Context, next <-chan struct{}, names []string, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			return true
		case <-next:
			next = n.store.Next()
			if !slices.Equal(names, n.names()) {
				return true
			}
		case <-ctx.Done():
			return false
		}
	}
}

func (n *neighbours) ask(ctx context.Context, name string) ([]netip.AddrPort, error) {
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	q, _ := parseQuestion(name)
	ips, err := n.lookup(ctx, "ip", q.host)
	var found []netip.AddrPort
	for _, ip := range ips {
		found = append(found, unzoned(netip.AddrPortFrom(ip, q.port)))
	}
	return found, err
}

// names are the addresses that DNS has to be asked for.
func (n *neighbours) names() []string {
	var all []string
	for node := range n.store.State().Nodes() {
		_, literal := parseLiteral(node.GetAddress())
		if _, ok := parseQuestion(node.GetAddress()); ok && !literal && node.GetId() != n.self {
			all = append(all, node.GetAddress())
		}
	}
	return all
}

// ports are those of all other nodes, as far as they are known.
func (n *neighbours) ports() []port {
	if n == nil {
		return nil
	}
	var all []port
	named := n.named.Load()
	for node := range n.store.State().Nodes() {
		what := "the control port"
		if node.GetId() == n.self {
			continue
		}
		if at, literal := parseLiteral(node.GetAddress()); literal {
			all = append(all, port{what, unzoned(at)})
		} else if named != nil {
			for _, at := range (*named)[node.GetAddress()] {
				all = append(all, port{what, at})
			}
		}
	}
	return all
}
