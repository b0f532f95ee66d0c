package tlsterm

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"lbd/tls/tlstest"
)

// modern can verify any kind of key in TLS 1.3.
var modern = append(append(slices.Clone(schemesByKind[kindECDSA]), schemesByKind[kindEd25519]...), schemesByKind[kindRSA]...)

func hello(host string, schemes []tls.SignatureScheme) *tls.ClientHelloInfo {
	return &tls.ClientHelloInfo{ServerName: host, SupportedVersions: []uint16{tls.VersionTLS13, tls.VersionTLS12}, SignatureSchemes: schemes}
}

// hello12 is a client of TLS 1.2 that can use one kind of key.
func hello12(host string, suite uint16) *tls.ClientHelloInfo {
	return &tls.ClientHelloInfo{
		ServerName:        host,
		SupportedVersions: []uint16{tls.VersionTLS12},
		SignatureSchemes:  modern,
		CipherSuites:      []uint16{suite},
		SupportedCurves:   []tls.CurveID{tls.X25519, tls.CurveP256},
		SupportedPoints:   []uint8{0},
	}
}

// TestForHello has one set and the certificate that each client gets, whatever the order in which the set was filled.
func TestForHello(t *testing.T) {
	ca := tlstest.NewCA(t)
	yesterday := time.Now().Add(-24 * time.Hour)
	certificates := []*Certificate{
		certificate(t, "fallback", ca.ECDSA("fallback.example.com", "10.0.0.1")),
		certificate(t, "wild", ca.ECDSA("*.example.com")),
		certificate(t, "wild-rsa", ca.RSA("*.example.com")),
		certificate(t, "exact", ca.ECDSA("shop.example.com")),
		certificate(t, "upper", ca.ECDSA("UPPER.Example.COM")),
		certificate(t, "both-ecdsa", ca.ECDSA("both.example.com")),
		certificate(t, "both-rsa", ca.RSA("both.example.com")),
		certificate(t, "old", ca.Issue(tlstest.Leaf{Hosts: []string{"renewed.example.com"}, NotBefore: yesterday, NotAfter: time.Now().Add(time.Hour)})),
		certificate(t, "new", ca.ECDSA("renewed.example.com")),
		certificate(t, "future", ca.NotYetValid("renewed.example.com")),
		certificate(t, "lapsed", ca.Expired("lapsed.org")),
		certificate(t, "lapsed-ecdsa", ca.Expired("half.org")),
		certificate(t, "valid-rsa", ca.RSA("half.org")),
		certificate(t, "lapsed-alone", ca.Expired("alone.example.com")),
		certificate(t, "lapsed-exact", ca.Expired("covered.example.com")),
		certificate(t, "next-exact", ca.NotYetValid("covered.example.com")),
		certificate(t, "rsa-only", ca.RSA("rsa.org")),
		certificate(t, "twice", ca.ECDSA("twice.org", "TWICE.org")),
	}
	rsaOnly, ed25519Only := schemesByKind[kindRSA], schemesByKind[kindEd25519]
	tests := []struct {
		why   string
		hello *tls.ClientHelloInfo
		want  string
	}{
		{"exact before wildcard", hello("shop.example.com", modern), "exact"},
		{"a wildcard is one label", hello("other.example.com", modern), "wild"},
		{"not two", hello("a.b.example.com", modern), "fallback"},
		{"not none", hello("example.com", modern), "fallback"},
		{"unknown name", hello("nobody.org", modern), "fallback"},
		{"no name", hello("", modern), "fallback"},
		{"a star is no name", hello("*", modern), "fallback"},
		{"upper case in the certificate", hello("upper.example.com", modern), "upper"},
		{"upper case in the name", hello("SHOP.eXample.com", modern), "exact"},
		{"trailing dot", hello("shop.example.com.", modern), "exact"},
		{"ECDSA first", hello("both.example.com", modern), "both-ecdsa"},
		{"RSA for who knows nothing else", hello("both.example.com", rsaOnly), "both-rsa"},
		{"TLS 1.2, suites of ECDSA", hello12("both.example.com", tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256), "both-ecdsa"},
		{"TLS 1.2, suites of RSA", hello12("both.example.com", tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256), "both-rsa"},
		{"wildcard of the right kind before an exact one of the wrong", hello("shop.example.com", rsaOnly), "wild-rsa"},
		{"the newest valid one", hello("renewed.example.com", modern), "new"},
		{"an expired one is better than none", hello("lapsed.org", modern), "lapsed"},
		{"a valid one of another kind is better than an expired one", hello("half.org", modern), "valid-rsa"},
		{"a valid wildcard is better than an expired exact one", hello("alone.example.com", modern), "wild"},
		{"a valid wildcard is better than expired and future exact ones", hello("covered.example.com", modern), "wild"},
		{"nothing that the client can verify: its own, for it to say so", hello("rsa.org", ed25519Only), "rsa-only"},
		{"one certificate that names a host twice", hello("twice.org", modern), "twice"},
	}
	for range 20 {
		rand.Shuffle(len(certificates), func(i, j int) { certificates[i], certificates[j] = certificates[j], certificates[i] })
		c := NewCertificates()
		c.Replace(NewSet(certificates))
		for _, test := range tests {
			if got := nameOf(c.ForHello(test.hello, &Policy{DefaultCertificate: "fallback"})); got != test.want {
				t.Fatalf("%s: %q gets %s, want %s", test.why, test.hello.ServerName, got, test.want)
			}
		}
		for _, host := range []string{"nobody.org", ""} {
			if got := c.ForHello(hello(host, modern), &Policy{DefaultCertificate: "absent"}); got != nil {
				t.Fatalf("%q without a default gets %s", host, nameOf(got))
			}
		}
	}
}

