package rpc

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"errors"
	"math/big"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"lbd/cluster/state"
	lbdv1 "lbd/proto/lbd/v1"
)

func TestRotate(t *testing.T) {
	r := newRig(t)
	id, next := newIdentity(t, "a.example", "b.example"), newIdentity(t, "a.example")
	labelled := pemCertificate("a", id.chain, id.key)
	labelled.Labels = map[string]string{"team": "shop"}
	r.mustApply(owner("web"), labelled)
	r.observer.serials["a"] = id.serial

	answer, err := r.certs.Rotate(r.ctx(), &lbdv1.RotateRequest{Name: "a", ChainPem: next.chain, KeyPem: next.key, Message: "weekly"})
	if err != nil {
		t.Fatal(err)
	}
	c := answer.GetCertificate()
	if answer.GetRevision() != 2 || c.GetSerial() != next.serial || c.GetServedSerial() != id.serial || c.GetOwner() != "web" ||
		c.GetKeyType() != "ECDSA_P256" || strings.Join(c.GetHosts(), " ") != "a.example" || c.GetRevision() != 2 {
		t.Errorf("rotated: %v", answer)
	}
	if w := answer.GetWarnings(); len(w) != 1 || w[0].GetField() != "chain_pem" || !strings.Contains(w[0].GetDescription(), "no longer names b.example") {
		t.Errorf("warnings %v", w)
	}
	revision, _ := r.store.State().RevisionAt(2)
	if revision.GetOwner() != "web" || revision.GetMessage() != "weekly" || changesOf(revision.GetChanges()) != "update certificates/a" {
		t.Errorf("revision %v", revision)
	}
	stored, _ := r.store.State().Get(state.Certificates, "a")
	if stored.GetResource().GetCertificate().GetLabels()["team"] != "shop" {
		t.Error("the rotation lost the labels")
	}

	renewed := next.renew(t, "a.example") // a new certificate for the stored key
	sealed := stored.GetMaterial().GetSealedKey()
	answer, err = r.certs.Rotate(r.ctx(), &lbdv1.RotateRequest{Name: "a", ChainPem: renewed.chain})
	if err != nil {
		t.Fatal(err)
	}
	stored, _ = r.store.State().Get(state.Certificates, "a")
	if answer.GetCertificate().GetSerial() != renewed.serial || string(stored.GetMaterial().GetSealedKey()) != string(sealed) {
		t.Errorf("renewed under the stored key: %v", answer)
	}
}

