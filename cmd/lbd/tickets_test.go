package main

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
)

// A ticket key is opened as what it was sealed as, and as nothing else.
func TestTicketKeysAreSealed(t *testing.T) {
	k, err := openKeys(t.Context(), config{dataDir: t.TempDir()}, state.New("c"), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	under := k.ring.Sealer().KeyID()
	own, err := k.NewTicketKey("c", 7, under)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := k.openTicketKey("c", own)
	if err != nil || len(secret) != 32 || bytes.Contains(own.GetSealedKey(), secret) {
		t.Fatalf("%d bytes, %v", len(secret), err)
	}
	for what, change := range map[string]func(*raftv1.TicketKey){
		"of another epoch": func(k *raftv1.TicketKey) { k.Epoch = 8 }, "of another name": func(k *raftv1.TicketKey) { k.Name[0]++ },
	} {
		other := &raftv1.TicketKey{Epoch: own.GetEpoch(), Name: bytes.Clone(own.GetName()), SealedKey: own.GetSealedKey()}
		if change(other); err == nil {
			if _, err := k.openTicketKey("c", other); err == nil {
				t.Errorf("it is opened as one %s", what)
			}
		}
	}
	if _, err := k.openTicketKey("another", own); err == nil {
		t.Error("it is opened in another cluster")
	}
	foreign := append([]byte("name of 16 bytes"), bytes.Repeat([]byte{5}, 64)...)
	in, err := k.ImportTicketKey("c", foreign, under)
	if err != nil || !bytes.Equal(in.GetName(), foreign[:16]) {
		t.Fatal(in, err)
	}
	if secret, err := k.openTicketKey("c", in); err != nil || !bytes.Equal(secret, foreign[16:]) {
		t.Errorf("%x, %v", secret, err)
	}
	if _, err := k.ImportTicketKey("c", foreign[:79], under); err == nil || !strings.Contains(err.Error(), "48 or 80") {
		t.Errorf("79 bytes: %v", err)
	}
}

// The keys of the state are served without a revision, and one that cannot be opened does not take the others with it.
func TestTicketKeysAreFollowed(t *testing.T) {
	r := newRig(t)
	propose := func(cmd *raftv1.TicketKeysCommand) {
		t.Helper()
		cmd.Author, cmd.Time = "test", timestamppb.Now()
		if _, err := r.node.ProposeCommand(t.Context(), &raftv1.Command{Kind: &raftv1.Command_TicketKeys{TicketKeys: cmd}}); err != nil {
			t.Fatal(err)
		}
		r.followTicketKeys()
	}
	key := func(epoch int64) *raftv1.TicketKey {
		k, err := r.keys.NewTicketKey(r.node.State().ClusterID(), epoch, r.keys.ring.Sealer().KeyID())
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	propose(&raftv1.TicketKeysCommand{Change: &raftv1.TicketKeysCommand_Renew{Renew: &raftv1.RenewTicketKeys{Active: key(1), Staged: key(2)}}})
	issuing := r.ticketKeys.tickets.Current().Issuing(time.Now())
	if issuing == nil || issuing.Epoch != 1 || issuing.Secret == [32]byte{} {
		t.Fatalf("issuing under %v", issuing)
	}
	if got := r.TicketKeys(); got.GetEpoch() != 1 || got.GetProblem() != "" || got.GetDigest() != state.TicketKeysDigest(r.node.State().TicketKeys()) {
		t.Errorf("%v", got)
	}
	damaged := key(3)
	damaged.SealedKey[len(damaged.SealedKey)-1]++
	propose(&raftv1.TicketKeysCommand{Change: &raftv1.TicketKeysCommand_Rotate{Rotate: &raftv1.RotateTicketKeys{From: 1, Staged: damaged}}})
	got := r.TicketKeys()
	if got.GetEpoch() != 2 || !strings.Contains(got.GetProblem(), "epoch 3 cannot be opened") || got.GetDigest() == state.TicketKeysDigest(r.node.State().TicketKeys()) {
		t.Errorf("with a damaged key: %v", got)
	}
	if f := r.ticketKeysFinding(time.Now()); !strings.Contains(f.GetMessage(), "epoch 3") {
		t.Errorf("the doctor says %v", f)
	}
}

// Without a leader the last key goes on, and is told of; then none issues.
func TestTicketKeysThatNobodyRotates(t *testing.T) {
	began := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	s := &servedTicketKeys{epoch: 4, activated: began, until: began.Add(72 * time.Hour), interval: 12 * time.Hour}
	for _, c := range []struct {
		after time.Duration
		want  string
	}{
		{12 * time.Hour, ""},
		{12*time.Hour + ticketOverdue, ""},
		{12*time.Hour + ticketOverdue + time.Second, "no leader has made another one; it goes on until 2026-03-04T00:00:00Z"},
		{72*time.Hour - 1, "no leader has made another one"},
		{72 * time.Hour, "has reached max_key_age: no ticket is issued"},
	} {
		if got := s.lateness(began.Add(c.after)); !strings.Contains(got, c.want) || (c.want == "") != (got == "") {
			t.Errorf("after %s: %q, want %q", c.after, got, c.want)
		}
	}
}