func nameOf(c *Certificate) string {
	if c == nil {
		return "none"
	}
	return c.name
}

// slowForHello is the rule as one would tell it: rank every certificate, take the best.
func slowForHello(certificates []*Certificate, h *tls.ClientHelloInfo, p Policy, now time.Time) *Certificate {
	host := normalHost(h.ServerName)
	var best, fallback *Certificate
	rank := func(c *Certificate) (quality, exact int) {
		switch {
		case c.usable(h) && c.validAt(now):
			quality = 2
		case c.usable(h):
			quality = 1
		}
		if slices.Contains(c.hosts, host) {
			exact = 1
		}
		return quality, exact
	}
	for _, c := range certificates {
		if c.name == p.DefaultCertificate && !p.StrictSNI {
			fallback = c
		} else if p.Certificates != nil && !p.Certificates[c.name] {
			continue
		}
		_, rest, _ := strings.Cut(host, ".")
		exact := slices.Contains(c.hosts, host)
		if !exact && (rest == "" || !slices.Contains(c.hosts, "*."+rest)) {
			continue
		}
		if best == nil {
			best = c
			continue
		}
		cq, ce := rank(c)
		bq, be := rank(best)
		if cmp.Or(cmp.Compare(cq, bq), cmp.Compare(ce, be), -servingOrder(c, best)) > 0 {
			best = c
		}
	}
	return cmp.Or(best, fallback)
}

