package main

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"lbd/cluster/state"
	"lbd/lb"
)

// storeListeners closes what goes before the table changes, so that no request meets a listener without its routes, and
// opens what comes after.
func (a *appliance) storeListeners(next *compiled, touched []state.Key, table *lb.Table) {
	var come []listener
	for _, k := range touched {
		if k.Kind != state.Listeners {
			continue
		}
		if l, ok := next.listeners[k.Name]; ok {
			l.policy = next.offered(l)
			come = append(come, l)
			continue
		}
		a.server.Unlisten(k.Name)
		a.terminator.RemoveListener(k.Name)
		delete(a.bound, k.Name)
	}
	if table != nil {
		a.server.SetTable(table)
	}
	a.openListeners(come)
}

// openListeners gives listeners their new form, whatever the order in which addresses pass from one to another:
//
//  1. bind, until no further one can be
//  2. where what is left stands in its own way (two that swap addresses, ":443" that becomes "10.0.0.1:443"), let go of
//     these addresses, and bind again
//  3. what cannot be had from others: put the previous form back, refuse
func (a *appliance) openListeners(come []listener) {
	left := a.bind(come)
	if released := a.release(left); len(released) > 0 {
		left = a.bind(left)
		a.putBack(released)
	}
	for _, l := range left {
		a.refuse(l.key(), l.revision, l.err)
	}
}

// bind opens listeners until no further one can be, and returns those, each with its error.
func (a *appliance) bind(want []listener) []listener {
	for {
		var left []listener
		for _, l := range want {
			if l.err = a.listen(l); l.err != nil {
				left = append(left, l)
				continue
			}
			delete(a.refused, l.key())
		}
		if len(left) == 0 || len(left) == len(want) {
			return left
		}
		want = left
	}
}

// release closes addresses that bound listeners of the list hold, are to leave, and that another address of the list needs.
// It returns the forms that it has cut.
func (a *appliance) release(left []listener) (cut []listener) {
	var needed []string
	for _, l := range left {
		if errors.Is(l.err, syscall.EADDRINUSE) {
			needed = append(needed, l.config.Addresses...)
		}
	}
	for _, l := range left {
		before, ok := a.bound[l.config.Name]
		if !ok {
			continue
		}
		kept := before.config
		kept.Addresses = slices.DeleteFunc(slices.Clone(kept.Addresses), func(held string) bool {
			return !slices.Contains(l.config.Addresses, held) &&
				slices.ContainsFunc(needed, func(n string) bool { return overlap(held, n) })
		})
		if len(kept.Addresses) < len(before.config.Addresses) && a.server.Listen(kept) == nil {
			cut = append(cut, before)
		}
	}
	return cut
}

// putBack gives the listeners that did not get their new form all of the previous one.
func (a *appliance) putBack(released []listener) {
	for _, l := range released {
		if now := a.bound[l.config.Name]; now.revision != l.revision {
			continue
		}
		if err := a.listen(l); err != nil {
			a.log.Error("a listener has lost an address", "listener", l.config.Name, "err", err)
		}
	}
}

// overlap reports whether two addresses cannot be bound both.
func overlap(a, b string) bool {
	hostA, portA, errA := net.SplitHostPort(a)
	hostB, portB, errB := net.SplitHostPort(b)
	return errA == nil && errB == nil && portA == portB && (hostA == hostB || wildcard(hostA) || wildcard(hostB))
}

func wildcard(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "" || err == nil && ip.IsUnspecified()
}

// listen gives one listener its form. On an error it keeps the previous one, its TLS policy included.
func (a *appliance) listen(l listener) error {
	name := l.config.Name
	if l.config.TLS {
		if err := a.terminator.SetListener(name, l.policy); err != nil {
			return err
		}
	}
	if err := a.server.Listen(l.config); err != nil {
		if before := a.bound[name]; before.config.TLS {
			return errors.Join(err, a.terminator.SetListener(name, before.policy))
		}
		a.terminator.RemoveListener(name)
		return err
	}
	a.bound[name] = l
	return nil
}

// retryListeners tries again to bind what could not be bound.
func (a *appliance) retryListeners() {
	defer a.survive("binding a listener again")
	var again []listener
	for k := range a.refused {
		if l, ok := a.current.listeners[k.Name]; ok && k.Kind == state.Listeners {
			l.policy = a.current.offered(l)
			again = append(again, l)
		}
	}
	if len(again) == 0 {
		return
	}
	a.openListeners(again)
	for _, l := range again {
		if _, refused := a.refused[l.key()]; !refused {
			a.log.Info("listener bound", "listener", l.config.Name)
		}
	}
	a.report()
}
