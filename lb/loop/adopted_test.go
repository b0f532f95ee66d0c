//go:build unix

package loop

import (
	"fmt"
	"io"
	"net"
	"testing"
)

// answer is a handler that says who answers, and closes.
func answer(who string) func(*Task, *Conn) {
	return func(_ *Task, c *Conn) {
		_, _ = c.Write([]byte(who))
		_ = c.Close()
	}
}

// answered is who answers a connection, to its end.
func answered(t *testing.T, c net.Conn) string {
	t.Helper()
	b, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestInheritedBetweenEngines: whatever the number of loops here and there, who waits in a socket of one engine is served by the other one once that has
// the listener alone, and the descriptors that were handed over are the giver's: closing them closes nothing.
func TestInheritedBetweenEngines(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		for _, loops := range [][2]int{{1, 1}, {1, 3}, {3, 1}, {2, 3}} {
			t.Run(fmt.Sprintf("%d to %d", loops[0], loops[1]), func(t *testing.T) {
				first := listen(t, start(t, kind, loops[0]), ListenOptions{Handler: answer("first"), Held: true})
				handed, err := first.Descriptors()
				if err != nil {
					t.Fatal(err)
				}
				second, err := start(t, kind, loops[1]).Listen("127.0.0.1:0", ListenOptions{Handler: answer("second"), Inherited: handed, Held: true})
				if err != nil {
					t.Fatal(err)
				}
				if second.Addr().String() != first.Addr().String() {
					t.Errorf("%s was handed over, and %s is accepted on", first.Addr(), second.Addr())
				}
				var waiting []net.Conn
				for range 32 { // enough that each socket has some
					waiting = append(waiting, dial(t, first))
				}
				for _, d := range handed {
					if err := d.Close(); err != nil {
						t.Fatal(err)
					}
				}
				if err := first.Close(); err != nil { // it has accepted nobody
					t.Fatal(err)
				}
				second.Begin()
				for i, c := range waiting {
					if who := answered(t, c); who != "second" {
						t.Fatalf("connection %d is answered by %q", i, who)
					}
				}
				again, err := second.Descriptors() // it can hand them on, each once
				if err != nil {
					t.Fatal(err)
				}
				if len(again) != len(handed) {
					t.Errorf("%d sockets were handed over, and %d are handed on", len(handed), len(again))
				}
				for _, d := range again {
					if err := d.Close(); err != nil {
						t.Fatal(err)
					}
				}
				if who := answered(t, dial(t, second)); who != "second" {
					t.Errorf("afterwards %q answers", who)
				}
			})
		}
	})
}

// TestInheritedOfTwoListeners: each listener accepts on the sockets that it was given, and on no other, whichever of the two is closed.
func TestInheritedOfTwoListeners(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		before, after := start(t, kind, 2), start(t, kind, 2)
		var old, now []*Listener
		for _, name := range []string{"http", "https"} {
			l := listen(t, before, ListenOptions{Handler: answer("old " + name)})
			handed, err := l.Descriptors()
			if err != nil {
				t.Fatal(err)
			}
			heir, err := after.Listen("127.0.0.1:0", ListenOptions{Handler: answer(name), Inherited: handed, Held: true})
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range handed {
				if err := d.Close(); err != nil {
					t.Fatal(err)
				}
			}
			old, now = append(old, l), append(now, heir)
		}
		for _, l := range old {
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
		}
		for _, l := range now {
			l.Begin()
		}
		for range 16 {
			for i, name := range []string{"http", "https"} {
				if who := answered(t, dial(t, now[i])); who != name {
					t.Fatalf("%s answers at the address of %s", who, name)
				}
			}
		}
		if err := now[0].Close(); err != nil {
			t.Fatal(err)
		}
		if who := answered(t, dial(t, now[1])); who != "https" {
			t.Errorf("%s answers at the address of https", who)
		}
		if c, err := net.Dial("tcp", now[0].Addr().String()); err == nil {
			_ = c.Close()
			t.Error("somebody has the address of the one that is closed")
		}
	})
}

// TestInheritedThatIsClosed: a descriptor that is closed already is an error, and what else was given stays its giver's.
func TestInheritedThatIsClosed(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		l := listen(t, start(t, kind, 2), ListenOptions{Handler: answer("x")})
		handed, err := l.Descriptors()
		if err != nil {
			t.Fatal(err)
		}
		broken := &Descriptor{fd: -1}
		if second, err := start(t, kind, 2).Listen("127.0.0.1:0", ListenOptions{Handler: answer("y"), Inherited: append(handed, broken)}); err == nil {
			t.Errorf("it accepts on %s", second.Addr())
		}
		for _, d := range handed {
			if at := d.Addr().String(); at != l.Addr().String() {
				t.Errorf("what was given is at %s now", at)
			}
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}
		for range 16 { // none waits in a socket that the failure left behind
			if who := answered(t, dial(t, l)); who != "x" {
				t.Errorf("%q answers", who)
			}
		}
	})
}
