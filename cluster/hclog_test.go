package cluster

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
)

// What raft says several times a second while a node is down is for the debug log; what it says of this node's own faults is not.
func TestRaftLogIsQuietAboutPeers(t *testing.T) {
	var out bytes.Buffer
	l := raftLogger(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelInfo})))
	for range 100 {
		l.Error("failed to heartbeat to", "peer", "n-1", "backoff time", "375ms", "error", errors.New("dial: refused"))
		l.Warn("failed to contact", "server-id", "n-1")
		l.Error("failed to make requestVote RPC", "target", "n-1")
	}
	if out.Len() > 0 {
		t.Errorf("told while a node is down:\n%s", out.String())
	}
	l.Error("failed to take snapshot", "error", errors.New("no space"))
	l.Warn("failed to contact quorum of nodes, stepping down")
	if text := out.String(); !strings.Contains(text, "level=ERROR msg=\"failed to take snapshot\"") || strings.Count(text, "\n") != 2 {
		t.Errorf("told:\n%s", text)
	}
}
