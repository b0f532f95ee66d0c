package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"lbd/cluster/state"
)

// large is a database with a tree of several levels, long values, a bucket within a page and pages that became free.
func large(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "large.db")
	d, err := openDatabase(path, recordBucket, metaBucket)
	if err != nil {
		t.Fatal(err)
	}
	for round := range 3 {
		err = errors.Join(err, d.update(func(tx *bbolt.Tx) error {
			var err error
			for i := range 3000 {
				key := fmt.Appendf(nil, "key-%d-%d", round, i)
				size := i % 100
				if i%500 == 0 {
					size = 20_000
				}
				err = errors.Join(err, tx.Bucket(recordBucket).Put(key, make([]byte, size)))
				if round > 0 && i%3 == 0 {
					err = errors.Join(err, tx.Bucket(recordBucket).Delete(fmt.Appendf(nil, "key-%d-%d", round-1, i)))
				}
			}
			return err
		}))
	}
	if err := errors.Join(err, d.close()); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestWholePagesPass(t *testing.T) {
	if err := verifyPages(large(t)); err != nil {
		t.Fatal(err)
	}
	if err := verifyPages(filepath.Join(t.TempDir(), "none")); err != nil {
		t.Fatal(err)
	}
}

// TestDamagedPagesAreFoundOrHarmless: what passes, bbolt reads without a panic.
func TestDamagedPagesAreFoundOrHarmless(t *testing.T) {
	path := large(t)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	used, size := usedPages(good), os.Getpagesize()
	found := 0
	for round := range 80 {
		bad := bytes.Clone(good)
		at := used[random.IntN(len(used))]*size + random.IntN(64) // heads and first elements
		bad[at] ^= byte(1 << random.IntN(8))
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := verifyPages(path); errors.Is(err, state.ErrDamaged) {
			found++
			continue
		} else if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		d, err := openDatabase(path, recordBucket, metaBucket)
		if err != nil {
			t.Fatalf("round %d, byte %d: pages pass and do not open: %v", round, at, err)
		}
		err = d.view(func(tx *bbolt.Tx) error {
			return tx.Bucket(recordBucket).ForEach(func(_, _ []byte) error { return nil })
		})
		if err := errors.Join(err, d.close()); err != nil {
			t.Fatalf("round %d, byte %d: pages pass and cannot be read: %v", round, at, err)
		}
	}
	if found == 0 {
		t.Error("no damage was noticed")
	}
}
