package tlsterm

import (
	"crypto/tls"
	"errors"
	"fmt"
	"testing"
	"time"

	"lbd/tls/tlstest"
)

// TestUse has listeners that serve different certificates, and who sees each.
func TestUse(t *testing.T) {
	ca := tlstest.NewCA(t)
	yesterday := time.Now().Add(-24 * time.Hour)
	old := func(hosts ...string) *tlstest.Pair {
		return ca.Issue(tlstest.Leaf{Hosts: hosts, NotBefore: yesterday, NotAfter: time.Now().Add(time.Hour)})
	}
	term := terminator(t, Policy{DefaultCertificate: "fallback"},
		certificate(t, "fallback", ca.ECDSA("10.0.0.1")),
		certificate(t, "shop", ca.ECDSA("shop.org", "www.shop.org")),
		certificate(t, "shop-rsa", ca.RSA("shop.org")),
		certificate(t, "shop-old", old("shop.org")),
		certificate(t, "half", old("shop.org", "half.org")),
		certificate(t, "wild", ca.ECDSA("*.shop.org")),
		certificate(t, "lapsed", ca.Expired("a.shop.org")),
		certificate(t, "lapsed-alone", ca.Expired("alone.org")),
		certificate(t, "rsa", ca.RSA("rsa.org")),
		certificate(t, "address", ca.ECDSA("10.0.0.2")),
		certificate(t, "wild-old", old("*.shop.org")),
	)
	set := func(name string, p Policy) {
		t.Helper()
		if err := term.SetListener(name, p); err != nil {
			t.Fatal(err)
		}
	}
	ecdsaOnly := []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256}
	set("ecdsa", Policy{MaxVersion: tls.VersionTLS12, CipherSuites: ecdsaOnly, StrictSNI: true, Certificates: map[string]bool{"rsa": true, "shop": true}})
	set("few", Policy{Certificates: map[string]bool{"wild-old": true}, DefaultCertificate: "fallback"})
	for name, want := range map[string]string{
		"fallback":     "{[few https] map[]}",
		"shop":         "{[ecdsa https] map[]}",
		"shop-rsa":     "{[https] map[]}", // to who can verify RSA alone
		"shop-old":     "{[] map[shop.org:shop]}",
		"half":         "{[https] map[shop.org:shop]}",
		"wild":         "{[https] map[]}",
		"wild-old":     "{[few] map[]}",
		"lapsed":       "{[] map[a.shop.org:wild]}",
		"lapsed-alone": "{[https] map[]}",
		"rsa":          "{[https] map[]}",
		"address":      "{[] map[]}",
		"none":         "{[] map[]}",
	} {
		if got := fmt.Sprint(term.Use(name)); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	// What is used can be proven, what is not cannot.
	for c := range term.certificates.Current().All() {
		used := map[string]bool{}
		for _, listener := range term.Use(c.Name()).Listeners {
			used[listener] = true
		}
		for _, listener := range []string{"https", "ecdsa", "few"} {
			serial, err := term.Prove(listener, c)
			if used[listener] && (err != nil || serial != c.Serial()) {
				t.Errorf("%s on %s: serial %s, %v", c.Name(), listener, serial, err)
			}
			if !used[listener] && !errors.Is(err, ErrNotOffered) {
				t.Errorf("%s on %s, which does not show it: %v", c.Name(), listener, err)
			}
		}
	}
}

// TestProveOptions: a proof copes with every group, suite and version that a listener may offer alone.
func TestProveOptions(t *testing.T) {
	ca := tlstest.NewCA(t)
	ec, rsa := certificate(t, "ec", ca.ECDSA("a.org")), certificate(t, "rsa", ca.RSA("a.org"))
	policies := []Policy{{StrictSNI: true}}
	for _, id := range everyGroup() {
		policies = append(policies, Policy{Groups: []tls.CurveID{id}})
	}
	for _, id := range cipherSuites {
		policies = append(policies, Policy{CipherSuites: []uint16{id}})
	}
	for _, policy := range policies {
		term := terminator(t, policy, ec, rsa)
		for _, c := range []*Certificate{ec, rsa} {
			if got, err := term.Prove("https", c); err != nil || got != c.Serial() {
				t.Errorf("%+v: %s: %s, %v", policy, c.Name(), got, err)
			}
		}
	}
}

func TestChoose(t *testing.T) {
	ca := tlstest.NewCA(t)
	lapsed, next := ca.Expired("lapsed.org"), ca.NotYetValid("next.org")
	certificates := []*Certificate{
		certificate(t, "fallback", ca.ECDSA("fallback.org")),
		certificate(t, "shop", ca.ECDSA("shop.org")),
		certificate(t, "both", ca.ECDSA("both.org")),
		certificate(t, "both-rsa", ca.RSA("both.org")),
		certificate(t, "wild", ca.ECDSA("*.shop.org")),
		certificate(t, "lapsed", lapsed),
		certificate(t, "next", next),
	}
	for _, test := range []struct {
		host    string
		rsaOnly bool
		policy  Policy
		want    string
	}{
		{"Shop.org", false, Policy{}, "shop: exact host shop.org"},
		{"shop.org.", false, Policy{}, "shop: exact host shop.org"},
		{"shop.org", true, Policy{}, "shop: exact host shop.org; the client cannot verify its key"},
		{"www.shop.org", false, Policy{}, "wild: wildcard *.shop.org"},
		{"both.org", false, Policy{}, "both: exact host both.org, of 2: what the client can verify and is valid, ECDSA first, then the newest"},
		{"both.org", true, Policy{}, "both-rsa: exact host both.org, of 2: what the client can verify and is valid, ECDSA first, then the newest"},
		{"both.org", false, Policy{Certificates: map[string]bool{"both-rsa": true}}, "both-rsa: exact host both.org"},
		{"lapsed.org", false, Policy{}, "lapsed: exact host lapsed.org; it expired at " + lapsed.Leaf.NotAfter.UTC().Format(time.RFC3339)},
		{"next.org", false, Policy{}, "next: exact host next.org; it is not valid before " + next.Leaf.NotBefore.UTC().Format(time.RFC3339)},
		{"other.org", false, Policy{DefaultCertificate: "fallback"}, "fallback: default certificate: no certificate of this listener names other.org"},
		{"", false, Policy{DefaultCertificate: "fallback"}, "fallback: default certificate: the client sends no server name"},
		{"10.0.0.1", false, Policy{DefaultCertificate: "fallback"}, "fallback: default certificate: the client sends no server name"},
		{"[2001:db8::1]", false, Policy{}, "none: unrecognized_name: the client sends no server name, and there is no default certificate"},
		{"other.org", false, Policy{DefaultCertificate: "fallback", StrictSNI: true}, "none: unrecognized_name: no certificate of this listener names other.org, and strict_sni is on"},
	} {
		choice, err := NewSet(certificates).Choose(test.host, test.rsaOnly, test.policy, time.Now())
		if got := nameOf(choice.Certificate) + ": " + choice.Reason; err != nil || got != test.want {
			t.Errorf("%q: got  %s, %v\nwant %s", test.host, got, err, test.want)
		}
		served, err := terminator(t, test.policy, certificates...).Choose("https", test.host, test.rsaOnly)
		if err != nil || served != choice {
			t.Errorf("%q: a listener says %v, %v", test.host, served, err)
		}
	}
	if _, err := NewSet(nil).Choose("a", false, Policy{MinVersion: 1}, time.Now()); err == nil {
		t.Error("a policy that cannot be offered")
	}
	if _, err := terminator(t, Policy{}).Choose("other", "a", false); err == nil {
		t.Error("a listener that is not there")
	}
}