func TestRotateRefuses(t *testing.T) {
	r := newRig(t)
	id, other := newIdentity(t, "a.example"), newIdentity(t, "a.example")
	expired := identityFor(t, now.AddDate(0, -2, 0), now.AddDate(0, -1, 0), "a.example")
	early := identityFor(t, now.AddDate(0, 1, 0), now.AddDate(0, 2, 0), "a.example")
	r.mustApply(owner("web"), pemCertificate("a", id.chain, id.key))
	for _, test := range []struct {
		what  string
		req   *lbdv1.RotateRequest
		code  codes.Code
		field string
	}{
		{"no name", &lbdv1.RotateRequest{}, codes.InvalidArgument, "name"},
		{"unknown", &lbdv1.RotateRequest{Name: "b", ChainPem: id.chain, KeyPem: id.key}, codes.NotFound, ""},
		{"exists", &lbdv1.RotateRequest{Name: "a", Create: true, Owner: "web", ChainPem: id.chain, KeyPem: id.key}, codes.AlreadyExists, ""},
		{"no owner", &lbdv1.RotateRequest{Name: "b", Create: true, ChainPem: id.chain, KeyPem: id.key}, codes.InvalidArgument, "owner"},
		{"create without content", &lbdv1.RotateRequest{Name: "b", Create: true, Owner: "web"}, codes.InvalidArgument, "chain_pem"},
		{"create without key", &lbdv1.RotateRequest{Name: "b", Create: true, Owner: "web", ChainPem: id.chain}, codes.InvalidArgument, "key_pem"},
		{"bad name", &lbdv1.RotateRequest{Name: "B b", Create: true, Owner: "web", ChainPem: id.chain, KeyPem: id.key}, codes.InvalidArgument, `certificates["B b"].name`},
		{"no content", &lbdv1.RotateRequest{Name: "a"}, codes.InvalidArgument, "chain_pem"},
		{"key alone", &lbdv1.RotateRequest{Name: "a", KeyPem: id.key}, codes.InvalidArgument, "chain_pem"},
		{"mismatch", &lbdv1.RotateRequest{Name: "a", ChainPem: id.chain, KeyPem: other.key}, codes.InvalidArgument, "key_pem"},
		{"other key stored", &lbdv1.RotateRequest{Name: "a", ChainPem: other.chain}, codes.InvalidArgument, "key_pem"},
		{"expired", &lbdv1.RotateRequest{Name: "a", ChainPem: expired.chain, KeyPem: expired.key}, codes.InvalidArgument, "chain_pem"},
		{"not yet valid", &lbdv1.RotateRequest{Name: "a", ChainPem: early.chain, KeyPem: early.key}, codes.InvalidArgument, "chain_pem"},
		{"no PEM", &lbdv1.RotateRequest{Name: "a", ChainPem: "rubbish", KeyPem: id.key}, codes.InvalidArgument, "chain_pem"},
		{"no key PEM", &lbdv1.RotateRequest{Name: "a", ChainPem: id.chain, KeyPem: "rubbish"}, codes.InvalidArgument, "key_pem"},
	} {
		_, err := r.certs.Rotate(r.ctx(), test.req)
		f := failureOf(t, err)
		if _, ok := f.fields[test.field]; f.code != test.code || test.field != "" && (!ok || len(f.fields) != 1) {
			t.Errorf("%s: %v, want %s of %q", test.what, f, test.code, test.field)
		}
	}
	if got := r.store.State().Revision(); got != 1 {
		t.Errorf("a refused rotation made revision %d", got)
	}
}

func TestRotateCreates(t *testing.T) {
	r := newRig(t)
	id := newIdentity(t, "a.example")
	req := &lbdv1.RotateRequest{Name: "a", Create: true, Owner: "web", ChainPem: id.chain, KeyPem: id.key, ValidateOnly: true}
	answer, err := r.certs.Rotate(r.ctx(), req)
	if err != nil || answer.GetCertificate().GetSerial() != id.serial || r.store.State().Revision() != 0 {
		t.Errorf("dry run: %v, %v, revision %d", answer, err, r.store.State().Revision())
	}
	req.ValidateOnly, req.RequestId = false, "id-1"
	if answer, err = r.certs.Rotate(r.ctx(), req); err != nil || answer.GetRevision() != 1 || answer.GetCertificate().GetOwner() != "web" {
		t.Errorf("created: %v, %v", answer, err)
	}
	if answer, err = r.certs.Rotate(r.ctx(), req); err != nil || answer.GetRevision() != 1 {
		t.Errorf("the retry: %v, %v", answer, err)
	}
}

