//go:build linux

package netnstest

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// frameBytesMax is more than any frame has: nothing is offloaded here, see plainFrames.
	frameBytesMax = 64 << 10
	// wireFramesMax is how many frames are under way in one direction; more are lost, as in a full queue.
	wireFramesMax = 8192
	// wireSocketBytes is the kernel's part of that queue.
	wireSocketBytes = 4 << 20
)

// wire stands between a host's cable and the bridge and delays frames, which the kernel does only with a module (netem) that not
// every kernel has.
//
//	eth0 on the host == port  <-- wire -->  near == far, a port of the bridge
type wire struct {
	net  *Net
	host int

	delay, jitter atomic.Int64 // nanoseconds

	sockets [2]*os.File
	done    sync.WaitGroup
}

// frame is one under way.
type frame struct {
	at   time.Time
	data []byte
}

func (n *Net) wireNear(host int) string { return fmt.Sprintf("lb%dn%d", n.id, host) }
func (n *Net) wireEnd(host int) string  { return fmt.Sprintf("lb%df%d", n.id, host) }

// layWire puts a wire without delay in the place of a cable's end.
func layWire(n *Net, host int) (*wire, error) {
	near, far := n.wireNear(host), n.wireEnd(host)
	err := run(fmt.Sprintf("link add %[1]s type veth peer name %[2]s\nlink set %[3]s nomaster promisc on\nlink set %[1]s promisc on up\nlink set %[2]s master %[4]s up\n",
		near, far, n.port(host), n.bridge()), "ip", "-batch", "-")
	if err != nil {
		return nil, err
	}
	w := &wire{net: n, host: host}
	for i, name := range []string{n.port(host), near} {
		if err := plainFrames(name); err != nil {
			return nil, err
		}
		if w.sockets[i], err = rawSocket(name); err != nil {
			return nil, err
		}
	}
	if err := plainFrames(far); err != nil {
		return nil, err
	}
	w.carry(w.sockets[0], w.sockets[1])
	w.carry(w.sockets[1], w.sockets[0])
	return w, nil
}

// remove plugs the cable into the bridge again.
func (w *wire) remove() error {
	w.close()
	n := w.net
	return run(fmt.Sprintf("link del %s\nlink set %s promisc off master %s\n", n.wireNear(w.host), n.port(w.host), n.bridge()), "ip", "-batch", "-")
}

// close ends the wire's goroutines.
func (w *wire) close() {
	for _, s := range w.sockets {
		if s != nil {
			s.Close()
		}
	}
	w.done.Wait()
}

// carry moves frames one way until the sockets are closed.
func (w *wire) carry(from, to *os.File) {
	under := make(chan frame, wireFramesMax)
	w.done.Go(func() {
		defer close(under)
		buf := make([]byte, frameBytesMax)
		for {
			size, err := from.Read(buf)
			if err != nil {
				return
			}
			select {
			case under <- frame{time.Now().Add(w.hold()), append([]byte(nil), buf[:size]...)}:
			default: // lost
			}
		}
	})
	w.done.Go(func() {
		for f := range under {
			time.Sleep(time.Until(f.at))
			_, _ = to.Write(f.data) // a host whose cable is pulled gets nothing
		}
	})
}

func (w *wire) hold() time.Duration {
	delay, jitter := w.delay.Load(), w.jitter.Load()
	if jitter > 0 {
		delay += rand.Int64N(2*jitter) - jitter
	}
	return time.Duration(delay)
}

// rawSocket reads and writes frames of an interface; what it writes it does not read.
func rawSocket(name string) (*os.File, error) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return nil, err
	}
	all := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ALL)) // in network order
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, int(all))
	if err != nil {
		return nil, fmt.Errorf("socket for frames: %w", err)
	}
	f := os.NewFile(uintptr(fd), name)
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, wireSocketBytes) // as much as is allowed
	err = unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: i.Index})
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("socket for frames of %s: %w", name, err)
	}
	return f, nil
}
