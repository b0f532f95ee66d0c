package cluster

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"lbd/cluster/state"
)

var voteKey = []byte("LastVoteCand")

func vote(t *testing.T, path string) *votes {
	t.Helper()
	v, err := openVotes(path, &faults{logger: discard()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.close() })
	return v
}

// voted is a file with the term 7 and a vote for "b".
func voted(t *testing.T) (path string, content []byte) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "votes")
	v := vote(t, path)
	err := errors.Join(v.found("n-0000000000000000"), v.SetUint64(termKey, 7), v.Set(voteKey, []byte("b")))
	if err != nil {
		t.Fatal(err)
	}
	content, err = os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return path, content
}

func wantVote(t *testing.T, v *votes, term uint64, candidate string) {
	t.Helper()
	gotTerm, err := v.GetUint64(termKey)
	got, err2 := v.Get(voteKey)
	if gotTerm != term || string(got) != candidate || err != nil || err2 != nil {
		t.Fatalf("term %d, vote %q, %v, %v; want %d, %q", gotTerm, got, err, err2, term, candidate)
	}
}

func TestVotesAreKept(t *testing.T) {
	path, _ := voted(t)
	v := vote(t, path)
	wantVote(t, v, 7, "b")
	if v.node != "n-0000000000000000" {
		t.Errorf("node %q", v.node)
	}
	if n, err := v.GetUint64([]byte("never")); n != 0 || err != nil {
		t.Errorf("unset: %d, %v", n, err)
	}
	if _, err := v.GetUint64(voteKey); !errors.Is(err, state.ErrDamaged) {
		t.Errorf("one byte taken for a number: %v", err)
	}
	if err := v.Set(voteKey, make([]byte, slotBytes)); err == nil {
		t.Error("stored more than a slot holds")
	}
	before := v.sequence
	if err := v.SetUint64(termKey, 7); err != nil || v.sequence != before {
		t.Errorf("the same term was written again: %v", err)
	}
	if err := v.SetUint64(termKey, 8); err != nil {
		t.Fatal(err)
	}
	wantVote(t, vote(t, path), 8, "b")
}

// TestOneDamagedSlotLosesNothing: neither slot holds what the other does not.
func TestOneDamagedSlotLosesNothing(t *testing.T) {
	path, content := voted(t)
	for slot := range 2 {
		for i := range 64 {
			bad := bytes.Clone(content)
			bad[slot*slotBytes+i] ^= 0x10
			if err := os.WriteFile(path, bad, 0o600); err != nil {
				t.Fatal(err)
			}
			wantVote(t, vote(t, path), 7, "b")
		}
	}
	both := bytes.Clone(content)
	both[10] ^= 1
	both[slotBytes+10] ^= 1
	if err := os.WriteFile(path, both, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openVotes(path, nil, nil); !errors.Is(err, state.ErrDamaged) {
		t.Fatalf("both slots damaged: %v", err)
	}
}

// TestTornWriteKeepsTheVoteBefore: the power fails while the first slot is written.
func TestTornWriteKeepsTheVoteBefore(t *testing.T) {
	path, before := voted(t)
	v := vote(t, path)
	if err := v.Set(voteKey, []byte("c")); err != nil {
		t.Fatal(err)
	}
	after, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for cut := range 64 {
		torn := append(append(bytes.Clone(after[:cut]), before[cut:slotBytes]...), before[slotBytes:]...)
		if err := os.WriteFile(path, torn, 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := vote(t, path).Get(voteKey)
		if err != nil || string(got) != "b" && string(got) != "c" {
			t.Fatalf("cut at %d: vote %q, %v", cut, got, err)
		}
	}
}

// TestTermThatCannotBeStored: raft would panic on the error, so its goroutine waits, and ends when the node closes.
func TestTermThatCannotBeStored(t *testing.T) {
	closing := make(chan struct{})
	f := &faults{logger: discard()}
	v, err := openVotes(filepath.Join(t.TempDir(), "votes"), f, closing)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(v.found("n-0000000000000000"), v.SetUint64(termKey, 1)); err != nil {
		t.Fatal(err)
	}
	v.running.Store(true)
	if err := v.close(); err != nil { // every use is an error from here on
		t.Fatal(err)
	}
	if err := v.Set(voteKey, []byte("b")); err == nil {
		t.Error("a vote that cannot be stored was taken for stored")
	}
	ended := make(chan bool, 1)
	go func() {
		returned := false
		defer func() { ended <- returned }()
		_ = v.SetUint64(termKey, 2)
		returned = true
	}()
	until(t, "the disk is reported", func() bool { return len(f.list()) > 0 })
	close(closing)
	if <-ended {
		t.Error("a term that cannot be stored was taken for stored")
	}
	wantVote(t, v, 1, "")
}
