package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// testLog is an access log, and what it complains about.
type testLog struct {
	*accessLog
	said *logged
}

func openTestLog(t *testing.T, path string, loops int) testLog {
	t.Helper()
	said := &logged{}
	a, err := openAccessLog(path, appendCommon, loops, slog.New(slog.NewTextHandler(said, nil)))
	if err != nil {
		t.Fatal(err)
	}
	return testLog{a, said}
}

// eventually waits for what the writer does at its next tick.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

func lines(t *testing.T, path string) []string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
}

// TestAccessLogFromManyLoops: every line is there, whole, and those of one loop are in order.
func TestAccessLogFromManyLoops(t *testing.T) {
	defer goleak.VerifyNone(t)
	const loops, each = 4, 2000
	path := filepath.Join(t.TempDir(), "access.log")
	a := openTestLog(t, path, loops)
	var wg sync.WaitGroup
	for loop := range loops {
		wg.Go(func() {
			r := fullRecord()
			for i := range each {
				r.Loop, r.Target, r.ResponseBytes = loop, []byte{'/', byte('0' + loop)}, int64(i)
				a.record(r)
			}
		})
	}
	wg.Wait()
	a.close()
	var next [loops]int
	for _, line := range lines(t, path) {
		for loop := range loops {
			if strings.Contains(line, `"GET /`+string(rune('0'+loop))+` `) {
				if !strings.HasSuffix(line, " 502 "+strconv.Itoa(next[loop])) {
					t.Fatalf("loop %d: %q, want number %d", loop, line, next[loop])
				}
				next[loop]++
			}
		}
	}
	if next != [loops]int{each, each, each, each} {
		t.Errorf("lines by loop: %v", next)
	}
	if a.droppedLines() != 0 {
		t.Errorf("%d dropped", a.droppedLines())
	}
}

