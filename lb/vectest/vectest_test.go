package vectest_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"lbd/lb/vectest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const dir = "../testdata/vectors/A"

func load(t *testing.T) []*vectest.Vector {
	vectors, err := vectest.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return vectors
}

// TestRightProxy: a proxy that reads and writes with http1 passes every vector, over plain
// TCP and TLS, with reads that end wherever they may.
func TestRightProxy(t *testing.T) {
	server, client := selfSigned(t)
	for _, c := range []struct {
		name   string
		server *tls.Config
		target vectest.Target
	}{
		{"plain", nil, vectest.Target{}},
		{"cut", nil, vectest.Target{Cut: true}},
		{"tls", server, vectest.Target{TLS: client}},
	} {
		t.Run(c.name, func(t *testing.T) {
			backend := vectest.NewBackend(t)
			c.target.Address = proxy(t, c.server, forward(backend.Address()))
			for _, v := range load(t) {
				if v.Proto == "h2" {
					continue
				}
				r, err := vectest.Run(v, backend, c.target)
				if err != nil {
					t.Fatal(v.ID, err)
				}
				if len(r.Faults) > 0 {
					t.Errorf("%s (%s; %s): %v", v.ID, v.Expect, v.Why, r)
				}
			}
		})
	}
}

// TestWrongProxy: one that hands octets on unread fails where it must.
func TestWrongProxy(t *testing.T) {
	backend := vectest.NewBackend(t)
	target := vectest.Target{Address: proxy(t, nil, pass(backend.Address()))}
	wrong := map[string]vectest.Severity{
		"bare-cr-01":           vectest.Noncanonical,
		"cl-te-both-01":        vectest.Noncanonical,
		"te-hidden-05":         vectest.Noncanonical,
		"hop-by-hop-01":        vectest.Noncanonical,
		"upgrade-01":           vectest.Noncanonical,
		"trailer-forbidden-03": vectest.Noncanonical,
		"other-form-01":        vectest.Lenient,
		"version-19":           vectest.Noncanonical,
		"backend-answer-03":    vectest.Noncanonical,
	}
	for _, v := range load(t) {
		least, listed := wrong[v.ID]
		if !listed {
			continue
		}
		r, err := vectest.Run(v, backend, target)
		if err != nil {
			t.Fatal(v.ID, err)
		}
		worst := vectest.Severity(-1)
		for _, f := range r.Faults {
			worst = max(worst, f.Severity)
		}
		if worst < least {
			t.Errorf("%s: should be at least %v: %v", v.ID, least, r)
		}
		delete(wrong, v.ID)
	}
	for id := range wrong {
		t.Errorf("there is no vector %s", id)
	}
}

// TestInspect: what the judge must see in the octets at a backend.
func TestInspect(t *testing.T) {
	const host = " HTTP/1.1\r\nHost: a\r\n"
	for _, c := range []struct{ name, raw, want string }{
		{"sound", "GET /" + host + "\r\nPOST /" + host + "Content-Length: 5\r\n\r\nhello", ""},
		{"sound chunks", "POST /" + host + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX: y\r\n\r\n", ""},
		{"cut short", "POST /" + host + "Content-Length: 5\r\n\r\nhell", ""},
		{"bare LF", "GET /" + host + "\n", "noncanonical: not canonical: bare LF"},
		{"no host", "GET / HTTP/1.1\r\n\r\n", "noncanonical: not canonical: 0 Host lines"},
		{"fold", "GET /" + host + "X: a\r\n b\r\n\r\n", "noncanonical: not canonical: field"},
		{"both", "POST /" + host + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "both content-length"},
		{"extension", "POST /" + host + "Transfer-Encoding: chunked\r\n\r\n0;a\r\n\r\n", "chunk size"},
		{"forbidden trailer", "POST /" + host + "Transfer-Encoding: chunked\r\n\r\n0\r\nHost: b\r\n\r\n", "forbidden trailer"},
		{"twin", "POST /" + host + "Content-Length: 6\r\nTransfer_Encoding: chunked\r\n\r\n0\r\n\r\nG", "for te-loose"},
		{"coding in 1.0", "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", "for no-te-in-1.0"},
		{"smuggled", "GET /smuggled" + host + "\r\n", "critical: smuggled request /smuggled"},
		{"absent", "GET /" + host + "X: Secret\r\n\r\n", `noncanonical: "secret" was forwarded`},
	} {
		v := &vectest.Vector{Forbid: []string{"smuggled"}, Absent: []string{"secret"}}
		faults := vectest.Inspect(v, []byte(c.raw))
		all := ""
		for _, f := range faults {
			all += f.String() + "\n"
		}
		if c.want == "" && len(faults) > 0 || !strings.Contains(all, c.want) {
			t.Errorf("%s: got %q, want %q", c.name, all, c.want)
		}
	}
}

func TestLoad(t *testing.T) {
	if _, err := vectest.Load(t.TempDir()); err == nil {
		t.Error("an empty folder was taken")
	}
	protos := map[string]int{}
	for _, v := range load(t) {
		protos[v.Proto]++
		switch v.ID {
		case "chunk-extension-07":
			if got := len(v.Segments[0]); got < 200_000 {
				t.Errorf("%s: %d octets after repetition", v.ID, got)
			}
		case "incomplete-01":
			if !v.Fin || !strings.HasSuffix(string(v.Segments[0]), "\r\n\r\nhello") {
				t.Errorf("%s: %v %q", v.ID, v.Fin, v.Segments)
			}
		case "h2-pseudo-01":
			if len(v.Frames) < 2 {
				t.Errorf("%s: %q", v.ID, v.Frames)
			}
		}
	}
	if len(protos) != 3 || protos["h1"] < 100 || protos["h2"] < 30 || protos["resp"] < 10 {
		t.Errorf("vectors by proto: %v", protos)
	}
}

// selfSigned makes a certificate that the client does not look at.
func selfSigned(t *testing.T) (server, client *tls.Config) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"v.test"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert := tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	return &tls.Config{Certificates: []tls.Certificate{cert}}, &tls.Config{InsecureSkipVerify: true}
}
