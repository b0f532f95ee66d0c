package state_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"strings"
	"sync"
	"testing"
	"time"

	"lbd/cluster/state"
	lbdv1 "lbd/proto/lbd/v1"
)

var madeCA = sync.OnceValues(func() (string, string) {
	key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Unix(4e9, 0), IsCA: true, BasicConstraintsValid: true,
		DNSNames: []string{"Shop.example.com"},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		panic(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		panic(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}))
})

func testCA(t *testing.T) string {
	t.Helper()
	ca, _ := madeCA()
	return ca
}

func TestTrustBundle(t *testing.T) {
	ca, key := madeCA()
	for name, c := range map[string]struct{ text, want string }{
		"one":       {ca, ""},
		"comments":  {"# one\n" + ca + "\n# two\n" + ca, ""},
		"empty":     {"", "holds no certificate"},
		"text":      {"no PEM", "holds no certificate"},
		"key":       {ca + key, "holds a private key"},
		"key first": {key + ca, "holds a private key"},
		"bad key":   {ca + strings.Replace(key, "\n", "\n?", 1), "holds a private key"},
		"request":   {strings.ReplaceAll(ca, "CERTIFICATE", "CERTIFICATE REQUEST"), "block of type CERTIFICATE REQUEST"},
		"cut off":   {ca + ca[:len(ca)/2], "has 2 PEM blocks of which 1"},
		"no DER":    {"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "certificate 1: x509: "},
		"large":     {strings.Repeat(ca, 3000), "at most 1048576"},
	} {
		bundle := &lbdv1.TrustBundle{Name: "ca", Ca: &lbdv1.Content{Source: &lbdv1.Content_Inline{Inline: c.text}}}
		r, _ := state.Wrap("web", bundle)
		change := changeOf([]*lbdv1.Resource{r})
		report := showViolations(state.Validate(nil, change))
		if c.want == "" && report != "" || !strings.Contains(report, c.want) {
			t.Errorf("%s: %q, want %q", name, report, c.want)
		}
		left := state.CheckBundleCertificates(c.text) // what x509 takes is for the one who makes the change
		if (left != nil) != (name == "no DER") {
			t.Errorf("%s: %v is left to whoever makes the change", name, left)
		}
		if left != nil {
			continue
		}
		next, res := state.New("c").Apply(command(change))
		if (res.Err == nil) != (c.want == "") {
			t.Errorf("%s: applied with %v", name, res.Err)
		}
		stored, ok := next.Get(state.TrustBundles, "ca")
		if text := stored.GetResource().GetTrustBundle().GetCa().GetInline(); ok && strings.ReplaceAll(text, ca, "") != "" {
			t.Errorf("%s: stored as %q", name, text)
		}
	}
	if all, err := state.ParseTrustBundle(ca + ca); err != nil || len(all) != 2 || all[0].Subject.CommonName != "test" {
		t.Errorf("parsed as %v, %v", all, err)
	}
}

// TestLeavesShareNames finds by their content that two certificates are for one name.
func TestLeavesShareNames(t *testing.T) {
	ca, _ := madeCA()
	var all []*lbdv1.Resource
	for _, name := range []string{"one", "two"} {
		r, _ := state.Wrap("web", &lbdv1.Certificate{Name: name, Source: &lbdv1.Certificate_Pem{Pem: &lbdv1.CertificatePem{
			Chain: &lbdv1.Content{Source: &lbdv1.Content_Inline{Inline: ca}},
		}}})
		all = append(all, r)
	}
	change := changeOf(all)
	for _, up := range change.GetUpserts() {
		block, _ := pem.Decode([]byte(ca))
		up.Material.Chain = [][]byte{block.Bytes}
	}
	const want = "is for `shop.example.com` with a key of type ECDSA, as certificate `one` is"
	if _, res := state.New("c").Apply(command(change)); !strings.Contains(showResult(res), want) {
		t.Errorf("applied: %s", showResult(res))
	}
	for _, up := range change.GetUpserts() {
		up.Material = nil
	}
	if report := showViolations(state.Validate(nil, change)); !strings.Contains(report, want) {
		t.Errorf("offline: %s", report)
	}
}
