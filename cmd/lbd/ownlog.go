package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
)

// recentBytesMax bounds what of the node's own log stays in memory: some thousand lines, for who asks after the fact.
const recentBytesMax = 1 << 20

// ownLog is what the node says of itself: text on stderr, at a level that can be changed while it runs, and the last lines of it in
// memory.
type ownLog struct {
	*slog.Logger
	level  slog.LevelVar
	recent recentLines
}

func newOwnLog(level slog.Level, out io.Writer) *ownLog {
	l := &ownLog{}
	l.level.Set(level)
	// Memory comes first: who reads stderr may be gone.
	l.Logger = slog.New(slog.NewTextHandler(io.MultiWriter(&l.recent, out), &slog.HandlerOptions{Level: &l.level}))
	return l
}

// recentLines are the last lines of a log, each as it was written.
type recentLines struct {
	mu    sync.Mutex
	lines []string
	bytes int
}

// Write takes a line. It never fails.
func (r *recentLines) Write(p []byte) (int, error) {
	line := string(p[:min(len(p), recentBytesMax)])
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, line)
	r.bytes += len(line)
	for r.bytes > recentBytesMax {
		r.bytes -= len(r.lines[0])
		r.lines = r.lines[1:]
	}
	return len(p), nil
}

func (r *recentLines) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.lines)
}

// logLevels are the words of --log-level.
var logLevels = map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}

func parseLogLevel(word string) (slog.Level, error) {
	level, ok := logLevels[word]
	if !ok {
		return 0, fmt.Errorf("--log-level %q: want debug, info, warn or error", word)
	}
	return level, nil
}

// LogLevel implements rpc.Observer.
func (a *appliance) LogLevel() slog.Level {
	if a.own == nil {
		return slog.LevelInfo
	}
	return a.own.level.Level()
}

// SetLogLevel implements rpc.Observer.
func (a *appliance) SetLogLevel(level slog.Level, by string) (before slog.Level) {
	before = a.LogLevel()
	if a.own == nil {
		return before
	}
	a.own.level.Set(level)
	word, was := strings.ToLower(level.String()), strings.ToLower(before.String())
	a.events.add("log_level_set", "nodes/"+a.cfg.node, fmt.Sprintf("%s, before %s, by %s", word, was, by))
	a.log.Log(context.Background(), max(level, slog.LevelInfo), "log level set", "level", word, "before", was, "by", by)
	return before
}
