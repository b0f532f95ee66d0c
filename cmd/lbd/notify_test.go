package main

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"lbd/cluster/rpc"
	"lbd/lb/loop"
)

func TestWatchdogInterval(t *testing.T) {
	own := strconv.Itoa(os.Getpid())
	for _, c := range []struct {
		usec, pid string
		want      time.Duration
		fails     bool
	}{
		{"", "", 0, false},
		{"60000000", "", 15 * time.Second, false},
		{"60000000", own, 15 * time.Second, false},
		{"60000000", own + "1", 0, false},
		{"x", "", 0, true},
		{"0", "", 0, true},
		{"-4", own, 0, true},
	} {
		got, err := watchdogInterval(c.usec, c.pid)
		if got != c.want || (err != nil) != c.fails {
			t.Errorf("WATCHDOG_USEC=%s WATCHDOG_PID=%s: %v, %v", c.usec, c.pid, got, err)
		}
	}
}

// TestNotifier: what is told, and that a child of the process would not tell it.
func TestNotifier(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_USEC", "40000")
	n := openNotifier(slog.New(slog.DiscardHandler))
	defer n.close()
	if n == nil || n.every != 10*time.Millisecond {
		t.Fatalf("opened %+v", n)
	}
	if _, there := os.LookupEnv("NOTIFY_SOCKET"); there {
		t.Error("children would speak for this process")
	}
	hears := func(want string) {
		t.Helper()
		b := make([]byte, 512)
		_ = manager.SetReadDeadline(time.Now().Add(30 * time.Second))
		for {
			k, err := manager.Read(b)
			if err != nil {
				t.Fatalf("%q is not told: %v", want, err)
			}
			if string(b[:k]) == want {
				return
			}
		}
	}
	n.patience = 0
	var o observation
	refused := []rpc.Refusal{{Kind: "listeners", Name: "http"}}
	o.set(rpc.Progress{Serving: true, Revision: 1, Refused: refused})
	n.ready(o.get())
	hears("READY=1\nSTATUS=serves revision 1")
	o.set(rpc.Progress{Serving: true, Revision: 1})
	ctx, cancel := context.WithCancel(t.Context())
	done, alive := make(chan struct{}), make(chan bool)
	go func() {
		defer close(done)
		n.run(ctx, o.get, func(time.Duration) bool {
			select {
			case yes := <-alive:
				return yes
			case <-ctx.Done():
				return false
			}
		})
	}()
	alive <- true
	hears("WATCHDOG=1")
	alive <- false
	o.set(rpc.Progress{Serving: true, Revision: 2, Refused: refused})
	alive <- false // the message before this was of the one that was alive
	hears("STATUS=serves revision 2, 1 refused: see `lbctl status`")
	alive <- true
	hears("WATCHDOG=1")
	cancel()
	<-done
	n.stopping(time.Second)
	hears("STOPPING=1\nSTATUS=ends the requests under way\nEXTEND_TIMEOUT_USEC=16000000")
}

// TestPassingRefusal: what is over soon is not told, what lasts is.
func TestPassingRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := &toldManager{}
		n := &notifier{conn: told, log: slog.New(slog.DiscardHandler), patience: refusalPatience}
		var o observation
		o.set(rpc.Progress{Serving: true, Revision: 1})
		n.ready(o.get())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			n.run(ctx, o.get, nil)
		}()
		refused := []rpc.Refusal{{Kind: "certificates", Name: "shop"}}
		o.set(rpc.Progress{Serving: true, Revision: 2, Refused: refused})
		time.Sleep(refusalPatience - time.Second)
		o.set(rpc.Progress{Serving: true, Revision: 2})
		time.Sleep(time.Second)
		o.set(rpc.Progress{Serving: true, Revision: 2, Refused: refused})
		time.Sleep(refusalPatience - time.Second)
		o.set(rpc.Progress{Serving: true, Revision: 3, Refused: refused})
		time.Sleep(2 * time.Second)
		o.set(rpc.Progress{Serving: true, Revision: 3})
		synctest.Wait()
		cancel()
		<-done
		want := []string{
			"READY=1\nSTATUS=serves revision 1", "STATUS=serves revision 2", "STATUS=serves revision 3",
			"STATUS=serves revision 3, 1 refused: see `lbctl status`", "STATUS=serves revision 3",
		}
		if !slices.Equal(told.lines, want) {
			t.Errorf("told %q, want %q", told.lines, want)
		}
	})
}

