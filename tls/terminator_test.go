package tlsterm

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"lbd/tls/tlstest"
)

func TestHandshake(t *testing.T) {
	ca := tlstest.NewCA(t)
	pair := ca.ECDSA("shop.example.com")
	term := terminator(t, Policy{}, certificate(t, "shop", pair))
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		config := client(ca.Pool(), "shop.example.com")
		config.MaxVersion = version
		config.NextProtos = []string{"h2", "http/1.1"}
		state := mustDial(t, term, config)
		if state.Version != version || state.NegotiatedProtocol != "http/1.1" || servedSerial(state) != pair.Serial() {
			t.Errorf("version %x, protocol %q, serial %s", state.Version, state.NegotiatedProtocol, servedSerial(state))
		}
	}
	if _, err := term.Handshake(nil, "other"); text(err) != "listener other has no TLS policy" {
		t.Errorf("unknown listener: %v", err)
	}
	term.RemoveListener("https")
	if _, err := term.Handshake(nil, "https"); err == nil {
		t.Error("handshake on a removed listener")
	}
}

// TestUnrecognizedName: a client without a certificate of its own is told so, in both versions, with and without a name,
// and never sees another's.
func TestUnrecognizedName(t *testing.T) {
	ca := tlstest.NewCA(t)
	term := terminator(t, Policy{}, certificate(t, "shop", ca.ECDSA("shop.example.com")))
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		for _, host := range []string{"other.example.com", ""} {
			config := &tls.Config{ServerName: host, InsecureSkipVerify: true, MaxVersion: version}
			_, clientErr, serverErr := dial(t, term, config)
			if text(clientErr) != "remote error: tls: unrecognized name" {
				t.Errorf("%x %q: client: %v", version, host, clientErr)
			}
			if want := fmt.Sprintf("TLS handshake: no certificate and no default certificate: server name %q", host); text(serverErr) != want {
				t.Errorf("%x: server: %v, want %s", version, serverErr, want)
			}
		}
	}
	want := []HandshakeCount{{"1.2", "full", "no_certificate", 2}, {"1.3", "full", "no_certificate", 2}}
	if got := term.Stats(); !slices.Equal(got, want) {
		t.Errorf("stats %v, want %v", got, want)
	}
}

func TestDefaultCertificate(t *testing.T) {
	ca := tlstest.NewCA(t)
	first, second := ca.ECDSA("fallback.example.com"), ca.ECDSA("fallback.example.com")
	term := terminator(t, Policy{DefaultCertificate: "fallback"}, certificate(t, "fallback", first))
	anyone := &tls.Config{ServerName: "10.0.0.1", InsecureSkipVerify: true}
	if got := servedSerial(mustDial(t, term, anyone)); got != first.Serial() {
		t.Errorf("serial %s, want %s", got, first.Serial())
	}
	// A rotation reaches the default.
	term.certificates.Replace(NewSet([]*Certificate{certificate(t, "fallback", second)}))
	if got := servedSerial(mustDial(t, term, anyone)); got != second.Serial() {
		t.Errorf("after a rotation: serial %s, want %s", got, second.Serial())
	}
	// So does a change of the policy.
	if err := term.SetListener("https", Policy{DefaultCertificate: "none"}); err != nil {
		t.Fatal(err)
	}
	if _, clientErr, _ := dial(t, term, anyone); clientErr == nil {
		t.Error("served without a default")
	}
}

func TestKeyTypes(t *testing.T) {
	ca := tlstest.NewCA(t)
	ec, rsa := ca.ECDSA("both.org"), ca.RSA("both.org")
	term := terminator(t, Policy{}, certificate(t, "rsa", rsa), certificate(t, "ec", ec))
	for _, test := range []struct {
		suites []uint16
		max    uint16
		want   string
	}{
		{nil, tls.VersionTLS13, ec.Serial()},
		{nil, tls.VersionTLS12, ec.Serial()},
		{[]uint16{tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384}, tls.VersionTLS12, rsa.Serial()},
	} {
		config := client(ca.Pool(), "both.org")
		config.CipherSuites, config.MaxVersion = test.suites, test.max
		if got := servedSerial(mustDial(t, term, config)); got != test.want {
			t.Errorf("max %x, suites %x: serial %s, want %s", test.max, test.suites, got, test.want)
		}
	}
}