// TestForHelloTwin compares the index with the slow rule.
func TestForHelloTwin(t *testing.T) {
	ca := tlstest.NewCA(t)
	var all []*Certificate
	for i, hosts := range [][]string{{"a.x"}, {"*.x"}, {"a.x", "b.x"}, {"*.x", "c.y"}, {"b.x", "*.y"}, {"c.y"}} {
		for j, leaf := range []tlstest.Leaf{
			{Hosts: hosts},
			{Hosts: hosts, RSA: true},
			{Hosts: hosts, NotBefore: time.Now().Add(-time.Duration(2+i) * time.Hour)},
			{Hosts: hosts, NotBefore: time.Now().Add(-48 * time.Hour)},
			{Hosts: hosts, RSA: true, NotBefore: time.Now().Add(time.Hour)},
		} {
			all = append(all, certificate(t, fmt.Sprintf("c%d-%d", i, j), ca.Issue(leaf)))
		}
	}
	schemes := [][]tls.SignatureScheme{modern, schemesByKind[kindRSA], schemesByKind[kindECDSA], schemesByKind[kindEd25519]}
	rapid.Check(t, func(t *rapid.T) {
		some := rapid.SliceOfNDistinct(rapid.SampledFrom(all), 0, 12, func(c *Certificate) string { return c.name }).Draw(t, "set")
		host := rapid.SampledFrom([]string{"a.x", "b.x", "c.x", "c.y", "d.y", "x", "q", ""}).Draw(t, "host")
		h := hello(host, rapid.SampledFrom(schemes).Draw(t, "schemes"))
		policy := Policy{DefaultCertificate: "c0-0", StrictSNI: rapid.Bool().Draw(t, "strict")}
		if rapid.Bool().Draw(t, "selects") {
			policy.Certificates = map[string]bool{}
			for _, c := range rapid.SliceOfN(rapid.SampledFrom(all), 0, 30).Draw(t, "selected") {
				policy.Certificates[c.name] = true
			}
		}
		c := NewCertificates()
		now := time.Now()
		c.now = func() time.Time { return now }
		c.Replace(NewSet(some))
		complete, err := policy.complete()
		if err != nil {
			t.Fatal(err)
		}
		got, want := c.ForHello(h, &complete), slowForHello(some, h, policy, now)
		if got != want {
			t.Fatalf("%q: got %s, want %s", host, nameOf(got), nameOf(want))
		}
		if c.Current().knows(host, &complete) != (want != nil) {
			t.Fatalf("%q is known: %v, and gets %s", host, want == nil, nameOf(want))
		}
	})
}

func TestSetLookups(t *testing.T) {
	ca := tlstest.NewCA(t)
	b, a := certificate(t, "b", ca.ECDSA("x")), certificate(t, "a", ca.ECDSA("x"))
	set := NewSet([]*Certificate{b, a})
	if got := slices.Collect(set.All()); !slices.Equal(got, []*Certificate{a, b}) {
		t.Errorf("All is not by name: %v", got)
	}
	if set.Get("a") != a || set.Get("c") != nil {
		t.Error("Get")
	}
}

// TestTenThousand: a change of one certificate among 10,000 is a new index, and that is cheap.
func TestTenThousand(t *testing.T) {
	ca := tlstest.NewCA(t)
	pair := ca.Issue(tlstest.Leaf{Hosts: []string{"x"}, SharedKey: true})
	base := certificate(t, "x", pair)
	certificates := make([]*Certificate, 10_000)
	for i := range certificates {
		c := *base
		c.name, c.hosts = fmt.Sprint("c", i), []string{fmt.Sprintf("h%d.example.com", i)}
		certificates[i] = &c
	}
	began := time.Now()
	set := NewSet(certificates)
	took := time.Since(began)
	t.Logf("index of 10,000 built in %s", took)
	if took > time.Second {
		t.Errorf("index of 10,000 took %s", took)
	}
	if got := set.forHello(hello("h7777.example.com", modern), &Policy{}, time.Now()); nameOf(got) != "c7777" {
		t.Errorf("got %s", nameOf(got))
	}
}

// TestForHelloAllocations holds the budget of the usual case; all of it is crypto/tls's own look at the signature
// algorithms.
func TestForHelloAllocations(t *testing.T) {
	ca := tlstest.NewCA(t)
	c := NewCertificates()
	c.Replace(NewSet([]*Certificate{certificate(t, "shop", ca.ECDSA("shop.example.com"))}))
	h, policy := hello("shop.example.com", modern), &Policy{Certificates: map[string]bool{"shop": true}}
	if got := testing.AllocsPerRun(100, func() { c.ForHello(h, policy) }); got > 2 {
		t.Errorf("%v allocations, want 2", got)
	}
}

func BenchmarkForHello(b *testing.B) {
	ca := tlstest.NewCA(b)
	c := NewCertificates()
	c.Replace(NewSet([]*Certificate{certificate(b, "shop", ca.ECDSA("shop.example.com"))}))
	h, policy := hello("shop.example.com", modern), &Policy{}
	b.ReportAllocs()
	for b.Loop() {
		c.ForHello(h, policy)
	}
}

func BenchmarkNewCertificate(b *testing.B) {
	ca := tlstest.NewCA(b)
	for name, pair := range map[string]*tlstest.Pair{"ecdsa": ca.ECDSA("x"), "rsa": ca.RSA("x")} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				certificate(b, "x", pair)
			}
		})
	}
}
