package cluster

import (
	"testing"
	"time"
)

func TestRaftStats(t *testing.T) {
	n := open(t, config(t.TempDir()))
	if s := n.RaftStats(); s != (RaftStats{}) {
		t.Errorf("before start: %+v", s)
	}
	if err := n.Start(); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(30 * time.Second)
	var s RaftStats
	for s = n.RaftStats(); !s.Leads || s.Applied == 0 || s.Applied < s.Last; s = n.RaftStats() {
		if time.Now().After(deadline) {
			t.Fatalf("no leader that has applied its log: %+v", s)
		}
		time.Sleep(time.Millisecond)
	}
	if s.Term == 0 || s.Committed != s.Last || s.Applied != s.Last {
		t.Errorf("%+v", s)
	}
}
