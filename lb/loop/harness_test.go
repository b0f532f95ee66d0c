package loop

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// TestMain is also the main of a child process that holds a port.
func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		holdPort()
		return
	}
	goleak.VerifyTestMain(m)
}

const childVariable = "LOOP_TEST_HOLD_PORT"

// holdPort listens, says where, and stays until its standard input ends.
func holdPort() {
	e, err := New(Options{Loops: 2})
	if err != nil {
		panic(err)
	}
	l, err := e.Listen("127.0.0.1:0", ListenOptions{Handler: echo})
	if err != nil {
		panic(err)
	}
	fmt.Println(l.Addr())
	io.Copy(io.Discard, os.Stdin)
}

// onEach runs a test on every engine that this system has.
func onEach(t *testing.T, test func(t *testing.T, kind string)) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) { test(t, kind) })
	}
}

// start makes an engine that is closed at the end of the test.
func start(t testing.TB, kind string, loops int) *Engine {
	t.Helper()
	e, err := New(Options{Kind: kind, Loops: loops, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

func listen(t testing.TB, e *Engine, opts ListenOptions) *Listener {
	t.Helper()
	l, err := e.Listen("127.0.0.1:0", opts)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// dial is a plain client with a deadline that no test should reach.
func dial(t testing.TB, l *Listener) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(patience))
	t.Cleanup(func() { c.Close() })
	return c.(*net.TCPConn)
}

const patience = 10 * time.Second

// within fails the test if ch brings nothing.
func within[T any](t testing.TB, ch <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		t.Fatalf("%s did not happen within %v", what, patience)
		panic("unreachable")
	}
}

// do runs fn as a task and waits for it.
func do(t testing.TB, e *Engine, fn func(t *Task)) {
	t.Helper()
	done := make(chan struct{})
	e.Go(func(task *Task) {
		defer close(done)
		fn(task)
	})
	within(t, done, "end of task")
}

// settle waits until the counters fulfil a condition.
func settle(t testing.TB, e *Engine, what string, ok func(Stats) bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(e.Stats()); {
		if time.Now().After(end) {
			t.Fatalf("%s: %+v", what, e.Stats())
		}
		time.Sleep(time.Millisecond)
	}
}

func connections(s Stats) (n int64) {
	for _, l := range s.Loops {
		n += l.Connections
	}
	return n
}

func sum(s Stats, of func(LoopStats) int64) (n int64) {
	for _, l := range s.Loops {
		n += of(l)
	}
	return n
}

// echo sends back what it reads.
func echo(t *Task, c *Conn) {
	b := t.Buffer()
	defer t.Release(b)
	for {
		n, err := c.Read(b)
		if err != nil {
			return
		}
		if _, err := c.Write(b[:n]); err != nil {
			return
		}
	}
}

func send(t testing.TB, c io.Writer, s string) {
	t.Helper()
	if _, err := io.WriteString(c, s); err != nil {
		t.Fatal(err)
	}
}

func expect(t testing.TB, c io.Reader, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
		t.Fatalf("got %q, %v, want %q", got, err, want)
	}
}

func expectEOF(t testing.TB, c io.Reader) {
	t.Helper()
	if n, err := c.Read(make([]byte, 1)); err != io.EOF {
		t.Fatalf("got %d bytes, %v, want EOF", n, err)
	}
}
