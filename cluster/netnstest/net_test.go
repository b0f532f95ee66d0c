//go:build linux

package netnstest_test

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"lbd/cluster/netnstest"
)

// patience bounds every wait: long enough for a busy machine, and only ever used up by a failure.
const patience = 60 * time.Second

// clustersAtOnce is how many tests run at a time unless -parallel says otherwise: they wait most of the time, whatever the cores.
const clustersAtOnce = "4"

func TestMain(m *testing.M) {
	flag.Parse()
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if !chosen {
		if err := flag.Set("test.parallel", clustersAtOnce); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(netnstest.Main(m, build))
}

// build makes the binaries: the release's form, since what is timed here are elections.
func build(dir string) error {
	for _, b := range []struct{ name, command, tags string }{{"lbd", "lbd", ""}, {"lbd-next", "lbd", "lbdnext"}, {"lbctl", "lbctl", ""}} {
		cmd := exec.Command("go", "build", "-tags", b.tags, "-o", filepath.Join(dir, b.name), "lbd/cmd/"+b.command)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%s: %w", b.name, err)
		}
	}
	return nil
}

// ping is whether one host reaches another, by whether a connection is refused: so says the other's kernel.
func ping(n *netnstest.Net, from, to int) bool {
	var err error
	n.On(from, func() {
		var c net.Conn
		if c, err = net.DialTimeout("tcp", net.JoinHostPort(n.Address(to).String(), "9"), 500*time.Millisecond); err == nil {
			c.Close()
		}
	})
	return errors.Is(err, syscall.ECONNREFUSED)
}

// reach is who reaches whom: "12" for one to two.
func reach(n *netnstest.Net) string {
	all := append([]int{netnstest.Root}, n.Hosts()...)
	said := make([]string, len(all)*len(all))
	var pings sync.WaitGroup
	for _, from := range all {
		for _, to := range all {
			pings.Go(func() {
				if from != to && ping(n, from, to) {
					said[from*len(all)+to] = fmt.Sprintf("%d%d ", from, to)
				}
			})
		}
	}
	pings.Wait()
	return strings.Join(said, "")
}

func TestFaults(t *testing.T) {
	t.Parallel()
	n := netnstest.New(t, 3)
	const all = "01 02 03 10 12 13 20 21 23 30 31 32 "
	for _, c := range []struct {
		name    string
		fault   func()
		reach   string
		excused int // who is out of reach
	}{
		{"none", func() {}, all, 0},
		{"partition", func() { n.Partition([]int{1}, []int{2, 3}) }, "01 02 03 10 20 23 30 32 ", 0},
		{"isolate", func() { n.Isolate(2) }, "01 03 10 13 30 31 ", 2},
		{"link", func() { n.Link(3, false) }, "01 02 10 12 20 21 ", 3},
		{"no way back to the clients", func() { n.OneWay(1, netnstest.Root) }, "02 03 12 13 20 21 23 30 31 32 ", 1},
		{"delay", func() { n.Delay(1, 20*time.Millisecond, 5*time.Millisecond) }, all, 0},
		{"isolate behind a wire", func() { n.Delay(1, time.Millisecond, 0); n.Isolate(1) }, "02 03 20 23 30 32 ", 1},
		{"rate", func() { n.Rate(1, 1000) }, all, 0},
	} {
		before := time.Now()
		c.fault()
		if got := reach(n); got != c.reach {
			t.Errorf("%s: reach is %q, want %q", c.name, got, c.reach)
		}
		for _, host := range n.Hosts() {
			if got := n.Excused(host, before, time.Now()); got != (host == c.excused) {
				t.Errorf("%s: host %d excused: %v", c.name, host, got)
			}
		}
		n.Heal()
		healed := time.Now()
		if got := reach(n); got != all {
			t.Errorf("after %s: reach is %q", c.name, got)
		}
		for _, host := range n.Hosts() {
			if n.Excused(host, healed, time.Now()) {
				t.Errorf("after %s: host %d is excused", c.name, host)
			}
		}
	}
}

// echo answers on a host with what it gets.
func echo(t *testing.T, n *netnstest.Net, host int) string {
	t.Helper()
	var l net.Listener
	var err error
	n.On(host, func() { l, err = net.Listen("tcp", net.JoinHostPort(n.Address(host).String(), "7")) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); _, _ = io.Copy(c, c) }()
		}
	}()
	return l.Addr().String()
}

// roundTrip says how long so many bytes take there and back.
func roundTrip(t *testing.T, address string, size int) time.Duration {
	t.Helper()
	c, err := net.DialTimeout("tcp", address, patience)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	go func() { _, _ = c.Write(make([]byte, size)) }()
	if _, err := io.ReadFull(c, make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	return time.Since(begin)
}

// What is slow is slow by about as much as was said, and what is lossy loses no byte of a connection.
func TestSlow(t *testing.T) {
	t.Parallel()
	n := netnstest.New(t, 1)
	address := echo(t, n, 1)
	n.Delay(1, 50*time.Millisecond, 0)
	if took := roundTrip(t, address, 1); took < 100*time.Millisecond {
		t.Errorf("a round trip with 50 ms of delay took %v", took)
	}
	n.Heal()
	n.Rate(1, 1000)
	if took := roundTrip(t, address, 250_000); took < 1500*time.Millisecond { // 2 s less what a bucket holds
		t.Errorf("250 kB at 1 Mbit/s took %v", took)
	}
	n.Heal()
	n.Loss(1, 10)
	roundTrip(t, address, 50_000)
}

func TestProcess(t *testing.T) {
	t.Parallel()
	n := netnstest.New(t, 1)
	p := n.Start(1, "shell", []string{"WORD=there"}, "sh", "-c", `echo "hello $WORD"; ip -br addr show eth0; sleep 1000`)
	if err := p.Expect("hello there", patience); err != nil {
		t.Error(err)
	}
	if err := p.Expect(n.Address(1).String(), patience); err != nil {
		t.Error(err)
	}
	if !p.Running() {
		t.Error("it is not running")
	}
	p.Kill()
	if p.Running() || p.Wait(patience) == nil {
		t.Error("it is running, or ended well")
	}
	if err := p.Expect("never", patience); err == nil {
		t.Error("it said never")
	}
	if out, err := n.Exec(1, "ip", "netns", "identify"); err != nil || out == "" {
		t.Errorf("where: %q %v", out, err)
	}
	if _, err := n.Exec(1, "sh", "-c", "echo no; exit 3"); err == nil {
		t.Error("exit 3 is no error")
	}
}
