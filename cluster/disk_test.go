package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	raftv1 "lbd/proto/lbd/raft/v1"
)

// fill makes a database refuse to grow, as a full disk does; zero lets it grow again.
func fill(t *testing.T, d *database, full bool) {
	t.Helper()
	size := 0
	if full {
		info, err := os.Stat(d.path)
		if err != nil {
			t.Fatal(err)
		}
		size = int(info.Size())
	}
	// Within a transaction, because bbolt reads the limit under its lock; rolled back, because there may be no room.
	tx, err := d.bolt.Begin(true)
	if err != nil {
		t.Fatal(err)
	}
	d.bolt.MaxSize = size
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
}

// big is a change that makes a database grow.
func big(name string) *raftv1.ChangeCommand {
	change := pool(name, 1000)
	change.RequestId = name
	return change
}

// until waits for a condition that other goroutines bring about.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

// crowd uses up what room the file has, so that the next large change needs more.
func crowd(t *testing.T, n *Node, d *database) {
	t.Helper()
	info := func() int64 {
		i, err := os.Stat(d.path)
		if err != nil {
			t.Fatal(err)
		}
		return i.Size()
	}
	for i, size := 0, info(); info() == size; i++ {
		propose(t, n, big(fmt.Sprint("crowd", i)))
	}
}

func TestFullDiskUnderTheStateDelaysAnswers(t *testing.T) {
	n := start(t, config(t.TempDir()))
	fill(t, n.durable.database, true)
	before := n.State().Revision()
	answers := make(chan error)
	const changes = 20 // more than fit the pages that are free
	go func() {
		for i := range changes {
			_, err := n.Propose(context.Background(), big(fmt.Sprint("p", i)))
			answers <- err
		}
	}()
	answered := 0
	count := func() {
		for {
			select {
			case err := <-answers:
				if err != nil {
					t.Error(err)
				}
				answered++
			default:
				return
			}
		}
	}
	until(t, "the disk is reported", func() bool { count(); return len(n.Problems()) > 0 })
	if at := n.State().Revision(); at-before != int64(answered) {
		t.Errorf("%d revisions shown, %d answered", at-before, answered)
	}
	if !strings.Contains(n.Problems()[0], "state.db") {
		t.Errorf("problem %q", n.Problems()[0])
	}
	fill(t, n.durable.database, false)
	for ; answered < changes; answered++ {
		if err := <-answers; err != nil {
			t.Fatal(err)
		}
	}
	if len(n.Problems()) > 0 {
		t.Errorf("the disk works again, and still: %q", n.Problems())
	}
	if at := n.State().Revision(); at-before != changes {
		t.Errorf("%d revisions for %d changes", at-before, changes)
	}
}

func TestFullDiskUnderTheLogRefusesChanges(t *testing.T) {
	dir := t.TempDir()
	n := start(t, config(dir))
	crowd(t, n, n.log.database)
	fill(t, n.log.database, true)
	acknowledged := n.State().Revision()
	var failed *raftv1.ChangeCommand
	for i := 0; failed == nil; i++ {
		change := big(fmt.Sprint("p", i))
		_, err := n.Propose(t.Context(), change)
		switch {
		case err == nil:
			acknowledged++
		case errors.Is(err, ErrOutcomeUnknown):
			failed = change
		default:
			t.Fatal(err)
		}
	}
	until(t, "the disk is reported", func() bool { return len(n.Problems()) > 0 })
	if n.State().Revision() != acknowledged {
		t.Errorf("revision %d shown, %d acknowledged", n.State().Revision(), acknowledged)
	}
	until(t, "the refusal names the disk", func() bool {
		_, err := n.Propose(t.Context(), failed)
		return errors.Is(err, ErrNoLeader) && strings.Contains(err.Error(), "raft.db")
	})
	fill(t, n.log.database, false)
	until(t, "the same request succeeds", func() bool {
		_, err := n.Propose(t.Context(), failed)
		if err != nil && !errors.Is(err, ErrNoLeader) && !errors.Is(err, ErrOutcomeUnknown) {
			t.Fatal(err)
		}
		return err == nil
	})
	if n.State().Revision() != acknowledged+1 {
		t.Errorf("revision %d, want %d", n.State().Revision(), acknowledged+1)
	}
	until(t, "the disk is well", func() bool { return len(n.Problems()) == 0 })
	stop(t, n)
	if at := open(t, config(dir)).State().Revision(); at != acknowledged+1 {
		t.Errorf("revision %d after restart", at)
	}
}

