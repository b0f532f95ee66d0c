package rpc

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"strings"
	"testing"
	"time"

	lbdv1 "lbd/proto/lbd/v1"
)

// warns checks a change's only warning; want "" is none.
func warns(t *testing.T, what string, all []*lbdv1.Violation, field, want string) {
	t.Helper()
	switch {
	case want == "" && len(all) == 0:
	case want != "" && len(all) == 1 && all[0].GetField() == field && all[0].GetDescription() == want:
	default:
		t.Errorf("%s: warnings %v, want %s: %q", what, all, field, want)
	}
}

// A document that was not told of a rotation undoes it: not without a word.
func TestOlderLeaf(t *testing.T) {
	r := newRig(t)
	old := identityFor(t, now.Add(-48*time.Hour), now.Add(48*time.Hour), "a.example")
	next := newIdentity(t, "a.example")
	rotate := func(id identity) []*lbdv1.Violation {
		t.Helper()
		answer, err := r.certs.Rotate(r.ctx(), &lbdv1.RotateRequest{Name: "a", ChainPem: id.chain, KeyPem: id.key})
		if err != nil {
			t.Fatal(err)
		}
		return answer.GetWarnings()
	}
	const field, older = `certificates["a"].pem.chain`, "the leaf is older than the stored one (not before 2026-11-28T12:00:00Z, stored in revision 2: not before 2026-11-30T11:00:00Z)"
	document := pemCertificate("a", old.chain, old.key)
	warns(t, "the first", r.mustApply(owner("web"), document).GetWarnings(), "", "")
	warns(t, "a newer one", rotate(next), "", "")
	shown, err := r.diff(r.request(owner("web"), document))
	if err != nil {
		t.Fatal(err)
	}
	remedy := older + ": name the new file, or set `managed_externally`"
	warns(t, "what an older one would change", shown.GetWarnings(), field, remedy)
	warns(t, "an older one", r.mustApply(owner("web"), document).GetWarnings(), field, remedy)
	warns(t, "what is stored", r.mustApply(owner("web"), document).GetWarnings(), "", "")
	rotate(next)
	warns(t, "an older one by hand", rotate(old), "chain_pem", strings.Replace(older, "revision 2", "revision 4", 1))
}

// issued is a leaf that an authority has signed; whole is whether the chain has the authority.
func issued(t *testing.T, key crypto.Signer, usage x509.ExtKeyUsage, whole bool) identity {
	t.Helper()
	authorityKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "leaf"}, DNSNames: []string{"a.example"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{usage},
	}
	var pair KeyPair
	add := func(template *x509.Certificate, public any) {
		der, err := x509.CreateCertificate(rand.Reader, template, authority, public, authorityKey)
		if err != nil {
			t.Fatal(err)
		}
		pair.Chain = append(pair.Chain, der)
	}
	add(leaf, key.Public())
	if whole {
		add(authority, authorityKey.Public())
	}
	if pair.Key, err = x509.MarshalPKCS8PrivateKey(key); err != nil {
		t.Fatal(err)
	}
	return identityOf(t, pair)
}

// What many clients refuse is told when it is stored, and not each time that it is applied again.
func TestUnwelcomeLeaf(t *testing.T) {
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	const missing = "the issuer `CN=authority` is missing: clients that do not know it cannot verify the leaf; append its certificate, unless it is a root that they have"
	for _, test := range []struct {
		what, want string
		id         identity
	}{
		{"a whole chain", "", issued(t, ec, x509.ExtKeyUsageServerAuth, true)},
		{"a leaf alone", missing, issued(t, ec, x509.ExtKeyUsageServerAuth, false)},
		{"Ed25519", "the leaf has an Ed25519 key, which browsers refuse: take ECDSA on P-256", issued(t, ed, x509.ExtKeyUsageServerAuth, true)},
		{"for backends", "", issued(t, ed, x509.ExtKeyUsageClientAuth, false)},
	} {
		r := newRig(t)
		document := pemCertificate("a", test.id.chain, test.id.key)
		warns(t, test.what, r.mustApply(owner("web"), document).GetWarnings(), `certificates["a"].pem.chain`, test.want)
		warns(t, test.what+", again", r.mustApply(owner("web"), document).GetWarnings(), "", "")
	}
	r := newRig(t)
	whole := issued(t, ec, x509.ExtKeyUsageServerAuth, true)
	r.mustApply(owner("web"), pemCertificate("a", whole.chain, whole.key))
	leaf, _, _ := strings.Cut(whole.chain[1:], "-----BEGIN")
	answer := r.mustApply(owner("web"), pemCertificate("a", whole.chain[:1]+leaf, ""))
	warns(t, "the stored leaf without its issuer", answer.GetWarnings(), `certificates["a"].pem.chain`, missing)
}

