package loop

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func TestUnknownKind(t *testing.T) {
	if _, err := New(Options{Kind: "magic"}); err == nil {
		t.Fatal("no error")
	}
}

func TestKindFromEnvironment(t *testing.T) {
	t.Setenv("LBD_ENGINE", KindGoroutine)
	e, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if e.Kind() != KindGoroutine || e.Loops() < 1 {
		t.Fatalf("kind %s, %d loops", e.Kind(), e.Loops())
	}
}

func TestProcs(t *testing.T) {
	for loops, want := range map[int]int{1: 3, 2: 4, 4: 6, 8: 11, 16: 21} {
		if got := Procs(loops); got != want {
			t.Errorf("Procs(%d) = %d, want %d", loops, got, want)
		}
	}
	if got := Procs(0); got < 3 {
		t.Errorf("Procs(0) = %d", got)
	}
}

// Close ends whatever a task may be doing, and leaves nothing behind.
func TestCloseEndsTasks(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		e := start(t, kind, 2)
		ended := make(chan error, 10)
		begun := make(chan struct{}, 10)
		parked := func(_ *Task, c *Conn) {
			_, err := c.Read(make([]byte, 1))
			ended <- err
		}
		waits := []Handler{
			func(_ *Task, c *Conn) {
				begun <- struct{}{}
				_, err := c.Read(make([]byte, 1))
				ended <- err
			},
			func(_ *Task, c *Conn) {
				begun <- struct{}{}
				_, err := c.Write(make([]byte, 64<<20))
				ended <- err
			},
			func(task *Task, c *Conn) {
				begun <- struct{}{}
				_, err := task.Wait(time.Time{}, Want{Conn: c, Read: true})
				ended <- err
			},
			func(task *Task, c *Conn) {
				begun <- struct{}{}
				c.Park(time.Time{}, parked)
			},
			func(task *Task, c *Conn) {
				begun <- struct{}{}
				err := task.Sleep(time.Hour)
				_, again := c.Read(make([]byte, 1))
				if !errors.Is(again, ErrClosed) {
					err = again
				}
				if _, dial := task.Dial(c.RemoteAddrPort(), time.Time{}); !errors.Is(dial, ErrClosed) {
					err = dial
				}
				c.Park(time.Time{}, parked)
				ended <- err
			},
		}
		var peers []net.Conn
		for _, h := range waits {
			peers = append(peers, dial(t, listen(t, e, ListenOptions{Handler: h})))
			within(t, begun, "handler")
		}
		e.Close()
		for range len(waits) + 1 {
			if err := within(t, ended, "end of task"); !errors.Is(err, ErrClosed) {
				t.Errorf("got %v, want ErrClosed", err)
			}
		}
		if n := connections(e.Stats()); n != 0 {
			t.Errorf("%d connections left", n)
		}
		for _, c := range peers {
			if _, err := io.Copy(io.Discard, c); errors.Is(err, syscall.ETIMEDOUT) {
				t.Error(err)
			}
		}
		e.Go(func(*Task) { t.Error("a task ran after Close") })
		if _, err := e.Listen("127.0.0.1:0", ListenOptions{}); !errors.Is(err, ErrClosed) {
			t.Errorf("Listen after Close: %v", err)
		}
		e.Close()
	})
}

// Close under load: clients come and go while the engine ends.
func TestCloseUnderLoad(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		for range 5 {
			e := start(t, kind, 2)
			back := startBackend(t, e, echo)
			l := listen(t, e, ListenOptions{Handler: func(task *Task, c *Conn) {
				b, err := task.Dial(back, time.Now().Add(patience))
				if err != nil {
					return
				}
				buf := make([]byte, 10)
				for {
					n, err := c.Read(buf)
					if err != nil {
						return
					}
					task.Offload(func() {})
					b.Write(buf[:n])
					if n, err = b.Read(buf); err != nil {
						return
					}
					c.Write(buf[:n])
				}
			}})
			var clients sync.WaitGroup
			served := make(chan struct{}, 1000)
			for range 20 {
				clients.Go(func() {
					for {
						c, err := net.Dial("tcp", l.Addr().String())
						if err != nil {
							return
						}
						io.WriteString(c, "x")
						c.SetDeadline(time.Now().Add(patience))
						if _, err := c.Read(make([]byte, 1)); err == nil {
							select {
							case served <- struct{}{}:
							default:
							}
						}
						c.Close()
					}
				})
			}
			for range 20 {
				within(t, served, "answer")
			}
			e.Close()
			clients.Wait()
			if n := connections(e.Stats()); n != 0 {
				t.Fatalf("%d connections left", n)
			}
		}
	})
}