func TestVersions(t *testing.T) {
	ca := tlstest.NewCA(t)
	term := terminator(t, Policy{MinVersion: tls.VersionTLS13}, certificate(t, "a", ca.ECDSA("a.org")))
	old := client(ca.Pool(), "a.org")
	old.MaxVersion = tls.VersionTLS12
	if _, clientErr, _ := dial(t, term, old); text(clientErr) != "remote error: tls: protocol version not supported" {
		t.Errorf("TLS 1.2 at a minimum of 1.3: %v", clientErr)
	}
	if err := term.SetListener("https", Policy{MaxVersion: tls.VersionTLS12}); err != nil {
		t.Fatal(err)
	}
	if state := mustDial(t, term, client(ca.Pool(), "a.org")); state.Version != tls.VersionTLS12 {
		t.Errorf("version %x at a maximum of 1.2", state.Version)
	}
	for _, bad := range []Policy{
		{MinVersion: tls.VersionTLS10},
		{MaxVersion: tls.VersionTLS11},
		{MinVersion: tls.VersionTLS13, MaxVersion: tls.VersionTLS12},
		{MaxVersion: tls.VersionTLS13 + 1},
	} {
		if err := term.SetListener("https", bad); err == nil || !strings.HasPrefix(err.Error(), "listener https: cannot offer") {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	if state := mustDial(t, term, client(ca.Pool(), "a.org")); state.Version != tls.VersionTLS12 {
		t.Error("a refused policy changed something")
	}
}

// TestResumption: tickets outlive a renewed certificate with a new key, a changed policy, fifty changes of nothing, and their listener; they end with
// their key, with another policy for clients, and where tickets are off.
func TestResumption(t *testing.T) {
	ca := tlstest.NewCA(t)
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		term := terminator(t, Policy{}, certificate(t, "a", ca.ECDSA("a.org")))
		config := client(ca.Pool(), "a.org")
		config.MaxVersion = version
		config.ClientSessionCache = tls.NewLRUClientSessionCache(1)
		resumes := func(when string, want bool) {
			t.Helper()
			if got := mustDial(t, term, config).DidResume; got != want {
				t.Errorf("%s: resumed %v, want %v", when, got, want)
			}
		}
		resumes("first", false)
		resumes("second", true)
		term.certificates.Replace(NewSet([]*Certificate{certificate(t, "a", ca.ECDSA("a.org"))}))
		resumes("after a renewal", true)
		for range 50 {
			if err := term.SetListener("https", Policy{}); err != nil {
				t.Fatal(err)
			}
		}
		if err := term.SetListener("https", Policy{DefaultCertificate: "a"}); err != nil {
			t.Fatal(err)
		}
		resumes("after a new default", true)
		if err := term.SetListener("https", Policy{MinVersion: version}); err != nil {
			t.Fatal(err)
		}
		resumes("after a new minimum", true)
		term.RemoveListener("https")
		if err := term.SetListener("https", Policy{}); err != nil {
			t.Fatal(err)
		}
		resumes("as a new listener of that name", true)
		if err := term.SetListener("https", Policy{ClientPolicy: [32]byte{1}}); err != nil {
			t.Fatal(err)
		}
		resumes("with another policy for clients", false)
		resumes("with the same again", true)
		if err := term.SetListener("https", Policy{ClientPolicy: [32]byte{1}, NoTickets: true}); err != nil {
			t.Fatal(err)
		}
		resumes("with tickets off", false)
		resumes("and none issued", false)
		if err := term.SetListener("https", Policy{}); err != nil {
			t.Fatal(err)
		}
		resumes("on again", false)
		term.tickets.Replace(NewTicketKeys(1, &TicketKey{Epoch: 2, Name: [16]byte{2}}, nil, nil))
		resumes("under other keys", false)

		name := map[uint16]string{tls.VersionTLS12: "1.2", tls.VersionTLS13: "1.3"}[version]
		want := []HandshakeCount{{name, "full", "ok", 6}, {name, "resumed", "ok", 6}}
		if got := term.Stats(); !slices.Equal(got, want) {
			t.Errorf("stats %v, want %v", got, want)
		}
	}
}

// offloadConn is a loop's connection: it counts what leaves the loop, or loses it as a loop does that stops.
type offloadConn struct {
	net.Conn
	calls int
	stops bool
}

func (c *offloadConn) Offload(fn func()) {
	c.calls++
	if c.stops {
		return
	}
	done := make(chan struct{})
	go func() { defer close(done); fn() }()
	<-done
}

func TestOffload(t *testing.T) {
	ca := tlstest.NewCA(t)
	term := terminator(t, Policy{}, certificate(t, "rsa", ca.RSA("rsa.org")), certificate(t, "ec", ca.ECDSA("ec.org")))
	for _, test := range []struct {
		host    string
		version uint16
		want    int
	}{
		{"rsa.org", tls.VersionTLS13, 1},
		{"rsa.org", tls.VersionTLS12, 1},
		{"ec.org", tls.VersionTLS13, 0},
		{"ec.org", tls.VersionTLS12, 0},
	} {
		var conn *offloadConn
		config := client(ca.Pool(), test.host)
		config.MaxVersion = test.version
		_, clientErr, serverErr := dialOver(t, term, config, func(c net.Conn) net.Conn {
			conn = &offloadConn{Conn: c}
			return conn
		})
		if clientErr != nil || serverErr != nil || conn.calls != test.want {
			t.Errorf("%s, version %x: %v, %v, %d signatures away from the loop, want %d", test.host, test.version, clientErr, serverErr, conn.calls, test.want)
		}
	}
	_, _, err := dialOver(t, term, client(ca.Pool(), "rsa.org"), func(c net.Conn) net.Conn { return &offloadConn{Conn: c, stops: true} })
	if !strings.Contains(text(err), errNotSigned.Error()) {
		t.Errorf("a loop that stops: %v", err)
	}
}

// TestRotationUnderHandshakes: whatever moment a handshake meets, it is served one of the certificates that were valid then.
func TestRotationUnderHandshakes(t *testing.T) {
	ca := tlstest.NewCA(t)
	serials := map[string]bool{}
	var sets []*Set
	for range 8 {
		pair := ca.ECDSA("a.org")
		serials[pair.Serial()] = true
		sets = append(sets, NewSet([]*Certificate{certificate(t, "a", pair)}))
	}
	term := terminator(t, Policy{})
	term.certificates.Replace(sets[0])
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				term.certificates.Replace(sets[i%len(sets)])
				_ = term.SetListener("https", Policy{MinVersion: tls.VersionTLS12 + uint16(i%2)})
			}
		}
	}()
	for range 100 {
		if got := servedSerial(mustDial(t, term, client(ca.Pool(), "a.org"))); !serials[got] {
			t.Errorf("served %s", got)
		}
	}
	close(stop)
	<-stopped
}