// A key file without content is not the key that was left out.
func TestEmptyKey(t *testing.T) {
	r := newRig(t)
	id := newIdentity(t, "a.example")
	r.mustApply(owner("web"), pemCertificate("a", id.chain, id.key))
	document := pemCertificate("a", id.chain, "")
	document.GetPem().Key = inline("")
	_, err := r.apply(owner("web"), document)
	if f := failureOf(t, err); len(f.fields) != 1 || !strings.HasPrefix(f.fields[`certificates["a"].pem.key`], "is empty") {
		t.Errorf("an empty key: %v", f)
	}
}

// Whoever stores what nobody will see reads which certificate is shown in its place, and for which names.
func TestRotateShadowed(t *testing.T) {
	r := newRig(t)
	newer := newIdentity(t, "a.example", "b.example")
	older := identityFor(t, now.Add(-48*time.Hour), now.Add(48*time.Hour), "b.example", "a.example")
	wider := identityFor(t, now.Add(-48*time.Hour), now.Add(48*time.Hour), "b.example", "c.example")
	r.mustApply(owner("web"), pemCertificate("newer", newer.chain, newer.key))
	add := func(name string, id identity) string {
		t.Helper()
		answer, err := r.certs.Rotate(r.ctx(), &lbdv1.RotateRequest{Name: name, Create: true, Owner: "web", ChainPem: id.chain, KeyPem: id.key})
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, w := range answer.GetWarnings() {
			all = append(all, w.GetDescription())
		}
		return strings.Join(all, "\n")
	}
	want := "is for `b.example`, `a.example` with a key of type ECDSA, as certificate `newer` is: of those that are valid the newest is served: `newer`, which begins at 2026-11-30T11:00:00Z\n" +
		"is shown to no client that asks for one of its names: others are, as the warnings before this one say"
	if got := add("older", older); got != want {
		t.Errorf("all names shadowed:\n%s\nwant:\n%s", got, want)
	}
	if got := add("wider", wider); !strings.Contains(got, "`newer`, which begins") || !strings.Contains(got, "`older`, the first by name of two that begin at 2026-11-28") ||
		strings.Contains(got, "no client") {
		t.Errorf("one name is its own:\n%s", got)
	}
	newest := identityFor(t, now.Add(-time.Minute), now.Add(time.Hour), "a.example")
	if got := add("newest", newest); !strings.Contains(got, "this one, which begins at 2026-11-30T11:59:00Z") || strings.Contains(got, "no client") {
		t.Errorf("it shadows others:\n%s", got)
	}
}

// What operators have said of a document's pools is shown, also where the document changes nothing.
func TestDiffOverrides(t *testing.T) {
	r := newRig(t)
	r.mustApply(owner("web"), pool("shop", "192.0.2.1:80"), pool("other", "192.0.2.1:80"))
	for _, name := range []string{"shop", "other"} {
		if _, err := r.backends.SetWeight(r.ctx(), &lbdv1.SetWeightRequest{Pool: name, Address: "192.0.2.1:80", Weight: 3}); err != nil {
			t.Fatal(err)
		}
	}
	shown, err := r.diff(r.request(owner("web"), pool("shop", "192.0.2.1:80")))
	if err != nil {
		t.Fatal(err)
	}
	if o := shown.GetOverrides(); len(shown.GetChanges()) != 0 || len(o) != 1 || o[0].GetPool() != "shop" {
		t.Errorf("difference %v, want no change and the override of the document's pool", shown)
	}
}
