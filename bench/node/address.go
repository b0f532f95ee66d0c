package node

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"syscall"
)

// handed are the ports that this process has given out.
var handed sync.Map

// FreeAddress gives out each port of an address of this host once, from below the range in which the kernel picks ports: there another program that asks for a free one may
// be given the same, and HAProxy, which shares every port of its user, would take half of the connections. No process is forked meanwhile: until it
// executes its program it would hold the listener, too.
func FreeAddress(host string) (string, error) {
	const lowest, count = 12_000, 20_000
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	for range 1000 {
		port := lowest + rand.IntN(count)
		if _, taken := handed.LoadOrStore(port, true); taken {
			continue
		}
		l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
		if err != nil {
			continue // somebody else's
		}
		return l.Addr().String(), l.Close()
	}
	return "", errors.New("no free port between 12000 and 32000")
}