// An address belongs to one listener, although the loops share it.
func TestAddressInUse(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		e := start(t, kind, 3)
		l := listen(t, e, ListenOptions{Handler: echo})
		addr := l.Addr().String()
		for _, other := range []*Engine{e, start(t, kind, 3)} {
			_, err := other.Listen(addr, ListenOptions{})
			if !errors.Is(err, syscall.EADDRINUSE) {
				t.Fatalf("got %v", err)
			}
			_, port, _ := net.SplitHostPort(addr)
			if !strings.Contains(err.Error(), "port "+port) {
				t.Errorf("the error does not name the port: %v", err)
			}
		}
		l.Close()
		again, err := e.Listen(addr, ListenOptions{Handler: echo})
		if err != nil {
			t.Fatalf("after Close: %v", err)
		}
		c := dial(t, again)
		send(t, c, "x")
		expect(t, c, "x")
	})
}

// So does it between two processes of one user, and the error names the other.
func TestAddressInUseByOtherProcess(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), childVariable+"=1", "LBD_ENGINE="+kind)
		in, err := child.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := child.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		defer child.Wait()
		defer in.Close()
		addr, err := bufio.NewReader(out).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		_, err = start(t, kind, 2).Listen(strings.TrimSpace(addr), ListenOptions{})
		if !errors.Is(err, syscall.EADDRINUSE) {
			t.Fatalf("got %v", err)
		}
		if who := fmt.Sprintf("process %d ", child.Process.Pid); namesOwner && !strings.Contains(err.Error(), who) {
			t.Errorf("%v does not name %s", err, who)
		}
	})
}

// Closing a listener leaves its connections alone and loses none that the
// kernel had accepted.
func TestListenerClose(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		e := start(t, kind, 2)
		l := listen(t, e, ListenOptions{Handler: echo})
		c := dial(t, l)
		send(t, c, "x")
		expect(t, c, "x")
		l.Close()
		l.Close()
		send(t, c, "y")
		expect(t, c, "y")
		if c, err := net.Dial("tcp", l.Addr().String()); err == nil {
			c.Close()
			t.Error("still accepts")
		}
	})
}

func TestConnectionsMax(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		e := start(t, kind, 2)
		refused := make(chan string, 10)
		l := listen(t, e, ListenOptions{
			Handler: echo, ConnectionsMax: 2, Refused: func(reason string) { refused <- reason },
		})
		first := dial(t, l)
		for _, c := range []net.Conn{first, dial(t, l)} {
			send(t, c, "x")
			expect(t, c, "x")
		}
		c := dial(t, l)
		if n, err := c.Read(make([]byte, 1)); err == nil {
			t.Fatalf("%d bytes from a connection over the limit", n)
		}
		if r := within(t, refused, "refusal"); r != RefusedConnectionsMax {
			t.Errorf("reason %q", r)
		}
		l.SetConnectionsMax(3)
		c = dial(t, l)
		send(t, c, "x")
		expect(t, c, "x")
		l.SetConnectionsMax(1)
		send(t, first, "y")
		expect(t, first, "y")
	})
}

// New connections reach all loops.
func TestSpread(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		e := start(t, kind, 2)
		l := listen(t, e, ListenOptions{Handler: echo})
		for range 100 {
			c := dial(t, l)
			send(t, c, "x")
			expect(t, c, "x")
		}
		for _, l := range e.Stats().Loops {
			if l.Connections < 30 {
				t.Errorf("one loop has %d of 100 connections", l.Connections)
			}
		}
	})
}
