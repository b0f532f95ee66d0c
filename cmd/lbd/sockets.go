package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"

	"lbd/lb/loop"
)

// What listening sockets are for.
const (
	forListener = "listener"
	forControl  = "control"
	forMetrics  = "metrics"
	// forSpare is for whoever wants its address, now or later: the service manager's, which holds them whatever becomes of this process.
	forSpare = "spare"
)

// socketUse is what a listening socket is for, as one process tells the next.
type socketUse struct {
	For     string
	Name    string // of the listener; of a spare one what the service manager calls it
	Address string // as configured; empty for a spare one
}

// inherited are the listening sockets that this process was left by another: the service manager, as systemd's socket activation does, or a running
// lbd whose place this one takes. A nil one is empty.
type inherited struct {
	log *slog.Logger

	mu      sync.Mutex
	sockets []*inheritedSocket
	// control is the control socket that the other lbd has left; nil: it is to be made.
	control *os.File
}

type inheritedSocket struct {
	use   socketUse
	from  *loop.Descriptor
	bound *net.TCPAddr
	used  bool
}

// firstInherited is the first descriptor that the service manager leaves, and inheritedMax how many it may: sd_listen_fds(3).
const (
	firstInherited = 3
	inheritedMax   = 1024
)

// inheritFromManager takes over what the service manager has left. What is said of it in the environment is not for children of this
// process: it is taken out. What is no listening TCP socket is told of in the log, and left alone.
func inheritFromManager(log *slog.Logger) *inherited {
	h := &inherited{log: log}
	count, err := inheritedCount(os.Getenv("LISTEN_PID"), os.Getenv("LISTEN_FDS"))
	names := strings.Split(os.Getenv("LISTEN_FDNAMES"), ":")
	for _, name := range []string{"LISTEN_PID", "LISTEN_PIDFDID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		_ = os.Unsetenv(name) // fails for no name like these
	}
	if err != nil {
		log.Warn("the service manager's sockets are not used", "err", err)
	}
	for i := range count {
		use := socketUse{For: forSpare}
		if i < len(names) {
			use.Name = names[i]
		}
		d, err := loop.NewDescriptor(firstInherited + i)
		if err != nil {
			log.Warn("a socket of the service manager's is not used", "name", use.Name, "err", err)
			continue
		}
		h.add(use, d)
	}
	return h
}

// inheritedCount is how many descriptors are for this process.
func inheritedCount(pid, fds string) (int, error) {
	if fds == "" || pid != strconv.Itoa(os.Getpid()) {
		return 0, nil
	}
	n, err := strconv.Atoi(fds)
	if err != nil || n < 0 || n > inheritedMax {
		return 0, fmt.Errorf("LISTEN_FDS=%q: want 0 to %d", fds, inheritedMax)
	}
	return n, nil
}

// add takes over one more socket.
func (h *inherited) add(use socketUse, d *loop.Descriptor) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sockets = append(h.sockets, &inheritedSocket{use: use, from: d, bound: d.Addr()})
}

// find returns the sockets for an address of a listener; they stay h's. None: it is to be bound.
func (h *inherited) find(listener, address string) []*loop.Descriptor {
	return h.match(forListener, listener, address)
}

// listen is net.Listen on TCP for the control port or the metrics, on an inherited socket if there is one.
func (h *inherited) listen(use, address string) (net.Listener, error) {
	if found := h.match(use, use, address); len(found) > 0 {
		return found[0].Listener()
	}
	return net.Listen("tcp", address)
}

// controlSocket gives the control socket out, once; nil: there is none.
func (h *inherited) controlSocket() *net.UnixListener {
	if h == nil || h.control == nil {
		return nil
	}
	defer func() {
		_ = h.control.Close()
		h.control = nil
	}()
	l, err := net.FileListener(h.control)
	if err != nil {
		h.log.Warn("the control socket is made anew", "err", err)
		return nil
	}
	u, _ := l.(*net.UnixListener) // of another kind: another lbd has sent nonsense
	return u
}

// match finds the sockets for an address, by the first of these that leads to any:
//
//  1. the other lbd had them for the same
//  2. they are bound to that address; for an address of all interfaces, to all of one family or of both
//  3. they are called so, by the same port or where any will do, and the address says nothing against theirs: the unit file says
//     which interface, and the listener any
func (h *inherited) match(use, name, address string) []*loop.Descriptor {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.sockets) == 0 {
		return nil
	}
	want, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		return nil // binding it tells
	}
	for _, rule := range []func(*inheritedSocket) bool{
		func(s *inheritedSocket) bool {
			return s.use.For == use && (use != forListener || s.use.Name == name) && s.use.Address == address
		},
		func(s *inheritedSocket) bool { return boundAt(s.bound, want) },
		func(s *inheritedSocket) bool {
			return (s.use.For == use || s.use.For == forSpare) && s.use.Name == name && allows(want, s.bound)
		},
	} {
		if found := h.taken(rule); len(found) > 0 {
			h.log.Info("an inherited socket is accepted on", "for", use, "name", name, "address", address, "sockets", len(found))
			return found
		}
	}
	return nil
}

