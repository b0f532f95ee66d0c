package main

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"lbd/lb"
)

const (
	// logBytesMax is what waits, over all loops, for a writer that does not keep up: a third of a second of 100,000 requests/s.
	// Above it lines are dropped and counted; traffic never waits for a disk or a pipe.
	logBytesMax = 16 << 20
	// logLoopBytesMin is a loop's part of it at least.
	logLoopBytesMin = 256 << 10
	// logBlockBytes is when a block is full enough: lines wait in blocks, because a buffer that grows is copied while a loop
	// stands still.
	logBlockBytes = 32 << 10
	// logFlushInterval is how long a line may wait. A ticker costs less than a wake-up for each line.
	logFlushInterval = 50 * time.Millisecond
	// logReopenInterval is how often the file is looked for under its name: one that has been moved away is opened anew.
	logReopenInterval = time.Second
	// logCloseTimeout is how long the end of the process waits for the last lines.
	logCloseTimeout = time.Second
)

// accessLog writes one line for each exchange. A line is formatted on the loop that ends the exchange, into that loop's own
// blocks, and written by one goroutine.
type accessLog struct {
	format  logFormat
	path    string // empty: stdout
	log     *slog.Logger
	loops   []loopLines
	loopMax int // bytes that wait in each
	dropped atomic.Int64

	wake   chan struct{} // one slot: a loop's part is half full
	stop   chan struct{}
	closed chan struct{} // when the writer has ended

	// Only the writer.
	file     *os.File
	cut      bool  // the last write ended inside a line
	failing  bool  // the last write failed
	homeless bool  // the file has lost its name, and cannot be opened anew
	told     int64 // dropped, as last said
}

// loopLines are the lines of one loop that are not written yet.
type loopLines struct {
	mu      sync.Mutex // held for one line, and while blocks change hands
	open    []byte     // the block that is being filled
	full    [][]byte   // oldest first
	free    [][]byte   // empty
	waiting int        // bytes in open, full and those that are being written
	_       [64]byte
}

// openAccessLog is the access log that the command line asks for; nil: off.
func (c *config) openAccessLog(loops int, log *slog.Logger) (*accessLog, error) {
	if c.accessLog == "off" {
		return nil, nil
	}
	return openAccessLog(c.accessLog, c.accessLogFormat, loops, log)
}

// openAccessLog starts the writer. where is "stdout" or a path.
func openAccessLog(where string, format logFormat, loops int, log *slog.Logger) (*accessLog, error) {
	a := &accessLog{
		format: format, log: log, file: os.Stdout, loops: make([]loopLines, loops), loopMax: max(logBytesMax/loops, logLoopBytesMin),
		wake: make(chan struct{}, 1), stop: make(chan struct{}), closed: make(chan struct{}),
	}
	if where != "stdout" {
		a.path = where
		file, err := openLogFile(where)
		if err != nil {
			return nil, fmt.Errorf("access log: %w; give --access-log PATH, stdout or off", err)
		}
		a.file = file
	}
	go a.run()
	return a, nil
}

// openLogFile waits for nobody: a named pipe without a reader is an error.
func openLogFile(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY|syscall.O_NONBLOCK, 0o640)
}

// recorder is lb.Options.AccessLog: nil for a log that is off, so that lb does nothing for it.
func (a *accessLog) recorder() func(*lb.Record) {
	if a == nil {
		return nil
	}
	return a.record
}

func (a *accessLog) record(r *lb.Record) {
	l := &a.loops[r.Loop]
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting >= a.loopMax {
		a.dropped.Add(1)
		return
	}
	if len(l.open) >= logBlockBytes {
		l.full, l.open = append(l.full, l.open), nil
	}
	if l.open == nil {
		l.open = l.block()
	}
	before := len(l.open)
	l.open = a.format(l.open, r)
	added := len(l.open) - before
	l.waiting += added
	if half := a.loopMax / 2; l.waiting >= half && l.waiting-added < half {
		select {
		case a.wake <- struct{}{}:
		default:
		}
	}
}

