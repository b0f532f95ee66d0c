package main

import (
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
)

// socketUnit is what a service manager keeps of a socket unit: the socket, whoever serves it.
type socketUnit struct {
	name    string
	address string
	file    *os.File
}

func newSocketUnit(t *testing.T, name string) *socketUnit {
	t.Helper()
	address, err := freeAddress()
	if err != nil {
		t.Fatal(err)
	}
	var plain net.ListenConfig
	plain.SetMultipathTCP(false)
	l, err := plain.Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return &socketUnit{name, address, f}
}

// TestSocketActivation: the ports are the service manager's. A node serves on them; who connects while none runs waits, and they go to a
// process that takes the node's place as well.
func TestSocketActivation(t *testing.T) {
	web, secure, control := newSocketUnit(t, "web"), newSocketUnit(t, "https"), newSocketUnit(t, "control")
	units := []*socketUnit{web, secure, control}
	s := newService(t, "lbd", "LBD_CONTROL="+control.address)
	var names []string
	for _, u := range units {
		names = append(names, u.name)
		s.files = append(s.files, u.file)
	}
	s.env = append(s.env, "LISTEN_FDS="+fmt.Sprint(len(units)), "LISTEN_FDNAMES="+strings.Join(names, ":"))
	for i, arg := range s.args {
		switch {
		case strings.HasPrefix(arg, "http="):
			s.args[i] = "http=" + web.address
		case strings.HasPrefix(arg, "https="):
			s.args[i] = "https=" + secure.address
		}
	}
	early, err := hold("http://" + web.address + "/") // nobody runs
	if err != nil {
		t.Fatal(err)
	}
	defer early.c.Close()
	s.begin()
	if _, err := early.get(); err != nil {
		t.Errorf("who came before the node: %v\n%s", err, s.tail())
	}
	s.types("lbctl status")
	h := s.heir("lbd")
	h.begin()
	if err := s.ended(t); err != nil {
		t.Errorf("%v\n%s", err, s.tail())
	}
	h.types("curl -skf https://" + secure.address + "/ http://" + web.address + "/ >/dev/null; lbctl status")
	if err := h.signal(syscall.SIGTERM); err != nil {
		t.Errorf("%v\n%s", err, h.tail())
	}
	late, err := hold("http://" + web.address + "/") // nobody runs again
	if err != nil {
		t.Fatal(err)
	}
	defer late.c.Close()
	s.begin()
	if _, err := late.get(); err != nil {
		t.Errorf("who came between two processes: %v\n%s", err, s.tail())
	}
}
