package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cluster/rpc"
	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
)

func testNodeKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := openNodeKey(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// Several who open it at once make one key. One that others may use, or that is damaged, is refused, and never made anew.
func TestNodeKey(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	var made sync.WaitGroup
	pins := make([]string, 8)
	for i := range pins {
		made.Go(func() {
			key, err := openNodeKey(dir)
			if err != nil {
				t.Error(err)
				return
			}
			pins[i] = nodeKeyPin(key)
		})
	}
	made.Wait()
	for _, pin := range pins {
		if pin != pins[0] || !strings.HasPrefix(pin, "sha256:") {
			t.Errorf("keys %v", pins)
		}
	}

	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 1 {
		t.Fatalf("%v, %v", files, err)
	}
	if info, err := files[0].Info(); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if err := os.Chmod(filepath.Join(dir, "node.key"), 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := openNodeKey(dir); err == nil || !strings.Contains(err.Error(), "mode 0640 lets others use it") {
		t.Errorf("a key for a group: %v", err)
	}
	if err := errors.Join(os.Remove(filepath.Join(dir, "node.key")), os.WriteFile(filepath.Join(dir, "node.key"), []byte("x"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := openNodeKey(dir); err == nil || !strings.Contains(err.Error(), "put it back from a copy") {
		t.Errorf("a damaged key: %v", err)
	}
}

// Another authority is proven by the pin of the first as well, unless that one is not to be believed any more.
func TestNextAuthority(t *testing.T) {
	r := newRig(t)
	a := newAuthority(r.node, r.keys, testNodeKey(t), r.log, []string{"edge-1"})
	if own := a.identity(); len(own.Certificate) != 1 || own.Leaf.CheckSignatureFrom(own.Leaf) == nil {
		t.Errorf("what it shows before there is an authority: %d certificates", len(own.Certificate))
	}
	if err := a.renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	first, _ := r.node.State().Authority()
	put := func(next *raftv1.Authority) {
		t.Helper()
		present, _ := r.node.State().Authority()
		cmd := &raftv1.AuthorityCommand{Authority: next, Time: timestamppb.New(time.Now()), ReplacesSha256: sum256(present.GetCertificate()), Author: "test"}
		if _, err := r.node.ProposeCommand(t.Context(), &raftv1.Command{Kind: &raftv1.Command_Authority{Authority: cmd}}); err != nil {
			t.Fatal(err)
		}
		if !a.due() {
			t.Error("with another authority no certificate is due")
		}
		if err := a.renew(t.Context()); err != nil {
			t.Fatal(err)
		}
		if a.due() {
			t.Error("the certificate is due at once")
		}
	}
	next, warning, err := a.Next(first, true, r.keys.ring.Sealer().KeyID())
	if err != nil || warning != "" {
		t.Fatalf("%q, %v", warning, err)
	}
	put(next)
	for what, root := range map[string][]byte{"the first": first.GetCertificate(), "the second": next.GetCertificate()} {
		if err := holds(a, root); err != nil {
			t.Errorf("by the pin of %s: %v", what, err)
		}
	}
	roots := [][]byte{first.GetCertificate(), next.GetCertificate()}
	for len(roots) < state.FormerAuthoritiesMax+3 {
		present, _ := r.node.State().Authority()
		if next, warning, err = a.Next(present, true, r.keys.ring.Sealer().KeyID()); err != nil || warning != "" {
			t.Fatalf("%q, %v", warning, err)
		}
		put(next)
		roots = append(roots, next.GetCertificate())
	}
	for i, root := range roots {
		switch kept, err := i >= len(roots)-1-state.FormerAuthoritiesMax, holds(a, root); {
		case kept && err != nil:
			t.Errorf("by the pin of authority %d of %d: %v", i+1, len(roots), err)
		case !kept && err == nil:
			t.Errorf("by the pin of authority %d of %d it holds for ever", i+1, len(roots))
		}
	}
	compromised, _, err := a.Next(next, false, r.keys.ring.Sealer().KeyID())
	if err != nil {
		t.Fatal(err)
	}
	put(compromised)
	if err := holds(a, compromised.GetCertificate()); err != nil {
		t.Error(err)
	}
	for what, root := range map[string][]byte{"the first": first.GetCertificate(), "the second": next.GetCertificate()} {
		if err := holds(a, root); err == nil {
			t.Errorf("by the pin of %s, which is compromised, it holds", what)
		}
	}
}

// holds says whether what the node shows is good for somebody who has the pin of that root.
func holds(a *authority, root []byte) error {
	shown := a.current.Load()
	options := x509.VerifyOptions{Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	for _, der := range shown.Certificate[1:] {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return err
		}
		options.Intermediates.AddCert(c)
		if rpc.PublicKeyPin(der) == rpc.PublicKeyPin(root) {
			options.Roots.AddCert(c)
		}
	}
	_, err := shown.Leaf.Verify(options)
	return err
}

// An authority of an older build may not sign another one: its pin is lost, and that is said.
func TestOldAuthorityVouchesForNone(t *testing.T) {
	r := newRig(t)
	a := newAuthority(r.node, r.keys, testNodeKey(t), r.log, nil)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := sign(template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := a.sealKey(der, key, r.keys.ring.Sealer().KeyID())
	if err != nil {
		t.Fatal(err)
	}
	next, warning, err := a.Next(&raftv1.Authority{Certificate: der, SealedKey: sealed}, true, r.keys.ring.Sealer().KeyID())
	if err != nil || len(next.GetFormer()) != 0 || !strings.Contains(warning, "cannot vouch") {
		t.Errorf("%v, %q, %v", next, warning, err)
	}
}

func sum256(b []byte) []byte {
	sum := sha256.Sum256(b)
	return sum[:]
}