// block returns an empty one. The caller holds mu.
func (l *loopLines) block() []byte {
	last := len(l.free) - 1
	if last < 0 {
		return make([]byte, 0, 2*logBlockBytes)
	}
	b := l.free[last]
	l.free = l.free[:last]
	return b
}

// take returns the blocks that hold lines.
func (l *loopLines) take() [][]byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.open) > 0 {
		l.full, l.open = append(l.full, l.open), nil
	}
	full := l.full
	l.full = nil
	return full
}

// giveBack takes the blocks of the last turn, written: as many as that has needed, so that memory follows the load.
func (l *loopLines) giveBack(written [][]byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, b := range written {
		l.waiting -= len(b)
		written[i] = b[:0]
	}
	l.free = written
}

// run is the writer.
func (a *accessLog) run() {
	defer close(a.closed)
	flush, reopen := time.NewTicker(logFlushInterval), time.NewTicker(logReopenInterval)
	defer flush.Stop()
	defer reopen.Stop()
	for {
		select {
		case <-flush.C:
			a.flush()
		case <-a.wake:
			a.flush()
		case <-reopen.C:
			a.reopenIfMoved()
			a.tellDropped()
		case <-a.stop:
			a.flush()
			return
		}
	}
}

// flush writes what has gathered.
func (a *accessLog) flush() {
	for i := range a.loops {
		full := a.loops[i].take()
		for _, lines := range full {
			a.write(lines)
		}
		if len(full) > 0 {
			a.loops[i].giveBack(full)
		}
	}
}

// write writes whole lines. What cannot be written is dropped and counted: it is said when that begins, not for each line.
func (a *accessLog) write(lines []byte) {
	if a.cut {
		if _, err := a.file.Write([]byte{'\n'}); err != nil {
			a.lose(lines, err)
			return
		}
	}
	n, err := a.file.Write(lines)
	if n > 0 {
		a.cut = lines[n-1] != '\n'
	}
	if err != nil {
		a.lose(lines[n:], err)
		return
	}
	a.failing = false
}

func (a *accessLog) lose(lines []byte, err error) {
	lost := int64(bytes.Count(lines, []byte{'\n'}))
	a.dropped.Add(lost)
	a.told += lost
	if !a.failing {
		a.failing = true
		a.log.Error("the access log cannot be written; lines are lost until it can", "err", err)
	}
}

// tellDropped says what was dropped because the writer did not keep up.
func (a *accessLog) tellDropped() {
	if n := a.dropped.Load(); n > a.told {
		a.log.Warn("access log lines were dropped: they come faster than they can be written", "lines", n-a.told)
		a.told = n
	}
}

// reopenIfMoved opens the file anew where another has its name or none has, so that rotation needs no signal.
func (a *accessLog) reopenIfMoved() {
	if a.path == "" {
		return
	}
	ours, err := a.file.Stat()
	if err == nil {
		if named, err := os.Stat(a.path); err == nil && os.SameFile(ours, named) {
			a.homeless = false
			return
		}
	}
	file, err := openLogFile(a.path)
	if err != nil {
		if !a.homeless {
			a.homeless = true
			a.log.Error("the access log cannot be opened anew; lines go to the file that had its name", "err", err)
		}
		return
	}
	_ = a.file.Close()
	a.file, a.cut, a.homeless = file, false, false
}

// close writes what is left; nothing is recorded any more. A pipe that nobody reads cannot hold up the end.
func (a *accessLog) close() {
	if a == nil {
		return
	}
	close(a.stop)
	timer := time.NewTimer(logCloseTimeout)
	defer timer.Stop()
	select {
	case <-a.closed:
		if a.path != "" {
			_ = a.file.Close()
		}
	case <-timer.C:
		a.log.Error("the last lines of the access log are lost: nobody reads it")
	}
}

// droppedLines counts the lines that were not written; also for a log that is off.
func (a *accessLog) droppedLines() int64 {
	if a == nil {
		return 0
	}
	return a.dropped.Load()
}
