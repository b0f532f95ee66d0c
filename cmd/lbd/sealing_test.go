package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cluster/rpc"
	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
	"lbd/tls/seal"
)

// sealedState has a certificate, in the present or only in the history, under the keys of a new folder.
func sealedState(t *testing.T, deleted bool) (config, keys, *state.State) {
	t.Helper()
	cfg := config{dataDir: t.TempDir()}
	k, err := openKeys(t.Context(), cfg, state.New("c"), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	m, err := k.selfSignedMaterial("c", &lbdv1.Certificate{Name: "a", Source: &lbdv1.Certificate_SelfSigned{SelfSigned: &lbdv1.CertificateSelfSigned{Hosts: []string{"a.test"}}}})
	if err != nil {
		t.Fatal(err)
	}
	st := state.New("c")
	change := func(c *raftv1.ChangeCommand) {
		t.Helper()
		c.Owner, c.Time = "web", timestamppb.Now()
		next, res := st.Apply(&raftv1.Command{Kind: &raftv1.Command_Change{Change: c}})
		if res.Err != nil {
			t.Fatal(res.Err)
		}
		st = next
	}
	change(&raftv1.ChangeCommand{Upserts: []*raftv1.StoredResource{{Material: m, Resource: &lbdv1.Resource{Spec: &lbdv1.Resource_Certificate{
		Certificate: &lbdv1.Certificate{Name: "a", Source: &lbdv1.Certificate_Pem{Pem: &lbdv1.CertificatePem{}}},
	}}}}})
	if deleted {
		change(&raftv1.ChangeCommand{Deletes: []string{"certificates/a"}})
	}
	return cfg, k, st
}

// TestOpenKeys: a node starts with the keys that it needs, or says which and where.
func TestOpenKeys(t *testing.T) {
	quiet := slog.New(slog.DiscardHandler)
	cfg, k, st := sealedState(t, false)
	path := filepath.Join(cfg.dataDir, sealKeyFile)
	if again, err := openKeys(t.Context(), cfg, st, quiet); err != nil || again.ring.Sealer().KeyID() != k.ring.Sealer().KeyID() {
		t.Errorf("a restart: %v", err)
	}
	if err := os.Rename(path, path+".away"); err != nil {
		t.Fatal(err)
	}
	if _, err := openKeys(t.Context(), cfg, st, quiet); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "put it back from a copy") {
		t.Errorf("without the file: %v", err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("a new key was made")
	}
	if _, err := seal.LoadOrCreate(path); err != nil {
		t.Fatal(err)
	}
	if _, err := openKeys(t.Context(), cfg, st, quiet); err == nil || !strings.Contains(err.Error(), k.ring.Sealer().KeyID()) || !strings.Contains(err.Error(), path) {
		t.Errorf("with another key: %v", err)
	}
	cfg.sealKey = "file:" + path + ".away"
	if _, err := openKeys(t.Context(), cfg, st, quiet); err != nil {
		t.Errorf("from elsewhere: %v", err)
	}
	// What only the history has is no reason not to serve.
	cfg, _, st = sealedState(t, true)
	path = filepath.Join(cfg.dataDir, sealKeyFile)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := seal.LoadOrCreate(path); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	if _, err := openKeys(t.Context(), cfg, st, slog.New(slog.NewTextHandler(&log, nil))); err != nil || !strings.Contains(log.String(), "cannot be rolled back to") {
		t.Errorf("history alone: %v, log %q", err, log.String())
	}
}

// TestKeysRewrap: what the cluster seals opens after a rotation, by the binding that the state knows.
func TestKeysRewrap(t *testing.T) {
	_, k, st := sealedState(t, false)
	old := k.ring.Sealer().KeyIDs()
	staged, err := k.StageSealKey(t.Context())
	if err == nil {
		err = k.ActivateSealKey(staged)
	}
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for secret := range st.Secrets() {
		n++
		sealed, err := k.Rewrap("c", secret, staged)
		if err != nil {
			t.Fatal(err)
		}
		if err := k.RetireSealKey(old[0]); err != nil {
			t.Fatal(err)
		}
		stored, _ := st.Get(state.Certificates, "a")
		m := &raftv1.CertificateMaterial{Chain: stored.GetMaterial().GetChain(), PublicKeySha256: stored.GetMaterial().GetPublicKeySha256(), SealedKey: sealed}
		if _, err := k.open("c", "a", m); err != nil {
			t.Error(err)
		}
		reseal, err := k.Resealer(nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := reseal("c", "d", secret); err == nil {
			t.Error("opened without its key")
		} else if unknown := new(rpc.SealKeyError); !errors.As(err, &unknown) || unknown.ID != old[0] {
			t.Errorf("without its key: %v", err)
		}
	}
	if n != 1 {
		t.Errorf("%d secrets", n)
	}
	if _, err := k.open("c", "a", &raftv1.CertificateMaterial{}); err == nil || err.Error() != "its key was purged" {
		t.Errorf("a purged key: %v", err)
	}
}

func TestSealKeyFlag(t *testing.T) {
	for text, want := range map[string]string{"": "", "credential:lbd-seal": "", "command:/bin/keys --all": "", "vault:lbd": "--seal-key", "command:": "--seal-key"} {
		var f flags
		c := &cobra.Command{}
		f.register(c)
		if err := c.ParseFlags([]string{"--data-dir", t.TempDir(), "--control", "off", "--seal-key", text}); err != nil {
			t.Fatal(err)
		}
		cfg, err := f.config()
		if want == "" && (err != nil || cfg.sealKey != text) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, %q", text, err, cfg.sealKey)
		}
	}
}

// TestSealFault: what the disk or the operator has to put right is no fault of lbd.
func TestSealFault(t *testing.T) {
	var source *rpc.SealSourceError
	var full *rpc.SealFullError
	var disk *rpc.SealDiskError
	dir := t.TempDir()
	for _, c := range []struct {
		err  error
		want any
	}{
		{fmt.Errorf("stage: %w", seal.ErrNotWritable), &source},
		{fmt.Errorf("stage: %w", seal.ErrFull), &full},
		{fmt.Errorf("write: %w", os.Rename(filepath.Join(dir, "a"), filepath.Join(dir, "b"))), &disk},
		{fmt.Errorf("write: %w", os.WriteFile(dir, nil, 0o600)), &disk},
	} {
		if got := sealFault(c.err); !errors.As(got, c.want) {
			t.Errorf("%v becomes %T", c.err, got)
		}
	}
	if got := sealFault(io.EOF); got != io.EOF || sealFault(nil) != nil {
		t.Errorf("another error becomes %v", got)
	}
}
