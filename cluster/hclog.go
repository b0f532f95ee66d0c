package cluster

import (
	"context"
	"io"
	"log/slog"

	"github.com/hashicorp/go-hclog"
)

// raftLogger brings raft's log to slog. What raft calls information is its inner life, and a warning is what every
// start and every election has: each is one level less here.
func raftLogger(logger *slog.Logger) hclog.Logger {
	l := hclog.NewInterceptLogger(&hclog.LoggerOptions{Name: "raft", Level: hclog.Debug, Output: io.Discard})
	l.RegisterSink(sink{logger})
	return l
}

type sink struct{ logger *slog.Logger }

// Accept is called by hclog for every line.
func (s sink) Accept(name string, level hclog.Level, msg string, args ...any) {
	to := slog.LevelDebug
	switch level {
	case hclog.Warn:
		to = slog.LevelInfo
	case hclog.Error:
		to = slog.LevelError
	}
	if s.logger.Enabled(context.Background(), to) {
		s.logger.Log(context.Background(), to, msg, append([]any{"component", name}, args...)...)
	}
}