// toldManager is a service manager that remembers what it is told.
type toldManager struct {
	net.Conn
	lines []string
}

func (m *toldManager) SetWriteDeadline(time.Time) error { return nil }

func (m *toldManager) Write(b []byte) (int, error) {
	m.lines = append(m.lines, string(b))
	return len(b), nil
}

// TestAlive: a node is alive while its loops are and run answers; once it is told to end, the loops alone count.
func TestAlive(t *testing.T) {
	r := newRig(t)
	never := make(chan struct{})
	if r.alive(never, 10*time.Millisecond) {
		t.Error("nobody runs, and it is alive")
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.run(ctx)
	}()
	if !r.alive(never, 30*time.Second) {
		t.Error("it runs, and is not alive")
	}
	cancel()
	<-done
	if !r.alive(ctx.Done(), time.Hour) {
		t.Error("it ends its requests, and is not alive")
	}
}

// TestAliveWithAStalledLoop: one loop that does not come back is enough.
func TestAliveWithAStalledLoop(t *testing.T) {
	r := newRig(t)
	engine, err := loop.New(loop.Options{Kind: loop.KindEpoll, Loops: 1})
	if err != nil {
		t.Fatal(err)
	}
	own := r.engine
	r.engine = engine
	defer func() {
		r.engine = own
		engine.Close()
	}()
	stopping := make(chan struct{})
	close(stopping)
	if !r.alive(stopping, time.Second) {
		t.Fatal("not alive at the beginning")
	}
	release := make(chan struct{})
	engine.GoOn(0, func(*loop.Task) { <-release })
	for deadline := time.Now().Add(30 * time.Second); r.alive(stopping, time.Second); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("alive with a stalled loop")
		}
	}
	close(release)
	for deadline := time.Now().Add(30 * time.Second); !r.alive(stopping, time.Second); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not alive when the loop is back")
		}
	}
}

func TestOwnLog(t *testing.T) {
	out := &logged{}
	own := newOwnLog(slog.LevelInfo, out)
	r := newRig(t)
	r.own, r.log = own, own.Logger
	own.Debug("unsaid")
	if before := r.SetLogLevel(slog.LevelDebug, "test"); before != slog.LevelInfo || r.LogLevel() != slog.LevelDebug {
		t.Errorf("before %v, now %v", before, r.LogLevel())
	}
	own.Debug("said")
	r.SetLogLevel(slog.LevelError, "test")
	own.Warn("unsaid")
	recent := strings.Join(r.own.recent.all(), "")
	if out.count("unsaid") > 0 || out.count("msg=said") != 1 || strings.Contains(recent, "unsaid") || !strings.Contains(recent, "msg=said") {
		t.Errorf("kept %s", recent)
	}
	past, _ := r.events.since(time.Time{})
	if last := past[len(past)-1]; last.GetType() != "log_level_set" || last.GetMessage() != "error, before debug, by test" {
		t.Errorf("event %v", last)
	}
}

// TestRecentLines: the newest lines are kept, within the bound, and all is taken.
func TestRecentLines(t *testing.T) {
	var r recentLines
	line := strings.Repeat("x", 1000) + "\n"
	for range 2000 {
		_, _ = r.Write([]byte(line))
	}
	_, _ = r.Write([]byte("last\n"))
	if r.bytes > recentBytesMax || r.bytes < recentBytesMax-len(line) || len(r.lines)*len(line) > recentBytesMax+len(line) {
		t.Errorf("%d bytes in %d lines", r.bytes, len(r.lines))
	}
	if all := r.all(); all[len(all)-1] != "last\n" {
		t.Error("the newest line is not there")
	}
	if n, err := r.Write(make([]byte, 3*recentBytesMax)); err != nil || n != 3*recentBytesMax || r.bytes > recentBytesMax {
		t.Errorf("one huge line: %d, %v, %d bytes kept", n, err, r.bytes)
	}
}
