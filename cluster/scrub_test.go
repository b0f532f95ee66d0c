package cluster

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// sealedCertificate has a sealed key of random bytes: nothing compresses them, and nothing else looks like them.
func sealedCertificate(name string) (change *raftv1.ChangeCommand, sealed []byte) {
	sealed = make([]byte, 200)
	_, _ = rand.Read(sealed)
	public := sha256.Sum256(sealed)
	stored := &raftv1.StoredResource{
		Resource: &lbdv1.Resource{Spec: &lbdv1.Resource_Certificate{Certificate: &lbdv1.Certificate{
			Name: name, Source: &lbdv1.Certificate_Pem{Pem: &lbdv1.CertificatePem{}},
		}}},
		Material: &raftv1.CertificateMaterial{Chain: [][]byte{{1}}, SealedKey: sealed, PublicKeySha256: public[:]},
	}
	return &raftv1.ChangeCommand{Owner: "web", Upserts: []*raftv1.StoredResource{stored}}, sealed
}

// holders are the files of a directory with a piece of the secret in them.
func holders(t *testing.T, dir string, secret []byte) (found []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		if bytes.Contains(content, secret[:24]) || bytes.Contains(content, secret[len(secret)-24:]) {
			found = append(found, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func command(t *testing.T, n *Node, cmd *raftv1.Command) state.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	res, err := n.ProposeCommand(ctx, cmd)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func purgeOf(name string) *raftv1.Command {
	return &raftv1.Command{Kind: &raftv1.Command_Purge{Purge: &raftv1.PurgeCommand{Author: "test", Time: timestamppb.Now(), Certificate: name}}}
}

// TestScrubLeavesNoCopy: a purged key is in no file of the directory, while changes go on, and a restart finds everything else.
func TestScrubLeavesNoCopy(t *testing.T) {
	c := config(t.TempDir())
	c.MaxPartBytes = 100 // so that the key is in parts, too
	n := start(t, c)
	change, secret := sealedCertificate("leaked")
	propose(t, n, change)
	keep, kept := sealedCertificate("kept")
	propose(t, n, keep)
	if err := n.raft.Snapshot().Error(); err != nil { // an older snapshot with the key
		t.Fatal(err)
	}
	propose(t, n, &raftv1.ChangeCommand{Owner: "web", Deletes: []string{"certificates/leaked"}})
	if err := n.Scrub(t.Context()); err != nil {
		t.Fatal(err)
	}
	if found := holders(t, c.Dir, secret); len(found) == 0 {
		t.Fatal("the history has no key: this test looks at nothing")
	}
	if res := command(t, n, purgeOf("leaked")); res.Count != 1 {
		t.Fatalf("%+v", res)
	}
	stopWriting, written := make(chan struct{}), make(chan int)
	go func() {
		i := 0
		for ; ; i++ {
			select {
			case <-stopWriting:
				written <- i
				return
			default:
				if _, err := n.Propose(context.Background(), pool("busy", 1+i%50)); err != nil && !errors.Is(err, ErrNoLeader) {
					t.Error(err)
				}
			}
		}
	}()
	for range 3 {
		if err := n.Scrub(t.Context()); err != nil {
			t.Fatal(err)
		}
		if found := holders(t, c.Dir, secret); len(found) > 0 {
			t.Errorf("the key is in %v", found)
		}
	}
	close(stopWriting)
	if <-written == 0 {
		t.Error("no change was made meanwhile")
	}
	if len(holders(t, c.Dir, kept)) == 0 {
		t.Error("another certificate's key is gone, too")
	}
	if err := n.Scrub(t.Context()); err != nil { // the log is empty now
		t.Fatal(err)
	}
	want := snapshotBytes(t, n.State())
	stop(t, n)
	if n = start(t, c); !bytes.Equal(snapshotBytes(t, n.State()), want) {
		t.Error("the state differs after a restart")
	}
	before := n.State().Revision()
	if res := propose(t, n, pool("after", 1)); res.Revision != before+1 {
		t.Errorf("revision %d after %d", res.Revision, before)
	}
	stop(t, n)
	if err := n.Scrub(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("a closed node scrubs: %v", err)
	}
}

// TestCompactThatWasCutOff: what it left beside is removed, and the database is the one before.
func TestCompactThatWasCutOff(t *testing.T) {
	dir := t.TempDir()
	n := start(t, config(dir))
	propose(t, n, pool("shop", 1))
	want := snapshotBytes(t, n.State())
	stop(t, n)
	left := filepath.Join(dir, "state.db.compact")
	if err := os.WriteFile(left, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	n = start(t, config(dir))
	if !bytes.Equal(snapshotBytes(t, n.State()), want) {
		t.Error("the state differs")
	}
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
}

// TestLargeRestore travels in parts.
func TestLargeRestore(t *testing.T) {
	c := config(t.TempDir())
	c.MaxPartBytes = 1000
	n := start(t, c)
	cmd := &raftv1.RestoreCommand{Author: "test", Time: timestamppb.Now(), RequestId: "r"}
	for _, name := range []string{"a", "b", "c"} {
		up := pool(name, 100).GetUpserts()[0]
		up.Resource.Owner, up.Resource.Revision = "web", 41
		cmd.Resources = append(cmd.Resources, up)
	}
	res := command(t, n, &raftv1.Command{Kind: &raftv1.Command_Restore{Restore: cmd}})
	if res.Revision != 42 || len(res.Changes) != 3 {
		t.Errorf("%+v", res)
	}
	if res := command(t, n, &raftv1.Command{Kind: &raftv1.Command_Restore{Restore: cmd}}); !res.Replayed || res.Revision != 42 {
		t.Errorf("retry: %+v", res)
	}
	if n.State().Revision() != 42 {
		t.Errorf("revision %d", n.State().Revision())
	}
}
