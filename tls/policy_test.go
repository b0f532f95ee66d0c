package tlsterm

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"slices"
	"strings"
	"testing"

	"lbd/tls/tlstest"
)

func TestParseCipherSuite(t *testing.T) {
	for _, id := range cipherSuites {
		for _, name := range []string{tls.CipherSuiteName(id), strings.ToLower(tls.CipherSuiteName(id))} {
			if got, err := ParseCipherSuite(name); err != nil || got != id {
				t.Errorf("%s: %x, %v", name, got, err)
			}
		}
	}
	for name, want := range map[string]string{
		"TLS_AES_128_GCM_SHA256":                  "cipher suite TLS_AES_128_GCM_SHA256 is one of TLS 1.3, which are not to be chosen",
		"TLS_RSA_WITH_AES_128_GCM_SHA256":         "cipher suite TLS_RSA_WITH_AES_128_GCM_SHA256 is not safe: want one of " + suiteNames(),
		"ECDHE-RSA-AES128-GCM-SHA256":             `no cipher suite "ECDHE-RSA-AES128-GCM-SHA256": want one of ` + suiteNames(),
		"TLS_DHE_RSA_WITH_CHACHA20_POLY1305_NONE": `no cipher suite "TLS_DHE_RSA_WITH_CHACHA20_POLY1305_NONE": want one of ` + suiteNames(),
	} {
		if _, err := ParseCipherSuite(name); text(err) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestParseGroup(t *testing.T) {
	for name, want := range map[string]tls.CurveID{
		"X25519MLKEM768": tls.X25519MLKEM768, "secp256r1mlkem768": tls.SecP256r1MLKEM768, "SecP384r1MLKEM1024": tls.SecP384r1MLKEM1024,
		"x25519": tls.X25519, "P256": tls.CurveP256, "p384": tls.CurveP384, "P521": tls.CurveP521,
	} {
		if got, err := ParseGroup(name); err != nil || got != want {
			t.Errorf("%s: %s, %v", name, got, err)
		}
	}
	if _, err := ParseGroup("P-256"); text(err) != `no group "P-256": want one of X25519MLKEM768, SecP256r1MLKEM768, SecP384r1MLKEM1024, X25519, P256, P384, P521` {
		t.Error(err)
	}
}

func TestPolicyRefuses(t *testing.T) {
	term := terminator(t, Policy{})
	for want, policy := range map[string]Policy{
		"cannot offer cipher suite TLS_AES_128_GCM_SHA256":               {CipherSuites: []uint16{tls.TLS_AES_128_GCM_SHA256}},
		"cannot offer cipher suite TLS_RSA_WITH_RC4_128_SHA":             {CipherSuites: []uint16{cipherSuites[0], tls.TLS_RSA_WITH_RC4_128_SHA}},
		"cannot offer group CurveID(7)":                                  {Groups: []tls.CurveID{7}},
		"none of the groups exists in TLS 1.2, the maximum: add X25519":  {MaxVersion: tls.VersionTLS12, Groups: []tls.CurveID{tls.X25519MLKEM768}},
		"cannot offer TLS 1.3 to TLS 1.2: TLS 1.2 and 1.3 are safe to o": {MinVersion: tls.VersionTLS13, MaxVersion: tls.VersionTLS12},
	} {
		if err := term.SetListener("https", policy); !strings.HasPrefix(text(err), "listener https: "+want) {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}

// TestStrictSNI is case A10: a strict listener answers unrecognized_name to an unknown and to a missing server name, in both
// versions, and a default that is named all the same changes nothing.
func TestStrictSNI(t *testing.T) {
	ca := tlstest.NewCA(t)
	shop, other := ca.ECDSA("shop.example.com"), ca.ECDSA("tenant.example.com")
	certificates := []*Certificate{certificate(t, "shop", shop), certificate(t, "default", other)}
	term := terminator(t, Policy{StrictSNI: true, DefaultCertificate: "default"}, certificates...)
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		for _, host := range []string{"other.example.com", "example.com", "10.0.0.1"} {
			_, clientErr, serverErr := dial(t, term, &tls.Config{ServerName: host, InsecureSkipVerify: true, MaxVersion: version})
			if text(clientErr) != "remote error: tls: unrecognized name" || !strings.Contains(text(serverErr), errNoCertificate.Error()) {
				t.Errorf("%x %q: client: %v, server: %v", version, host, clientErr, serverErr)
			}
		}
		config := client(ca.Pool(), "SHOP.example.com")
		config.MaxVersion = version
		if got := servedSerial(mustDial(t, term, config)); got != shop.Serial() {
			t.Errorf("%x: serial %s, want %s", version, got, shop.Serial())
		}
	}
	if err := term.SetListener("https", Policy{DefaultCertificate: "default"}); err != nil {
		t.Fatal(err)
	}
	if got := servedSerial(mustDial(t, term, &tls.Config{ServerName: "other.example.com", InsecureSkipVerify: true})); got != other.Serial() {
		t.Errorf("no longer strict: serial %s, want the default's, %s", got, other.Serial())
	}
}

// renamedSessions gives a client the tickets of one name for every other.
type renamedSessions struct{ tls.ClientSessionCache }

func (r renamedSessions) Get(string) (*tls.ClientSessionState, bool) {
	return r.ClientSessionCache.Get("one")
}

func (r renamedSessions) Put(_ string, s *tls.ClientSessionState) { r.ClientSessionCache.Put("one", s) }

// TestTicketGoesPastNoRefusal: with the ticket of a name that is served nobody gets in under one that is not, nor under one that
// is served no longer.
func TestTicketGoesPastNoRefusal(t *testing.T) {
	ca := tlstest.NewCA(t)
	shop := certificate(t, "shop", ca.ECDSA("shop.example.com"))
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		term := terminator(t, Policy{StrictSNI: true}, shop)
		config := &tls.Config{InsecureSkipVerify: true, MaxVersion: version, ClientSessionCache: renamedSessions{tls.NewLRUClientSessionCache(1)}}
		as := func(host string) *tls.Config {
			c := config.Clone()
			c.ServerName = host
			return c
		}
		mustDial(t, term, as("shop.example.com"))
		if !mustDial(t, term, as("shop.example.com")).DidResume {
			t.Errorf("%x: no resumption", version)
		}
		if _, clientErr, _ := dial(t, term, as("other.example.com")); text(clientErr) != "remote error: tls: unrecognized name" {
			t.Errorf("%x: another name: %v", version, clientErr)
		}
		if err := term.SetListener("https", Policy{StrictSNI: true, Certificates: map[string]bool{}}); err != nil {
			t.Fatal(err)
		}
		if _, clientErr, _ := dial(t, term, as("shop.example.com")); text(clientErr) != "remote error: tls: unrecognized name" {
			t.Errorf("%x: a certificate that the listener serves no longer: %v", version, clientErr)
		}
	}
}

// TestCertificatesOfAListener: a listener serves those that its policy names, and its default.
func TestCertificatesOfAListener(t *testing.T) {
	ca := tlstest.NewCA(t)
	shop, old, wild, fallback := ca.ECDSA("shop.org"), ca.RSA("shop.org"), ca.ECDSA("*.org"), ca.ECDSA("fallback.org")
	term := terminator(t, Policy{},
		certificate(t, "shop", shop), certificate(t, "old", old), certificate(t, "wild", wild), certificate(t, "fallback", fallback))
	for _, test := range []struct {
		host   string
		policy Policy
		want   string // a serial; empty: refused
	}{
		{"shop.org", Policy{}, shop.Serial()},
		{"shop.org", Policy{Certificates: map[string]bool{"old": true}}, old.Serial()},
		{"shop.org", Policy{Certificates: map[string]bool{"wild": true}}, wild.Serial()},
		{"shop.org", Policy{Certificates: map[string]bool{"shop": true, "wild": true}}, shop.Serial()},
		{"other.org", Policy{Certificates: map[string]bool{"shop": true}}, ""},
		{"other.org", Policy{Certificates: map[string]bool{"shop": true}, DefaultCertificate: "fallback"}, fallback.Serial()},
		{"fallback.org", Policy{Certificates: map[string]bool{"shop": true}, DefaultCertificate: "fallback"}, fallback.Serial()},
		{"fallback.org", Policy{Certificates: map[string]bool{"shop": true}, DefaultCertificate: "fallback", StrictSNI: true}, ""},
		{"shop.org", Policy{Certificates: map[string]bool{}}, ""},
	} {
		if err := term.SetListener("https", test.policy); err != nil {
			t.Fatal(err)
		}
		config := &tls.Config{ServerName: test.host, InsecureSkipVerify: true}
		state, clientErr, _ := dial(t, term, config)
		switch {
		case test.want == "" && text(clientErr) != "remote error: tls: unrecognized name":
			t.Errorf("%s, %+v: %v", test.host, test.policy, clientErr)
		case test.want != "" && (clientErr != nil || servedSerial(state) != test.want):
			t.Errorf("%s, %+v: %v, want serial %s", test.host, test.policy, clientErr, test.want)
		}
	}
}

// TestSuitesChooseTheCertificate: of a host with both kinds of key that one is served which the listener's suites go with.
func TestSuitesChooseTheCertificate(t *testing.T) {
	ca := tlstest.NewCA(t)
	ec, rsa := ca.ECDSA("both.org"), ca.RSA("both.org")
	term := terminator(t, Policy{}, certificate(t, "ec", ec), certificate(t, "rsa", rsa))
	for _, test := range []struct {
		suites  []uint16
		version uint16
		want    string
	}{
		{[]uint16{tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384}, tls.VersionTLS12, rsa.Serial()},
		{[]uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384}, tls.VersionTLS12, ec.Serial()},
		{[]uint16{tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384}, tls.VersionTLS13, ec.Serial()},
	} {
		if err := term.SetListener("https", Policy{CipherSuites: test.suites}); err != nil {
			t.Fatal(err)
		}
		config := client(ca.Pool(), "both.org")
		config.MaxVersion = test.version
		state := mustDial(t, term, config)
		if got := servedSerial(state); got != test.want {
			t.Errorf("%x, suites %x: serial %s, want %s", test.version, test.suites, got, test.want)
		}
		if test.version == tls.VersionTLS12 && state.CipherSuite != test.suites[0] {
			t.Errorf("suite %s", tls.CipherSuiteName(state.CipherSuite))
		}
	}
	config := client(ca.Pool(), "both.org")
	config.MaxVersion, config.CipherSuites = tls.VersionTLS12, []uint16{tls.TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA}
	if err := term.SetListener("https", Policy{}); err != nil {
		t.Fatal(err)
	}
	if _, clientErr, _ := dial(t, term, config); text(clientErr) != "remote error: tls: handshake failure" {
		t.Errorf("a suite without authenticated encryption: %v", clientErr)
	}
	if err := term.SetListener("https", Policy{CipherSuites: config.CipherSuites}); err != nil {
		t.Fatal(err)
	}
	if state := mustDial(t, term, config); state.CipherSuite != config.CipherSuites[0] {
		t.Errorf("asked for, it is not offered: %s", tls.CipherSuiteName(state.CipherSuite))
	}
}

func TestGroups(t *testing.T) {
	ca := tlstest.NewCA(t)
	term := terminator(t, Policy{}, certificate(t, "a", ca.ECDSA("a.org")))
	agreed := func(offered ...tls.CurveID) (tls.CurveID, error) {
		config := client(ca.Pool(), "a.org")
		config.CurvePreferences = offered
		state, err, _ := dial(t, term, config)
		return state.CurveID, err
	}
	for _, id := range everyGroup() {
		got, err := agreed(id)
		if byDefault := id != tls.SecP384r1MLKEM1024 && id != tls.CurveP521; byDefault != (err == nil) || byDefault && got != id {
			t.Errorf("by default, a client with %s alone: %s, %v", id, got, err)
		}
	}
	for _, only := range everyGroup() {
		if err := term.SetListener("https", Policy{Groups: []tls.CurveID{only}}); err != nil {
			t.Fatal(err)
		}
		if got, err := agreed(everyGroup()...); got != only {
			t.Errorf("a listener with %s alone: %s, %v", only, got, err)
		}
	}
}

// TestPolicyKeepsTickets: suites, groups, strictness and the choice of certificates change; tickets stay good.
func TestPolicyKeepsTickets(t *testing.T) {
	ca := tlstest.NewCA(t)
	term := terminator(t, Policy{}, certificate(t, "a", ca.ECDSA("a.org")))
	config := client(ca.Pool(), "a.org")
	config.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	mustDial(t, term, config)
	for _, policy := range []Policy{
		{CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256}},
		{Groups: []tls.CurveID{tls.X25519}},
		{StrictSNI: true},
		{Certificates: map[string]bool{"a": true}},
		{},
	} {
		if err := term.SetListener("https", policy); err != nil {
			t.Fatal(err)
		}
		if !mustDial(t, term, config).DidResume {
			t.Errorf("%+v: the ticket is lost", policy)
		}
	}
}

// TestP521Certificate: a key on a curve that is no group of the listener is served all the same, in both versions, and shown to be.
func TestP521Certificate(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca := tlstest.NewCA(t)
	c := certificate(t, "a", ca.Issue(tlstest.Leaf{Hosts: []string{"a.org"}, Key: key}))
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		term := terminator(t, Policy{MaxVersion: version}, c)
		mustDial(t, term, client(ca.Pool(), "a.org"))
		if got, err := term.Prove("https", c); err != nil || got != c.Serial() {
			t.Errorf("%x: proof: %s, %v", version, got, err)
		}
		if use := term.Use("a"); !slices.Equal(use.Listeners, []string{"https"}) {
			t.Errorf("%x: %v", version, use)
		}
	}
}
