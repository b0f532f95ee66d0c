//go:build linux

package netnstest

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// Root is the number of the side where the test itself is, and so its clients and backends.
const Root = 0

// HostsMax is how many hosts one Net has at most.
const HostsMax = 99

// netsMax is how many Nets a process may make: each has a third octet of its own.
const netsMax = 250

// made counts the Nets of this process.
var made atomic.Int32

// Net is a bridge with hosts 1 to n on it. Its methods may be called from several goroutines; what goes wrong in them fails the
// test at once.
type Net struct {
	t  testing.TB
	id int
	n  int

	mu      sync.Mutex
	lossy   map[way]float64 // percent of frames that are lost; 100: all
	wires   map[int]*wire
	slow    map[int]bool  // hosts with a rate
	pulled  map[int]bool  // hosts without a cable
	away    map[int]*span // hosts that cannot be reached from Root
	absence absence
}

// way is one direction between two hosts.
type way struct{ from, to int }

// New makes n hosts. They end with the test, and so do the processes on them.
func New(t testing.TB, n int) *Net {
	t.Helper()
	id := int(made.Add(1))
	if n < 1 || n > HostsMax || id > netsMax {
		t.Fatalf("netnstest: %d hosts in net %d: at most %d hosts and %d nets", n, id, HostsMax, netsMax)
	}
	net := &Net{t: t, id: id, n: n, lossy: map[way]float64{}, wires: map[int]*wire{}, slow: map[int]bool{}, pulled: map[int]bool{}, away: map[int]*span{}}
	t.Cleanup(net.remove)
	net.must(run(net.bridgeCommands(), "ip", "-batch", "-"))
	for host := 1; host <= n; host++ {
		net.must(run(net.hostCommands(host), "ip", "-n", net.space(host), "-batch", "-"))
		net.must(plainFrames(net.port(host)))
		net.On(host, func() { net.must(plainFrames("eth0")) })
	}
	net.must(plainFrames(net.bridge()))
	return net
}

// Address is where a host is reached, and Root for a side that clients and backends are on.
func (n *Net) Address(host int) netip.Addr {
	last := byte(host)
	if host == Root {
		last = 254
	}
	return netip.AddrFrom4([4]byte{10, 99, byte(n.id), last})
}

// Hosts is 1 to the number of hosts.
func (n *Net) Hosts() []int {
	hosts := make([]int, n.n)
	for i := range hosts {
		hosts[i] = i + 1
	}
	return hosts
}

func (n *Net) bridge() string        { return fmt.Sprintf("lbr%d", n.id) }
func (n *Net) space(host int) string { return fmt.Sprintf("lb%dh%d", n.id, host) }
func (n *Net) port(host int) string  { return fmt.Sprintf("lb%dp%d", n.id, host) }

// hardware is the address of a host's card. All know all from the start: a lossy link would lose questions for it, too, and three
// lost ones are "no route to host".
func (n *Net) hardware(host int) string { return fmt.Sprintf("02:00:00:00:%02x:%02x", n.id, host) }

func (n *Net) bridgeCommands() string {
	var b strings.Builder
	fmt.Fprintf(&b, "link add %s type bridge forward_delay 0 stp_state 0 mcast_snooping 0\n", n.bridge())
	fmt.Fprintf(&b, "link set %s address %s\n", n.bridge(), n.hardware(Root))
	fmt.Fprintf(&b, "addr add %s/24 dev %s\n", n.Address(Root), n.bridge())
	fmt.Fprintf(&b, "link set %s up\n", n.bridge())
	for _, host := range n.Hosts() {
		fmt.Fprintf(&b, "netns add %s\n", n.space(host))
		fmt.Fprintf(&b, "link add %s type veth peer name eth0 address %s netns %s\n", n.port(host), n.hardware(host), n.space(host))
		fmt.Fprintf(&b, "link set %s master %s up\n", n.port(host), n.bridge())
		fmt.Fprintf(&b, "neigh add %s lladdr %s dev %s nud permanent\n", n.Address(host), n.hardware(host), n.bridge())
	}
	return b.String()
}

func (n *Net) hostCommands(host int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "link set lo up\naddr add %s/24 dev eth0\nlink set eth0 up\nroute add default via %s\n", n.Address(host), n.Address(Root))
	for _, other := range append(n.Hosts(), Root) {
		if other != host {
			fmt.Fprintf(&b, "neigh add %s lladdr %s dev eth0 nud permanent\n", n.Address(other), n.hardware(other))
		}
	}
	return b.String()
}

// remove undoes New, whatever of it was done.
func (n *Net) remove() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, w := range n.wires {
		w.close()
	}
	for _, host := range n.Hosts() {
		_ = run("", "ip", "netns", "del", n.space(host)) // its cable goes with it
	}
	_ = run("", "nft", "delete", "table", "bridge", n.table())
	_ = run("", "ip", "link", "del", n.bridge())
}

// Exec runs a program on a host and returns what it says. Its error holds what the program says, too.
func (n *Net) Exec(host int, program string, args ...string) (string, error) {
	cmd := exec.Command(program, args...)
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	err := n.start(host, cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		err = fmt.Errorf("%s %s on host %d: %w: %s", program, strings.Join(args, " "), host, err, said.String())
	}
	return said.String(), err
}

// start starts a program on a host.
func (n *Net) start(host int, cmd *exec.Cmd) (err error) {
	n.On(host, func() { err = cmd.Start() })
	return err
}

// On calls f on a thread that is on the host: what f opens is there, and so is what it starts.
func (n *Net) On(host int, f func()) {
	if host == Root {
		f()
		return
	}
	runtime.LockOSThread()
	back, err := os.Open("/proc/thread-self/ns/net")
	n.must(err)
	defer back.Close()
	there, err := os.Open("/run/netns/" + n.space(host))
	n.must(err)
	defer there.Close()
	n.must(unix.Setns(int(there.Fd()), unix.CLONE_NEWNET))
	f()
	if unix.Setns(int(back.Fd()), unix.CLONE_NEWNET) == nil {
		runtime.UnlockOSThread() // else the thread ends with its goroutine
	}
}

func (n *Net) must(err error) {
	if err != nil {
		n.t.Helper()
		n.t.Fatalf("netnstest: %v", err)
	}
}

// run runs a program and says in its error what the program said.
func run(stdin, program string, args ...string) error {
	cmd := exec.Command(program, args...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s\n%s", program, strings.Join(args, " "), err, out, stdin)
	}
	return nil
}