// TestFailures has each way in which a client spoils a handshake, and where it is counted.
func TestFailures(t *testing.T) {
	ca := tlstest.NewCA(t)
	for _, test := range []struct {
		want  HandshakeCount
		spoil func(net.Conn)
	}{
		{HandshakeCount{"none", "full", "client_aborted", 1}, func(c net.Conn) { _ = c.Close() }},
		{HandshakeCount{"none", "full", "not_tls", 1}, func(c net.Conn) { _, _ = c.Write([]byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n")) }},
		{HandshakeCount{"none", "full", "timeout", 1}, func(c net.Conn) { time.Sleep(time.Minute) }},
		{HandshakeCount{"1.3", "full", "client_refused", 1}, func(c net.Conn) { _ = tls.Client(c, client(tlstest.NewCA(t).Pool(), "a.org")).Handshake() }},
		{HandshakeCount{"1.3", "full", "failed", 1}, func(c net.Conn) {
			config := client(ca.Pool(), "a.org")
			config.NextProtos = []string{"smtp"}
			_ = tls.Client(c, config).Handshake()
		}},
		{HandshakeCount{"none", "full", "failed", 1}, func(c net.Conn) {
			_ = tls.Client(c, &tls.Config{ServerName: "a.org", MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10}).Handshake()
		}},
	} {
		t.Run(test.want.Result, func(t *testing.T) {
			// A bubble's clock starts in the year 2000: certificates are made for today, and judged by today.
			today := time.Now()
			synctest.Test(t, func(t *testing.T) {
				term := terminator(t, Policy{}, certificate(t, "a", ca.ECDSA("a.org")))
				term.certificates.now = func() time.Time { return today }
				near, far := net.Pipe()
				_ = far.SetDeadline(time.Now().Add(10 * time.Second))
				go func() {
					defer near.Close()
					test.spoil(near)
				}()
				conn, err := term.Handshake(far, "https")
				var failed *HandshakeError
				if !errors.As(err, &failed) || !strings.HasPrefix(err.Error(), "TLS handshake: ") {
					t.Fatalf("got %v", err)
				}
				if failed.Detail() != test.want.Result {
					t.Errorf("detail %q, want what is counted, %q", failed.Detail(), test.want.Result)
				}
				if name := conn.ConnectionState().ServerName; test.want.Result == "client_refused" && name != "a.org" {
					t.Errorf("server name %q, want what the client asked for", name)
				}
				_ = far.Close()
				if got := term.Stats(); !slices.Equal(got, []HandshakeCount{test.want}) {
					t.Errorf("stats %v, want %v", got, test.want)
				}
				time.Sleep(time.Hour) // the client that sleeps wakes up
			})
		})
	}
}

// splitConn gives its reader one byte at a time, as a network may.
type splitConn struct{ net.Conn }

func (c splitConn) Read(b []byte) (int, error) { return c.Conn.Read(b[:min(len(b), 1)]) }

// TestHelloInSingleBytes: with ML-KEM a ClientHello is over 1.4 kB and comes in pieces.
func TestHelloInSingleBytes(t *testing.T) {
	ca := tlstest.NewCA(t)
	term := terminator(t, Policy{}, certificate(t, "a", ca.ECDSA("a.org")))
	config := client(ca.Pool(), "a.org")
	config.CurvePreferences = []tls.CurveID{tls.X25519MLKEM768}
	_, clientErr, serverErr := dialOver(t, term, config, func(c net.Conn) net.Conn { return splitConn{c} })
	if clientErr != nil || serverErr != nil {
		t.Errorf("client: %v, server: %v", clientErr, serverErr)
	}
}

// writeCounter counts what would be system calls.
type writeCounter struct {
	net.Conn
	writes int
}

func (c *writeCounter) Write(b []byte) (int, error) {
	c.writes++
	return c.Conn.Write(b)
}

// TestOneWriteForARecord: from the first byte on, 16 KiB are one record and one write.
func TestOneWriteForARecord(t *testing.T) {
	ca := tlstest.NewCA(t)
	term := terminator(t, Policy{}, certificate(t, "a", ca.ECDSA("a.org")))
	near, far := net.Pipe()
	defer near.Close()
	go func() {
		if client := tls.Client(near, client(ca.Pool(), "a.org")); client.Handshake() == nil {
			_, _ = io.Copy(io.Discard, client)
		}
	}()
	counter := &writeCounter{Conn: far}
	conn, err := term.Handshake(counter, "https")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	counter.writes = 0
	if _, err := conn.Write(make([]byte, 16<<10)); err != nil || counter.writes != 1 {
		t.Errorf("%d writes, %v", counter.writes, err)
	}
}

// TestTrailingDot holds crypto/tls's rule, which is ours: a server name with the root's dot is no server name (RFC 6066,
// section 3). Go's client takes the dot away; the bytes are changed here behind its back.
func TestTrailingDot(t *testing.T) {
	ca := tlstest.NewCA(t)
	term := terminator(t, Policy{}, certificate(t, "a", ca.ECDSA("shop.example.comx")))
	_, clientErr, serverErr := dialOver(t, term, client(ca.Pool(), "shop.example.comx"), func(c net.Conn) net.Conn { return dotConn{c} })
	if serverErr == nil || clientErr == nil {
		t.Errorf("client: %v, server: %v", clientErr, serverErr)
	}
	if got := term.Stats(); len(got) != 1 || got[0].Result != "failed" || got[0].Version != "none" {
		t.Errorf("stats %v", got)
	}
}

type dotConn struct{ net.Conn }

func (c dotConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	copy(b[:n], bytes.Replace(b[:n], []byte("shop.example.comx"), []byte("shop.example.com."), 1))
	return n, err
}
