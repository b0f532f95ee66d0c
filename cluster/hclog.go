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

// repeated are raft's lines about nodes that do not answer and elections that come to nothing: several a second for as long as it lasts. When a node ceases to
// answer, when it answers again, and who leads, the node says once (links.note, pulse).
var repeated = map[string]bool{
	"failed to heartbeat to":                                     true,
	"failed to appendEntries to":                                 true,
	"failed to pipeline appendEntries":                           true,
	"failed to start pipeline replication to":                    true,
	"failed to send snapshot to":                                 true,
	"failed to install snapshot":                                 true,
	"failed to contact":                                          true,
	"failed to make requestVote RPC":                             true,
	"appendEntries rejected, sending older logs":                 true, // how a node that was away catches up, and the next one is its side of it
	"failed to get previous log":                                 true,
	"failed to decode incoming command":                          true, // a connection that ended or stood still
	"failed to flush response":                                   true,
	"failed to get log":                                          true, // it is in a snapshot, which is sent then
	"heartbeat timeout reached, starting election":               true,
	"Election timeout reached, restarting election":              true,
	"rejecting vote request since we have a leader":              true,
	"rejecting pre-vote request since we have a leader":          true,
	"rejecting pre-vote request since our last term is greater":  true,
	"rejecting pre-vote request since our last index is greater": true,
	"peer sees incorrect leader":                                 true,
}

type sink struct{ logger *slog.Logger }

// Accept is called by hclog for every line.
func (s sink) Accept(name string, level hclog.Level, msg string, args ...any) {
	to := slog.LevelDebug
	switch {
	case repeated[msg]:
	case level == hclog.Warn:
		to = slog.LevelInfo
	case level == hclog.Error:
		to = slog.LevelError
	}
	if s.logger.Enabled(context.Background(), to) {
		s.logger.Log(context.Background(), to, msg, append([]any{"component", name}, args...)...)
	}
}
