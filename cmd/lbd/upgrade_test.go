package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// newDoor is one at which a test knocks; what it lets in is in heirs.
func newDoor(t *testing.T, refusal func(*heir) string) (dir string, d *door, said *logged) {
	t.Helper()
	dir, said = t.TempDir(), &logged{}
	d = openDoor(dir, slog.New(slog.NewTextHandler(said, nil)), func() *processCard { return (&config{node: "n1"}).thisProcess() }, refusal)
	if d == nil {
		t.Fatal("no door")
	}
	return dir, d, said
}

func knock(t *testing.T, dir string) *courier {
	t.Helper()
	c, err := net.Dial("unix", upgradePath(dir))
	if err != nil {
		t.Fatal(err)
	}
	k := &courier{conn: c.(*net.UnixConn)}
	t.Cleanup(k.close)
	return k
}

func anyone(*heir) string { return "" }

// TestDoor: one heir at a time, and the next one when that has changed its mind; strangers to the protocol are nobody.
func TestDoor(t *testing.T) {
	dir, d, _ := newDoor(t, anyone)
	for _, nonsense := range []string{"", "hello\n", "{}\n", `{"Step":"hello"}` + "\n", `{"Step":"hello","Files":9}` + "\n", strings.Repeat("x", 2*upgradeMessageMax)} {
		k := knock(t, dir)
		_, _ = k.conn.Write([]byte(nonsense))
		_ = k.conn.CloseWrite()
		if l, _, err := k.receive(30 * time.Second); !errors.Is(err, errEnded) {
			t.Errorf("%.20q is answered with %v, %v", nonsense, l, err)
		}
	}
	hello := letter{Step: stepHello, Process: (&config{node: "n1"}).thisProcess()}
	first := knock(t, dir)
	if err := first.send(hello, time.Second); err != nil {
		t.Fatal(err)
	}
	if l, err := first.expect(stepWelcome, 30*time.Second); err != nil || l.Process.Pid != os.Getpid() {
		t.Fatalf("%+v, %v", l, err)
	}
	second := knock(t, dir)
	_ = second.send(hello, time.Second)
	var refused *refusedStep
	if _, err := second.expect(stepWelcome, 30*time.Second); !errors.As(err, &refused) || !strings.Contains(refused.reason, "takes its place at this moment") {
		t.Errorf("a second one: %v", err)
	}
	first.close()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		third := knock(t, dir)
		_ = third.send(hello, time.Second)
		if _, err := third.expect(stepWelcome, 30*time.Second); err == nil {
			_ = third.send(letter{Step: stepTake}, time.Second)
			break
		} else if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	h := <-d.knocked()
	if h.pid != os.Getpid() || h.card.Node != "n1" {
		t.Errorf("it is %+v", h)
	}
	h.close()
	d.close()
	if _, err := os.Lstat(upgradePath(dir)); err == nil {
		t.Error("the socket is left")
	}
}

// TestDoorOfTheNext: the next process's socket is in the place of this one's, which is not taken away with it.
func TestDoorOfTheNext(t *testing.T) {
	dir, d, _ := newDoor(t, anyone)
	next := openDoor(dir, slog.New(slog.DiscardHandler), func() *processCard { return &processCard{Node: "next"} }, func(*heir) string { return "it is the next one" })
	d.close()
	k := knock(t, dir)
	_ = k.send(letter{Step: stepHello, Process: &processCard{}}, time.Second)
	if _, err := k.expect(stepWelcome, 30*time.Second); err == nil || err.Error() != "it is the next one" {
		t.Errorf("who answers says %v", err)
	}
	next.close()
	if openDoor(filepath.Join(dir, strings.Repeat("x", 200)), slog.New(slog.DiscardHandler), nil, nil).knocked() != nil {
		t.Error("there is a door where there can be none")
	}
}

// TestStuckHeir: one that does not get on is killed, so that its predecessor can have its place back.
func TestStuckHeir(t *testing.T) {
	one, other, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	stuck := exec.Command("sleep", "1000")
	if err := stuck.Start(); err != nil {
		t.Fatal(err)
	}
	h := &heir{courier: courier{conn: one}, pid: stuck.Process.Pid}
	_, err = h.expect(stepReady, time.Millisecond)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("it is %v", err)
	}
	h.end(err)
	var exit *exec.ExitError
	if err := stuck.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("it ended with %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	one, other, err = socketPair()
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	h = &heir{courier: courier{conn: one}}
	if err := h.serves(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("told to end meanwhile: %v", err)
	}
	h.close()
}

func socketPair() (*net.UnixConn, *net.UnixConn, error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		return nil, nil, err
	}
	a, errA := connOf(fds[0])
	b, errB := connOf(fds[1])
	return a, b, errors.Join(errA, errB)
}

// TestElders: who drains is known until it has ended, also to the next one that is told of it.
func TestElders(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	here, there, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	first, second := &elders{log: log}, &elders{log: log}
	first.add(4711, here)
	one, other, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	from, to := &courier{conn: one}, &courier{conn: other}
	defer from.close()
	defer to.close()
	if err := first.send(from); err != nil {
		t.Fatal(err)
	}
	l, files, err := to.receive(30 * time.Second)
	if err != nil || l.Step != stepElder || l.Pid != 4711 || len(files) != 1 {
		t.Fatalf("%+v %v %v", l, files, err)
	}
	conn, err := connOf(files[0])
	if err != nil {
		t.Fatal(err)
	}
	second.add(l.Pid, conn)
	first.close()
	if second.count() != 1 || second.String() != "4711" {
		t.Errorf("%d: %s", second.count(), second)
	}
	there.Close()
	for deadline := time.Now().Add(30 * time.Second); second.count() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it has ended, and is counted")
		}
	}
	second.close()
}