func TestRotateSelfSigned(t *testing.T) {
	r := newRig(t)
	r.mustApply(owner("web"), selfSigned("s", "s.example"))
	before, _ := r.store.State().Get(state.Certificates, "s")
	dry, err := r.certs.Rotate(r.ctx(), &lbdv1.RotateRequest{Name: "s", ValidateOnly: true})
	if err != nil || r.store.State().Revision() != 1 || dry.GetCertificate().GetName() != "s" {
		t.Errorf("dry run: %v, %v", dry, err)
	}
	req := &lbdv1.RotateRequest{Name: "s", RequestId: "id-1"}
	answer, err := r.certs.Rotate(r.ctx(), req)
	if err != nil {
		t.Fatal(err)
	}
	after, _ := r.store.State().Get(state.Certificates, "s")
	if answer.GetRevision() != 2 || proto.Equal(before.GetMaterial(), after.GetMaterial()) || after.GetResource().GetCertificate().GetSelfSigned() == nil {
		t.Errorf("renewed: %v, stored %v", answer, after.GetResource())
	}
	again, err := r.certs.Rotate(r.ctx(), req)
	if err != nil || again.GetRevision() != 2 || again.GetCertificate().GetSerial() != answer.GetCertificate().GetSerial() {
		t.Errorf("the retry: %v, %v; the first: %v", again, err, answer)
	}
	if made, _ := r.keys.counts(); made != 2 {
		t.Errorf("%d pairs made, want 2: one at first, one for the rotation", made)
	}
	unchanged := r.mustApply(owner("web"), selfSigned("s", "s.example"))
	if len(unchanged.GetChanges()) != 0 {
		t.Error("the document, applied again, undid the rotation")
	}

	id := newIdentity(t, "s.example")
	answer, err = r.certs.Rotate(r.ctx(), &lbdv1.RotateRequest{Name: "s", ChainPem: id.chain, KeyPem: id.key})
	if err != nil || len(answer.GetWarnings()) != 1 || !strings.Contains(answer.GetWarnings()[0].GetDescription(), "change its documents too") {
		t.Errorf("from outside: %v, %v", answer, err)
	}

	r.mustApply(owner("web"), selfSigned("s", "s.example"))
	r.keys.fail = errors.New("no randomness")
	_, err = r.certs.Rotate(r.ctx(), &lbdv1.RotateRequest{Name: "s"})
	if f := failureOf(t, err); f.code != codes.Internal || !strings.Contains(f.message, "no randomness") {
		t.Errorf("a node that cannot make a key: %v", f)
	}
}

func TestCertificateStatus(t *testing.T) {
	r := newRig(t)
	id := newIdentity(t, "A.example", "*.a.example")
	r.mustApply(owner("web"), pemCertificate("a", id.chain, id.key), selfSigned("b", "b.example"))
	r.observer.serials["a"] = id.serial
	all, err := r.certs.GetStatus(r.ctx(), &lbdv1.CertificateServiceGetStatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if list := all.GetCertificates(); len(list) != 2 || list[0].GetName() != "a" || list[1].GetName() != "b" {
		t.Fatalf("status of all: %v", list)
	}
	one, err := r.certs.GetStatus(r.ctx(), &lbdv1.CertificateServiceGetStatusRequest{Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	c := one.GetCertificates()[0]
	if strings.Join(c.GetHosts(), " ") != "a.example *.a.example" || c.GetSerial() != id.serial || c.GetServedSerial() != id.serial ||
		c.GetIssuer() != "CN=test" || !strings.HasPrefix(c.GetFingerprint(), "sha256:") ||
		c.GetNotAfter().AsTime().Sub(c.GetNotBefore().AsTime()).Hours() != 25 || c.GetRevision() != 1 || c.GetOwner() != "web" {
		t.Errorf("status: %v", c)
	}
	_, err = r.certs.GetStatus(r.ctx(), &lbdv1.CertificateServiceGetStatusRequest{Name: "z"})
	if f := failureOf(t, err); f.code != codes.NotFound {
		t.Errorf("an unknown certificate: %v", f)
	}
}

func TestKeyTypeNames(t *testing.T) {
	rsaKey := &rsa.PublicKey{N: new(big.Int).Lsh(big.NewInt(1), 2047), E: 65537}
	for want, key := range map[string]any{
		"ECDSA_P256": &ecdsa.PublicKey{Curve: elliptic.P256()},
		"ECDSA_P384": &ecdsa.PublicKey{Curve: elliptic.P384()},
		"RSA_2048":   rsaKey,
		"ED25519":    ed25519.PublicKey{},
	} {
		if got := keyType(key); got != want {
			t.Errorf("%T: %s, want %s", key, got, want)
		}
	}
}
