package main

import (
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"lbd/lb/loop"
)

// inheritedFor has a socket for each line "USE NAME ADDRESS BOUND"; "-" is empty. They are told apart by their place.
func inheritedFor(t *testing.T, lines ...string) (*inherited, map[*loop.Descriptor]int) {
	t.Helper()
	h, places := &inherited{log: slog.New(slog.DiscardHandler)}, map[*loop.Descriptor]int{}
	for i, line := range lines {
		words := strings.Split(line, " ")
		for j := range words {
			words[j] = strings.TrimPrefix(words[j], "-")
		}
		bound, err := net.ResolveTCPAddr("tcp", words[3])
		if err != nil {
			t.Fatal(err)
		}
		d := &loop.Descriptor{}
		places[d] = i
		h.sockets = append(h.sockets, &inheritedSocket{use: socketUse{For: words[0], Name: words[1], Address: words[2]}, from: d, bound: bound})
	}
	return h, places
}

// TestInheritedSockets: who accepts on which socket, by whom it was left and for what.
func TestInheritedSockets(t *testing.T) {
	for _, c := range []struct {
		what               string
		sockets            []string
		use, name, address string
		want               []int // places of those that are taken
		spare              int   // how many count as unused then
	}{
		{"the same as before", []string{"listener http 127.0.0.1:80 127.0.0.1:80", "listener https 127.0.0.1:443 127.0.0.1:443"},
			forListener, "https", "127.0.0.1:443", []int{1}, 1},
		{"all of a listener's loops", []string{"listener a 127.0.0.1:80 127.0.0.1:80", "listener a 127.0.0.1:80 127.0.0.1:80", "listener b 127.0.0.1:81 127.0.0.1:81"},
			forListener, "a", "127.0.0.1:80", []int{0, 1}, 1},
		{"a listener that has another name now", []string{"listener old 127.0.0.1:80 127.0.0.1:80"}, forListener, "new", "127.0.0.1:80", []int{0}, 0},
		{"two that have changed places", []string{"listener a 127.0.0.1:80 127.0.0.1:80", "listener b 127.0.0.1:81 127.0.0.1:81"},
			forListener, "a", "127.0.0.1:81", []int{1}, 1},
		{"another port", []string{"listener a 127.0.0.1:80 127.0.0.1:80"}, forListener, "a", "127.0.0.1:82", nil, 1},
		{"another address of the same port", []string{"listener a 10.0.0.1:80 10.0.0.1:80"}, forListener, "a", "127.0.0.1:80", nil, 1},
		{"all interfaces", []string{"listener a :80 [::]:80"}, forListener, "a", ":80", []int{0}, 0},
		{"all of one family are not all", []string{"listener a 0.0.0.0:80 0.0.0.0:80"}, forListener, "b", "127.0.0.1:80", nil, 1},
		{"a port that the kernel has chosen", []string{"listener a 127.0.0.1:0 127.0.0.1:40000"}, forListener, "a", "127.0.0.1:0", []int{0}, 0},
		{"not the control port's, though it is called so", []string{"control control 127.0.0.1:7443 127.0.0.1:7443"}, forListener, "control", "127.0.0.1:0", nil, 1},
		{"the control port", []string{"listener a 127.0.0.1:80 127.0.0.1:80", "control control 127.0.0.1:7443 127.0.0.1:7443"},
			forControl, forControl, "127.0.0.1:7443", []int{1}, 1},
		{"the service manager's by its address", []string{"spare x - 0.0.0.0:443"}, forListener, "https", "0.0.0.0:443", []int{0}, 0},
		{"by its name, where the unit says which interface", []string{"spare https - 10.0.0.1:443"}, forListener, "https", ":443", []int{0}, 0},
		{"not by its name where the listener says another", []string{"spare https - 10.0.0.1:443"}, forListener, "https", "10.0.0.2:443", nil, 1},
		{"one descriptor of two of the same socket", []string{"listener a 127.0.0.1:80 127.0.0.1:80", "spare a - 127.0.0.1:80"},
			forListener, "a", "127.0.0.1:80", []int{0}, 0},
		{"nothing for an address that is none", []string{"listener a 127.0.0.1:80 127.0.0.1:80"}, forListener, "a", "nonsense", nil, 1},
	} {
		h, places := inheritedFor(t, c.sockets...)
		var got []int
		for _, d := range h.match(c.use, c.name, c.address) {
			got = append(got, places[d])
		}
		unused := 0
		for _, s := range h.sockets {
			if !s.used {
				unused++
			}
		}
		if !slices.Equal(got, c.want) || unused != c.spare {
			t.Errorf("%s: takes %v and leaves %d, want %v and %d", c.what, got, unused, c.want, c.spare)
		}
	}
}

// TestSocketsOfTheManager: what sd_listen_fds(3) says, and nothing for another process.
func TestSocketsOfTheManager(t *testing.T) {
	pid := strconv.Itoa(os.Getpid())
	for _, c := range []struct {
		pid, fds string
		want     int
		wrong    bool
	}{
		{pid, "3", 3, false},
		{pid, "", 0, false},
		{"1", "3", 0, false},
		{"", "3", 0, false},
		{pid, "-1", 0, true},
		{pid, "x", 0, true},
		{pid, "100000", 0, true},
	} {
		if got, err := inheritedCount(c.pid, c.fds); got != c.want || (err != nil) != c.wrong {
			t.Errorf("LISTEN_PID=%s LISTEN_FDS=%s: %d, %v", c.pid, c.fds, got, err)
		}
	}
}

// TestSettle: what the process before had and this one does not want is closed; what is the service manager's stays.
func TestSettle(t *testing.T) {
	h := &inherited{log: slog.New(slog.DiscardHandler)}
	open := func(use socketUse) *net.TCPAddr {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		d, err := loop.DescriptorOf(l)
		if err != nil {
			t.Fatal(err)
		}
		h.add(use, d)
		return l.Addr().(*net.TCPAddr)
	}
	accepts := func(at *net.TCPAddr) bool {
		c, err := net.Dial("tcp", at.String())
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	}
	wanted := open(socketUse{For: forListener, Name: "a", Address: "here"})
	left := open(socketUse{For: forListener, Name: "b", Address: "there"})
	spare := open(socketUse{For: forSpare, Name: "c"})
	l, err := h.listen(forListener, wanted.String())
	if err != nil || l.Addr().String() != wanted.String() {
		t.Fatalf("%v, %v", l, err)
	}
	defer l.Close()
	h.settle()
	if !accepts(wanted) || accepts(left) || !accepts(spare) {
		t.Errorf("wanted %v, left %v, spare %v", accepts(wanted), accepts(left), accepts(spare))
	}
	h.close()
	if !accepts(wanted) || accepts(spare) {
		t.Errorf("at the end: wanted %v, spare %v", accepts(wanted), accepts(spare))
	}
}