func TestAccessLogAllocatesNothing(t *testing.T) {
	a := &accessLog{format: appendJSON, loops: make([]loopLines, 1), loopMax: 1 << 20}
	l, r := &a.loops[0], fullRecord()
	if n := testing.AllocsPerRun(100, func() {
		a.record(r)
		l.open, l.waiting = l.open[:0], 0
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestAccessLogReopens(t *testing.T) {
	defer goleak.VerifyNone(t)
	dir := t.TempDir()
	path, moved := filepath.Join(dir, "access.log"), filepath.Join(dir, "access.log.1")
	a := openTestLog(t, path, 1)
	r := fullRecord()
	write := func(target string) {
		r.Target = []byte(target)
		a.record(r)
	}
	write("/before")
	eventually(t, "the first line", func() bool { return len(readFile(path)) > 0 })
	if err := os.Rename(path, moved); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a new file", func() bool { _, err := os.Stat(path); return err == nil })
	write("/after")
	eventually(t, "the line in the new file", func() bool { return strings.Contains(readFile(path), "/after") })

	// A directory that is gone: the file stays in use until there is one again.
	if err := os.Rename(dir, dir+".gone"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir + ".gone") })
	eventually(t, "a complaint", func() bool { return a.said.count("cannot be opened anew") > 0 })
	write("/homeless")
	eventually(t, "the line in the old file", func() bool {
		return strings.Contains(readFile(filepath.Join(dir+".gone", "access.log")), "/homeless")
	})
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a new file in the new directory", func() bool { _, err := os.Stat(path); return err == nil })
	write("/home")
	a.close()
	if got := lines(t, path); len(got) != 1 || !strings.Contains(got[0], "/home ") {
		t.Errorf("%q", got)
	}
	if got := lines(t, filepath.Join(dir+".gone", "access.log.1")); len(got) != 1 || !strings.Contains(got[0], "/before ") {
		t.Errorf("%q", got)
	}
	if a.droppedLines() != 0 {
		t.Errorf("%d dropped", a.droppedLines())
	}
}

func readFile(path string) string {
	b, _ := os.ReadFile(path)
	return string(b)
}

// TestAccessLogThatNobodyReads: a full pipe costs lines, which are counted; it blocks neither requests nor the end.
func TestAccessLogThatNobodyReads(t *testing.T) {
	defer goleak.VerifyNone(t)
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openAccessLog(path, appendCommon, 1, slog.Default()); !errors.Is(err, syscall.ENXIO) {
		t.Fatalf("a pipe without a reader: %v, want ENXIO at once", err)
	}
	reader, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	a := openTestLog(t, path, 1)
	r := fullRecord()
	const records = 1 << 20
	for range records {
		a.record(r)
	}
	if a.droppedLines() == 0 || a.droppedLines() >= records {
		t.Errorf("%d of %d dropped", a.droppedLines(), records)
	}
	a.loops[0].mu.Lock()
	waiting := a.loops[0].waiting
	a.loops[0].mu.Unlock()
	if waiting > a.loopMax+len(appendCommon(nil, r)) {
		t.Errorf("%d bytes wait", waiting)
	}
	began := time.Now()
	a.close()
	if took := time.Since(began); took < logCloseTimeout || a.said.count("nobody reads it") != 1 {
		t.Errorf("ended after %v", took)
	}

	// Once somebody reads, every line that was kept is whole, and kept and dropped are all there were.
	go func() {
		<-a.closed
		a.file.Close()
	}()
	kept := int64(0)
	for s := bufio.NewScanner(reader); s.Scan(); kept++ {
		if !strings.HasSuffix(s.Text(), " 502 345") {
			t.Fatalf("line %d: %q", kept, s.Text())
		}
	}
	if kept+a.droppedLines() != records {
		t.Errorf("%d kept, %d dropped, %d recorded", kept, a.droppedLines(), records)
	}
}

// TestAccessLogSurvivesItsReader: a broken standard output is lost lines and no end of the process, which is what SIGPIPE
// would be.
func TestAccessLogSurvivesItsReader(t *testing.T) {
	if os.Getenv("LBD_TEST_BROKEN_STDOUT") != "" {
		prepareProcess(slog.New(slog.DiscardHandler))
		a := openTestLog(t, "stdout", 1)
		a.record(fullRecord())
		eventually(t, "a lost line", func() bool { return a.droppedLines() == 1 })
		a.close()
		fmt.Fprintln(os.Stderr, "still here")
		return
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	reader.Close()
	var said bytes.Buffer
	child := exec.Command(os.Args[0], "-test.run=^TestAccessLogSurvivesItsReader$")
	child.Env = append(os.Environ(), "LBD_TEST_BROKEN_STDOUT=1")
	child.Stdout, child.Stderr = writer, &said
	if err := child.Run(); err != nil || !strings.Contains(said.String(), "still here") {
		t.Errorf("%v: %s", err, &said)
	}
}

// TestAccessLogOnAFullDisk: said once, counted, and no reason to stop.
func TestAccessLogOnAFullDisk(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Log("this system has no full device")
		return
	}
	defer goleak.VerifyNone(t)
	a := openTestLog(t, "/dev/full", 1)
	r := fullRecord()
	for round := range int64(3) {
		a.record(r)
		eventually(t, "a lost line", func() bool { return a.droppedLines() == round+1 })
	}
	a.close()
	if n, full := a.said.count("\n"), a.said.count("no space left"); n != 1 || full != 1 {
		t.Errorf("%d complaints, %d of the full disk", n, full)
	}
}

// TestAccessLogAfterACutLine: what follows a line that was written in part begins on a line of its own.
func TestAccessLogAfterACutLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "access.log")
	file, err := openLogFile(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	a := &accessLog{file: file, log: slog.New(slog.DiscardHandler)}
	a.write([]byte("one\ntw"))
	a.lose([]byte("o\nthree\n"), syscall.ENOSPC)
	a.write([]byte("four\n"))
	if got := readFile(path); got != "one\ntw\nfour\n" || a.droppedLines() != 2 {
		t.Errorf("%q, %d dropped", got, a.droppedLines())
	}
}

func TestAccessLogOff(t *testing.T) {
	cfg := config{accessLog: "off"}
	a, err := cfg.openAccessLog(1, nil)
	if err != nil || a.recorder() != nil || a.droppedLines() != 0 {
		t.Errorf("%v, %v", a, err)
	}
	a.close()
}

func BenchmarkAccessLog(b *testing.B) {
	a, err := openAccessLog(os.DevNull, appendJSON, 1, slog.Default())
	if err != nil {
		b.Fatal(err)
	}
	defer a.close()
	r := fullRecord()
	b.ReportAllocs()
	for b.Loop() {
		a.record(r)
	}
	b.ReportMetric(float64(a.droppedLines())/float64(b.N), "dropped/op")
}