// taken are the sockets that a rule takes, of one address. Others of that address count as used as well: they are the same in the kernel.
func (h *inherited) taken(rule func(*inheritedSocket) bool) []*loop.Descriptor {
	var found []*loop.Descriptor
	var spare []*loop.Descriptor // of a socket that the other lbd had from the service manager, there is a second descriptor
	at := map[string]bool{}
	for _, s := range h.sockets {
		if !rule(s) {
			continue
		}
		at[s.bound.String()] = true
		if s.use.For == forSpare {
			spare = append(spare, s.from)
		} else {
			found = append(found, s.from)
		}
	}
	for _, s := range h.sockets {
		s.used = s.used || at[s.bound.String()]
	}
	if len(found) > 0 {
		return found
	}
	return spare
}

// boundAt tells whether a socket is where Listen would bind want.
func boundAt(bound, want *net.TCPAddr) bool {
	if bound.Port != want.Port {
		return false
	}
	if want.IP == nil || want.IP.Equal(net.IPv6unspecified) {
		return bound.IP.IsUnspecified()
	}
	return bound.IP.Equal(want.IP) && bound.Zone == want.Zone
}

// allows tells whether want, with its "any", has room for where a socket is bound.
func allows(want, bound *net.TCPAddr) bool {
	family := want.IP == nil || want.IP.Equal(net.IPv6unspecified) || want.IP.Equal(net.IPv4zero) && bound.IP.To4() != nil
	return (want.Port == bound.Port || want.Port == 0) && (family || want.IP.Equal(bound.IP))
}

// settle is called once this node serves. What the other lbd had and this one does not want is given up. What is the service manager's is
// kept: a listener may come that wants it, and closing it here would not free its address.
func (h *inherited) settle() {
	h.mu.Lock()
	defer h.mu.Unlock()
	var kept []*inheritedSocket
	for _, s := range h.sockets {
		switch {
		case s.use.For == forSpare:
			kept = append(kept, s)
			if !s.used {
				h.log.Warn("nothing accepts on a socket of the service manager's: no listener has its address here, nor --control or --metrics",
					"name", s.use.Name, "address", s.bound.String())
			}
			continue
		case !s.used:
			h.log.Info("an inherited socket is not wanted any more", "for", s.use.For, "name", s.use.Name, "address", s.bound.String())
		}
		_ = s.from.Close()
	}
	h.sockets = kept
}

// close closes all that is left.
func (h *inherited) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.sockets {
		_ = s.from.Close()
	}
	_ = h.control.Close() // nil is no harm
	h.sockets = nil
}

// handedSocket is a listening socket for the next process.
type handedSocket struct {
	use        socketUse
	descriptor *loop.Descriptor
}

// handOver duplicates every listening socket of this node for a process that takes its place; the caller closes them once they are sent. Control
// port and metrics must not have closed theirs yet.
func (a *appliance) handOver(metrics *metricsServer) (all []handedSocket, err error) {
	defer func() {
		if err != nil {
			for _, s := range all {
				err = errors.Join(err, s.descriptor.Close())
			}
			all = nil
		}
	}()
	bound, err := a.server.Bound()
	if err != nil {
		return nil, err
	}
	for _, b := range bound {
		for _, d := range b.Descriptors {
			all = append(all, handedSocket{socketUse{forListener, b.Listener, b.Address}, d})
		}
	}
	own := func(use string, l net.Listener, address string) error {
		if l == nil {
			return nil
		}
		d, err := loop.DescriptorOf(l)
		if err != nil {
			return fmt.Errorf("duplicate the socket of %s: %w", use, err)
		}
		all = append(all, handedSocket{socketUse{use, use, address}, d})
		return nil
	}
	if a.control != nil {
		if err := own(forControl, a.control.listener, a.cfg.control); err != nil {
			return all, err
		}
	}
	if err := own(forMetrics, metrics.listener, a.cfg.metrics); err != nil {
		return all, err
	}
	spare, err := a.sockets.spare()
	return append(all, spare...), err
}

// spare duplicates the service manager's sockets.
func (h *inherited) spare() ([]handedSocket, error) {
	if h == nil {
		return nil, nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []handedSocket
	for _, s := range h.sockets {
		if s.use.For != forSpare {
			continue
		}
		d, err := s.from.Duplicate()
		if err != nil {
			return all, err
		}
		all = append(all, handedSocket{s.use, d})
	}
	return all, nil
}