// TestCloseWithAFullDisk: the answers that cannot be had are given up, nothing waits for ever, and what was in the log
// is there at the next start.
func TestCloseWithAFullDisk(t *testing.T) {
	dir := t.TempDir()
	n := start(t, config(dir))
	fill(t, n.durable.database, true)
	acknowledged := make(chan int64, 1)
	go func() {
		last := int64(0)
		for i := 0; ; i++ {
			res, err := n.Propose(context.Background(), big(fmt.Sprint("p", i)))
			if err != nil {
				acknowledged <- last
				return
			}
			last = res.Revision
		}
	}()
	until(t, "the disk is reported", func() bool { return len(n.Problems()) > 0 })
	stop(t, n)
	last := <-acknowledged
	if n.State().Revision() != last {
		t.Errorf("revision %d shown, %d acknowledged", n.State().Revision(), last)
	}
	n = start(t, config(dir))
	res := propose(t, n, pool("after", 1))
	if res.Revision != last+2 {
		t.Errorf("revision %d, want %d: the entry that was in the log, and this one", res.Revision, last+2)
	}
}

// writeUntilKilled is the child of TestKilledWriter: it prints each revision with its hash once it is acknowledged.
func writeUntilKilled(dir string) int {
	n, err := Open(config(dir))
	if err == nil {
		err = n.Start()
	}
	for i := 0; err == nil; i++ {
		change := pool("shop", 1+i%50)
		change.Message = fmt.Sprint(os.Getpid(), i)
		res, failed := n.Propose(context.Background(), change)
		if err = failed; err == nil && len(res.Changes) > 0 {
			r, _ := n.State().RevisionAt(res.Revision)
			fmt.Println(res.Revision, r.GetContentHash())
		}
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// TestKilledWriter kills a process that writes, at random moments, and looks for every revision that it was told of.
func TestKilledWriter(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	dir := t.TempDir()
	acknowledged := map[string]string{}
	for round := range 6 {
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), "LBD_TEST_WRITER="+dir)
		child.Stderr = os.Stderr
		out, err := child.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for range 1 + random.IntN(20) {
			if !lines.Scan() {
				t.Fatal("the writer ended by itself")
			}
			note(acknowledged, lines.Text())
		}
		time.Sleep(time.Duration(random.IntN(3000)) * time.Microsecond) // the random moment, not a wait for something
		if err := child.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		for lines.Scan() {
			note(acknowledged, lines.Text())
		}
		_ = child.Wait() // killed
		n, err := Open(config(dir))
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		for revision, hash := range acknowledged {
			var number int64
			fmt.Sscan(revision, &number)
			if r, ok := n.State().RevisionAt(number); !ok || r.GetContentHash() != hash {
				t.Errorf("round %d: revision %s was acknowledged and is not there", round, revision)
			}
		}
		stop(t, n)
	}
	if len(acknowledged) < 6 {
		t.Fatalf("only %d revisions were acknowledged", len(acknowledged))
	}
}

func note(acknowledged map[string]string, line string) {
	if revision, hash, ok := strings.Cut(line, " "); ok && len(hash) == 64 {
		acknowledged[revision] = hash
	}
}

// TestMissingRecordIsDamage: a record that vanished whole has no checksum to fail.
func TestMissingRecordIsDamage(t *testing.T) {
	dir := written(t)
	d, _, _, err := openDurable(dir + "/state.db")
	if err != nil {
		t.Fatal(err)
	}
	err = d.update(func(tx *bbolt.Tx) error {
		k, _ := tx.Bucket(recordBucket).Cursor().First()
		return tx.Bucket(recordBucket).Delete(k)
	})
	if err = errors.Join(err, d.close()); err != nil {
		t.Fatal(err)
	}
	if n, err := Open(config(dir)); err == nil {
		n.Close()
		t.Fatal("opened with a record missing")
	}
}
