package tlsterm

import (
	"crypto/tls"
	"errors"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"lbd/tls/tlstest"
)

func TestProve(t *testing.T) {
	ca := tlstest.NewCA(t)
	certificates := map[string]*Certificate{}
	add := func(name string, p *tlstest.Pair) { certificates[name] = certificate(t, name, p) }
	add("fallback", ca.ECDSA("10.0.0.1"))
	add("ec", ca.ECDSA("both.org"))
	add("rsa", ca.RSA("both.org"))
	add("wild", ca.ECDSA("*.wild.org"))
	add("old", ca.Issue(tlstest.Leaf{Hosts: []string{"renewed.org"}, NotBefore: time.Now().Add(-5 * time.Hour)}))
	add("new", ca.ECDSA("renewed.org"))
	add("second-name", ca.Issue(tlstest.Leaf{Hosts: []string{"renewed.org", "mine.org"}, NotBefore: time.Now().Add(-4 * time.Hour)}))
	add("lapsed", ca.Expired("lapsed.org"))
	add("address", ca.ECDSA("10.0.0.2"))
	var all []*Certificate
	for _, c := range certificates {
		all = append(all, c)
	}
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		term := terminator(t, Policy{MaxVersion: version, DefaultCertificate: "fallback"}, all...)
		for _, name := range []string{"fallback", "ec", "rsa", "wild", "new", "second-name", "lapsed"} {
			c := certificates[name]
			if got, err := term.Prove("https", c); err != nil || got != c.Serial() {
				t.Errorf("%x %s: serial %s, %v, want %s", version, name, got, err, c.Serial())
			}
		}
		for _, name := range []string{"old", "address"} {
			if _, err := term.Prove("https", certificates[name]); !errors.Is(err, ErrNotOffered) {
				t.Errorf("%x %s: %v", version, name, err)
			}
		}
		if got := term.Stats(); len(got) != 0 {
			t.Errorf("proofs are counted: %v", got)
		}
	}
}

// TestProveFails: a proof fails where what is served is not what its caller holds.
func TestProveFails(t *testing.T) {
	ca := tlstest.NewCA(t)
	before, after := certificate(t, "a", ca.ECDSA("a.org")), certificate(t, "a", ca.ECDSA("a.org"))
	term := terminator(t, Policy{}, before)
	if _, err := term.Prove("https", after); err == nil || errors.Is(err, ErrNotOffered) {
		t.Errorf("not replaced yet: %v", err)
	}
	if _, err := term.Prove("other", before); err == nil {
		t.Error("a listener that is not there")
	}
	// A handshake path that does not reach the certificate: the listener's callback answers with nothing.
	l, _ := term.listener("https")
	l.config.Load().GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return nil, nil }
	if _, err := term.Prove("https", before); err == nil || !strings.Contains(err.Error(), `handshake with ourselves as "a.org" on listener https`) {
		t.Errorf("broken path: %v", err)
	}
	// And one that serves another certificate: the serial tells.
	l.config.Load().GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &after.served, nil }
	if got, err := term.Prove("https", before); err != nil || got != after.Serial() {
		t.Errorf("serial %s, %v", got, err)
	}
}

// TestProveTimeout: a machine in trouble is told from a wrong certificate.
func TestProveTimeout(t *testing.T) {
	c := certificate(t, "a", tlstest.NewCA(t).ECDSA("a.org"))
	today := time.Now()
	synctest.Test(t, func(t *testing.T) {
		term := terminator(t, Policy{}, c)
		term.certificates.now = func() time.Time { return today }
		l, _ := term.listener("https")
		l.config.Load().GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			time.Sleep(time.Minute)
			return &c.served, nil
		}
		if _, err := term.Prove("https", c); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
}

func BenchmarkProve(b *testing.B) {
	ca := tlstest.NewCA(b)
	c := certificate(b, "a", ca.ECDSA("a.org"))
	term := terminator(b, Policy{}, c)
	for b.Loop() {
		if _, err := term.Prove("https", c); err != nil {
			b.Fatal(err)
		}
	}
}
