package lb

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestConnectTimeout(t *testing.T) {
	// A listening socket whose queue is full answers no SYN.
	full := fullListener(t)
	onEngines(t, func(t *testing.T, kind string) {
		n := start(t, setup{kind: kind, backends: full, pool: PoolConfig{ConnectTimeout: short}})
		c := n.dial()
		c.say(get("/"))
		c.expectStatus(504)
		n.want(504, ConnectFailed)
	})
}

// fullListener returns the address of a listening socket that accepts nobody and whose queue is full.
func fullListener(t *testing.T) []netip.AddrPort {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	address := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(name.(*unix.SockaddrInet4).Port))
	for {
		c, err := net.DialTimeout("tcp", address.String(), 200*time.Millisecond)
		if err != nil {
			return []netip.AddrPort{address}
		}
		t.Cleanup(func() { c.Close() })
	}
}
