package main

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"lbd/cluster"
	"lbd/cluster/state"
	lbdv1 "lbd/proto/lbd/v1"
)

// socketPathMax is what the kernel takes as the path of a unix socket.
const socketPathMax = 107

// wanted is an address that a start would listen on, and for what: a flag or a listener.
type wanted struct{ what, address string }

// wanted are the node's own addresses and those of the stored listeners, as --listen moves them.
func (c *check) wanted(st *state.State) []wanted {
	var all []wanted
	for _, w := range []wanted{{"--metrics", c.cfg.metrics}, {"--control", c.cfg.control}} {
		if w.address != "off" && checkAddress(w.address) == nil { // else the flags have been blamed for it
			all = append(all, w)
		}
	}
	if st == nil {
		for _, r := range devResources() {
			if l := r.GetListener(); l != nil && c.cfg.dev {
				all = append(all, c.listening(l)...)
			}
		}
		return all
	}
	for stored := range st.All(state.Listeners) {
		all = append(all, c.listening(stored.GetResource().GetListener())...)
	}
	return all
}

func (c *check) listening(l *lbdv1.Listener) []wanted {
	addresses := l.GetAddresses()
	if address, moved := c.cfg.listen[l.GetName()]; moved {
		addresses = []string{address}
	}
	var all []wanted
	for _, address := range addresses {
		all = append(all, wanted{"listener " + l.GetName(), address})
	}
	return all
}

// addresses looks whether the node's addresses can be had. Those of a node that runs are its own.
func (c *check) addresses(in cluster.Inspection) {
	const name = "addresses"
	if in.Running {
		c.add(fine(name, "not looked at: the node that runs has them"))
		return
	}
	all, taken := c.wanted(in.State), 0
	for _, w := range all {
		if err := bindable(w.address); err != nil {
			taken++
			c.add(failure(name, addressRemedy(err, w.what), "%s on %s: %v", w.what, w.address, err))
		}
	}
	if taken == 0 {
		c.add(fine(name, "all %d can be listened on", len(all)))
	}
}

func addressRemedy(err error, what string) string {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return "stop who holds it, or choose another address"
	case errors.Is(err, syscall.EACCES):
		return "give lbd the capability CAP_NET_BIND_SERVICE (AmbientCapabilities= in the unit), or a port from 1024"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return "this machine has no such address"
	}
	return "mend the address of " + what
}

// bindable tries an address without listening on it: nobody's connection is taken.
func bindable(address string) error {
	a, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		return err
	}
	family, to := sockaddr(a)
	fd, err := syscall.Socket(family, syscall.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	syscall.CloseOnExec(fd)
	// As Go's own listeners do: an address whose last connections are still being forgotten is free.
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		return err
	}
	return syscall.Bind(fd, to)
}

func sockaddr(a *net.TCPAddr) (family int, to syscall.Sockaddr) {
	if a.IP == nil && !hasIPv6() || a.IP.To4() != nil {
		to4 := &syscall.SockaddrInet4{Port: a.Port}
		copy(to4.Addr[:], a.IP.To4())
		return syscall.AF_INET, to4
	}
	to6 := &syscall.SockaddrInet6{Port: a.Port}
	copy(to6.Addr[:], a.IP.To16())
	if i, err := net.InterfaceByName(a.Zone); err == nil {
		to6.ZoneId = uint32(i.Index)
	}
	return syscall.AF_INET6, to6
}

func hasIPv6() bool {
	fd, err := syscall.Socket(syscall.AF_INET6, syscall.SOCK_STREAM, 0)
	if err != nil {
		return false
	}
	_ = syscall.Close(fd)
	return true
}

// socket looks at where the control socket would be.
func (c *check) socket(running bool) {
	const name = "control_socket"
	path := c.cfg.socket
	if path == "" {
		return // which the flags have been blamed for
	}
	if len(path) > socketPathMax {
		c.add(failure(name, "choose a shorter --data-dir", "%s has %d bytes, a socket's path at most %d", path, len(path), socketPathMax))
		return
	}
	if f := directoryFinding(name, filepath.Dir(path)); f != nil {
		c.add(f)
		return
	}
	if conn, err := net.DialTimeout("unix", path, time.Second); err == nil {
		_ = conn.Close()
		if !running {
			c.add(failure(name, "stop it, or choose another --data-dir", "another process answers on %s", path))
			return
		}
	}
	c.add(fine(name, "%s", path))
}

// writable tells why files cannot be made in a directory, by asking the kernel: a file system that is read-only counts, too.
func writable(dir string) error {
	const writeAndSearch = 0x2 | 0x1 // W_OK and X_OK of access(2)
	if err := syscall.Access(dir, writeAndSearch); err != nil {
		return &os.PathError{Op: "write to", Path: dir, Err: err}
	}
	return nil
}
