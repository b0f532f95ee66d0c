//go:build unix

package loop

import (
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestDescriptor: a socket lives until the last descriptor of it is closed, and only one that listens is taken over.
func TestDescriptor(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	first, err := DescriptorOf(l)
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	waiting, err := net.Dial("tcp", at) // nobody accepts yet
	if err != nil {
		t.Fatal(err)
	}
	defer waiting.Close()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := first.Duplicate()
	if err != nil || second.Addr().String() != at || second.FD() == first.FD() {
		t.Fatalf("%v at %v, %v", second, second.Addr(), err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := second.Listener()
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := again.Accept() // who connected before is not lost
	if err != nil || accepted.RemoteAddr().String() != waiting.LocalAddr().String() {
		t.Fatalf("%v, %v", accepted, err)
	}
	_ = accepted.Close()
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
	if c, err := net.Dial("tcp", at); err != nil {
		t.Errorf("with one descriptor left: %v", err)
	} else {
		_ = c.Close()
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	if c, err := net.Dial("tcp", at); err == nil {
		_ = c.Close()
		t.Error("with none left somebody listens")
	}
}

// TestDescriptorOfSomethingElse: it is refused, and left as it is.
func TestDescriptorOfSomethingElse(t *testing.T) {
	file, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	unbound, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	datagrams, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	for what, fd := range map[string]int{"a file": int(file.Fd()), "a socket that does not listen": unbound, "a socket of UDP": datagrams} {
		if _, err := NewDescriptor(fd); err == nil {
			t.Errorf("%s was taken", what)
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil {
			t.Errorf("%s was closed: %v", what, err)
		}
	}
	if err := unix.Close(unbound); err != nil {
		t.Error(err)
	}
	if err := unix.Close(datagrams); err != nil {
		t.Error(err)
	}
	if _, err := NewDescriptor(unbound); err == nil {
		t.Error("a descriptor that is closed was taken")
	}
	if _, err := DescriptorOf(noSocket{}); err == nil {
		t.Error("a listener without a socket has a descriptor")
	}
}

type noSocket struct{ net.Listener }
