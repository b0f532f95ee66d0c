//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// wire is a pair of virtual network cards. The proxy keeps the machine's own namespace; load and backends live in another, at the far
// end. On loopback a sender's system call runs the receiver's half of TCP, on the sender's core; here each end receives on the core of
// those who live there (receive packet steering), as with a real card. What differs between the two is not the proxy's doing.
type wire struct {
	namespace string // its file; empty: no wire, all is on loopback
	near, far string // addresses of the two ends
}

var loopback = wire{near: "127.0.0.1", far: "127.0.0.1"}

// The addresses are from the block that RFC 2544 sets aside for benchmarks.
const (
	wireNear = "198.18.77.1"
	wireFar  = "198.18.77.2"
)

// newWire needs root and the ip program. The returned function takes the wire away.
func newWire(ctx context.Context, nearCore, farCore int) (wire, func(), error) {
	name := fmt.Sprintf("lab%d", os.Getpid()%100_000)
	near, far := name+"a", name+"b"
	remove := func() {
		ctx := context.WithoutCancel(ctx)
		_ = errors.Join(command(ctx, "", "ip", "link", "delete", near), command(ctx, "", "ip", "netns", "delete", name))
	}
	for _, arguments := range [][]string{
		{"netns", "add", name},
		{"link", "add", near, "type", "veth", "peer", "name", far, "netns", name},
		{"address", "add", wireNear + "/30", "dev", near},
		{"link", "set", near, "up"},
		{"-n", name, "address", "add", wireFar + "/30", "dev", far},
		{"-n", name, "link", "set", far, "up"},
		{"-n", name, "link", "set", "lo", "up"},
		{"netns", "exec", name, "sh", "-c", steer(far, farCore)},
	} {
		if err := command(ctx, "", "ip", arguments...); err != nil {
			remove()
			return wire{}, nil, err
		}
	}
	if err := command(ctx, "", "sh", "-c", steer(near, nearCore)); err != nil {
		remove()
		return wire{}, nil, err
	}
	return wire{namespace: "/run/netns/" + name, near: wireNear, far: wireFar}, remove, nil
}

// steer is the shell command that lets a card receive on one core.
func steer(card string, core int) string {
	return fmt.Sprintf("echo %x > /sys/class/net/%s/queues/rx-0/rps_cpus", 1<<core, card)
}

// backends are n addresses at the far end. A namespace that has just been made has every port free.
func (w wire) backends(n int) ([]string, error) {
	if w.namespace == "" {
		return freeAddresses(w.far, n)
	}
	var addresses []string
	for i := range n {
		addresses = append(addresses, fmt.Sprintf("%s:%d", w.far, 9000+i))
	}
	return addresses, nil
}
