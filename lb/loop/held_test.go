package loop

import (
	"io"
	"net"
	"testing"
	"time"
)

// TestHeldListener: who connects to a held listener waits for Begin; one that is closed before has accepted nobody, and what another has of its
// socket goes on.
func TestHeldListener(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			e, err := New(Options{Kind: kind, Loops: 2})
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			options := ListenOptions{Handler: func(_ *Task, c *Conn) {
				_, _ = c.Write([]byte("x"))
				_ = c.Close()
			}, Held: true}
			l, err := e.Listen("127.0.0.1:0", options)
			if err != nil {
				t.Fatal(err)
			}
			client, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			_ = client.SetDeadline(time.Now().Add(50 * time.Millisecond))
			if n, err := client.Read(make([]byte, 1)); n > 0 || err == nil {
				t.Fatal("a held listener accepts")
			}
			_ = client.SetDeadline(time.Now().Add(30 * time.Second))
			again, err := l.Descriptors()
			if err != nil {
				t.Fatal(err)
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			l.Begin() // too late, and no harm
			options.Inherited = again
			second, err := e.Listen("127.0.0.1:0", options)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range again {
				_ = d.Close()
			}
			second.Begin()
			second.Begin()
			if b, err := io.ReadAll(client); err != nil || string(b) != "x" {
				t.Errorf("who has waited gets %q, %v", b, err)
			}
			if _, err := e.Listen("127.0.0.1:0", ListenOptions{Handler: options.Handler, Held: true}); err != nil { // the engine closes it
				t.Fatal(err)
			}
		})
	}
}
