package lb

import (
	"bytes"
	"crypto"
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lbd/lb/lbtest"
)

// authority is a CA of a test.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  crypto.Signer
	pool *x509.CertPool
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t, pool: x509.NewCertPool()}
	a.key = newKey(t)
	a.cert = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, a.cert, a.cert, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.pool.AddCert(a.cert)
	return a
}

func newKey(t *testing.T) crypto.Signer {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// leaf makes a certificate for a name or an address that is good for some time from now.
func (a *authority) leaf(name string, key crypto.Signer, left time.Duration) tls.Certificate {
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(left)}
	if ip := net.ParseIP(name); ip != nil {
		leaf.IPAddresses = []net.IP{ip}
	} else {
		leaf.DNSNames = []string{name}
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, a.cert, key.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func (a *authority) server(name string) *tls.Config {
	return &tls.Config{Certificates: []tls.Certificate{a.leaf(name, newKey(a.t), time.Hour)}}
}

// overTLS is a setup whose pool speaks TLS to its backends and trusts the authority.
func (a *authority) overTLS(kind, server string, backends ...*lbtest.Backend) setup {
	return setup{kind: kind, backends: addrs(backends...), pool: PoolConfig{
		TLS: &BackendTLS{Key: "k", Config: &tls.Config{RootCAs: a.pool, ServerName: server}},
	}}
}

// TestBackendTLS: bodies of all sizes both ways over kept connections, to both versions; the address is the name if there is no other.
func TestBackendTLS(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		ca := newAuthority(t)
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			config := ca.server("127.0.0.1")
			config.MaxVersion = version
			var mu sync.Mutex
			var protocols [][]string
			config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
				mu.Lock()
				defer mu.Unlock()
				protocols = append(protocols, hello.SupportedProtos)
				return nil, nil
			}
			b := lbtest.NewTLS(t, config, lbtest.Echo)
			n := start(t, ca.overTLS(kind, "", b))
			c := n.dial()
			for _, size := range []int{0, 10, 16 << 10, 20_000, 3 << 20} {
				body := strings.Repeat("x", size)
				c.say(get("/"))
				c.expect("GET", 200, "")
				go io.WriteString(c.Conn, post("/", body))
				c.expect("POST", 200, body)
			}
			c.say("POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
			c.expect("POST", 200, "hello")
			if b.Accepted() != 1 {
				t.Errorf("%d connections for one client", b.Accepted())
			}
			if len(protocols) != 1 || len(protocols[0]) != 1 || protocols[0][0] != "http/1.1" {
				t.Errorf("protocols %v", protocols)
			}
		}
	})
}

// TestBackendTLSPieces: an interim answer, a head and a body in records that come together: what TLS has read ahead is not waited for.
func TestBackendTLSPieces(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		ca := newAuthority(t)
		b := lbtest.NewTLS(t, ca.server("b.test"), func(c *lbtest.Conn) {
			for {
				if _, err := c.ReadRequest(); err != nil {
					return
				}
				c.Conn.(*tls.Conn).NetConn().(*net.TCPConn).SetNoDelay(false)
				for _, piece := range []string{"HTTP/1.1 103 Early Hints\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-", "Length: 10\r\n\r\n", "hello", "world"} {
					c.Say(piece)
				}
			}
		})
		n := start(t, ca.overTLS(kind, "b.test", b))
		c := n.dial()
		for range 20 {
			c.say("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
			c.expect("GET", 200, "helloworld")
		}
	})
}

// TestBackendTLSResumes: a second connection resumes the first one's session, and one whose settings have another key does not.
func TestBackendTLSResumes(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		ca := newAuthority(t)
		var mu sync.Mutex
		var resumed []bool
		b := lbtest.NewTLS(t, ca.server("b.test"), func(c *lbtest.Conn) {
			if _, err := c.ReadRequest(); err == nil {
				mu.Lock()
				resumed = append(resumed, c.Conn.(*tls.Conn).ConnectionState().DidResume)
				mu.Unlock()
				c.Say("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi")
			}
		})
		cfg := ca.overTLS(kind, "b.test", b)
		n := start(t, cfg)
		c := n.dial()
		for _, key := range []string{"k", "k", "other"} {
			cfg.pool.TLS.Key = key
			n.serve(cfg)
			c.say(get("/"))
			c.expect("GET", 200, "hi")
		}
		mu.Lock()
		defer mu.Unlock()
		if len(resumed) != 3 || resumed[0] || !resumed[1] || resumed[2] {
			t.Errorf("resumed: %v", resumed)
		}
	})
}

// sealer writes TLS 1.3 records by hand, for crypto/tls sends a ticket at the handshake and never again. It takes over the writing of a
// server's connection from the end of the handshake on.
type sealer struct {
	net.Conn
	aead cipher.AEAD
	iv   []byte
	seq  uint64
}

const recordData = 23

// newSealer takes the secret from a key log (SERVER_TRAFFIC_SECRET_0).
func newSealer(conn net.Conn, keyLog string) (*sealer, error) {
	for line := range strings.Lines(keyLog) {
		if f := strings.Fields(line); f[0] == "SERVER_TRAFFIC_SECRET_0" {
			secret, err := hex.DecodeString(f[2])
			if err != nil {
				return nil, err
			}
			block, err := aes.NewCipher(expandLabel(secret, "key", 16))
			if err != nil {
				return nil, err
			}
			aead, err := cipher.NewGCM(block)
			return &sealer{Conn: conn, aead: aead, iv: expandLabel(secret, "iv", 12)}, err
		}
	}
	return nil, errors.New("no secret of TLS 1.3 in the key log")
}

// expandLabel is HKDF-Expand-Label without a context (RFC 8446 7.1).
func expandLabel(secret []byte, label string, n int) []byte {
	info := "\x00" + string(rune(n)) + string(rune(6+len(label))) + "tls13 " + label + "\x00"
	out, err := hkdf.Expand(sha256.New, secret, info, n)
	if err != nil {
		panic(err)
	}
	return out
}

// record writes one record (RFC 8446 5.2).
func (s *sealer) record(kind byte, content string) {
	plain := append([]byte(content), kind)
	head := []byte{recordData, 3, 3, byte((len(plain) + 16) >> 8), byte(len(plain) + 16)}
	nonce := bytes.Clone(s.iv)
	for i := range 8 {
		nonce[4+i] ^= byte(s.seq >> (8 * (7 - i)))
	}
	s.seq++
	s.Conn.Write(s.aead.Seal(head, nonce, plain, head))
}

// ticket is a NewSessionTicket that is good for an hour (RFC 8446 4.6.1).
const ticket = "\x04\x00\x00\x13" + "\x00\x00\x0e\x10" + "\x00\x00\x00\x00" + "\x01\x01" + "\x00\x05hello" + "\x00\x00"

// ticketCount is a cache that counts what is put into it.
type ticketCount struct{ atomic.Int64 }

func (c *ticketCount) Get(string) (*tls.ClientSessionState, bool) { return nil, false }
func (c *ticketCount) Put(string, *tls.ClientSessionState)        { c.Add(1) }

// TestTicketWhileIdle: a record that is no data does not end an idle connection, however many come, and one that is data does.
func TestTicketWhileIdle(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		ca := newAuthority(t)
		idle := make(chan func(*sealer))
		b := lbtest.New(t, func(c *lbtest.Conn) {
			var keys lockedBuffer
			config := ca.server("b.test")
			config.MinVersion, config.SessionTicketsDisabled, config.KeyLogWriter = tls.VersionTLS13, true, &keys
			conn := tls.Server(c.Conn, config)
			if conn.Handshake() != nil {
				return
			}
			s, err := newSealer(c.Conn, keys.String())
			if err != nil || conn.ConnectionState().CipherSuite != tls.TLS_AES_128_GCM_SHA256 {
				t.Errorf("cannot take over: %v", err)
				return
			}
			for {
				if _, err := conn.Read(make([]byte, 4096)); err != nil {
					return
				}
				s.record(recordData, ok2)
				(<-idle)(s)
			}
		})
		cfg := ca.overTLS(kind, "b.test", b)
		cfg.pool.IdleTimeout = patience
		n := start(t, cfg)
		var kept ticketCount
		over := &n.Server.table.Load().pools[0].members[0].backend.over
		config := over.Load().config.Clone()
		config.ClientSessionCache = &kept
		over.Store(&backendTLS{key: over.Load().key, config: config})
		c := n.dial()
		for round := range int64(3) {
			c.say(get("/"))
			c.expect("GET", 200, "hi")
			eventually(t, "idle", func() bool { return n.backend(0).Idle == 1 })
			idle <- func(s *sealer) {
				for range 5 {
					s.record(recordHandshake, ticket)
				}
			}
			eventually(t, "the tickets are read", func() bool { return kept.Load() == 5*(round+1) })
		}
		c.say(get("/"))
		c.expect("GET", 200, "hi")
		if b.Accepted() != 1 {
			t.Errorf("%d connections for 4 requests with tickets between them", b.Accepted())
		}
		idle <- func(s *sealer) { s.record(recordData, "unasked") }
		eventually(t, "a connection with unasked data is closed", func() bool { return n.backend(0).Connections == 0 })
	})
}

// TestBackendTLSTrouble: what is wrong is said in words that tell what to do.
func TestBackendTLSTrouble(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	slow, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	expired := &tls.Config{Certificates: []tls.Certificate{ca.leaf("b.test", newKey(t), -time.Minute)}}
	demanding := func(version uint16) *tls.Config {
		c := ca.server("b.test")
		c.ClientAuth, c.ClientCAs, c.MaxVersion = tls.RequireAndVerifyClientCert, ca.pool, version
		return c
	}
	for _, tc := range []struct {
		name   string
		server *tls.Config // nil: in the clear
		client *tls.Certificate
		want   []string // of the log's line; nil: it works
	}{
		{"good", ca.server("b.test"), nil, nil},
		{"unknown CA", other.server("b.test"), nil, []string{"unknown authority", "tls.trust_bundle"}},
		{"name", ca.server("c.test"), nil, []string{"c.test", "b.test", "tls.server_name"}},
		{"expired", expired, nil, []string{"expired", "renew"}},
		{"client certificate 1.3", demanding(tls.VersionTLS13), nil, []string{"certificate required", "tls.client_certificate"}},
		{"client certificate 1.2", demanding(tls.VersionTLS12), nil, []string{"tls.client_certificate"}},
		{"client certificate given", demanding(tls.VersionTLS13), new(ca.leaf("lbd.test", slow, time.Hour)), nil},
		{"plain", nil, nil, []string{"plain HTTP"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			onEngines(t, func(t *testing.T, kind string) {
				b := lbtest.NewTLS(t, tc.server, lbtest.OK("hi"))
				if tc.server == nil {
					b = lbtest.New(t, func(c *lbtest.Conn) {
						c.Conn.Read(make([]byte, 4096))
						c.Say("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
					})
				}
				cfg := ca.overTLS(kind, "b.test", b)
				if tc.client != nil {
					cfg.pool.TLS.Config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return tc.client, nil }
				}
				var log lockedBuffer
				cfg.logger = slog.New(slog.NewTextHandler(&log, nil))
				n := start(t, cfg)
				c := n.dial()
				c.say(get("/"))
				if tc.want == nil {
					c.expect("GET", 200, "hi")
					return
				}
				c.expectStatus(502)
				if r := n.want(502, ConnectFailed); r.Detail != "backend_tls" {
					t.Errorf("detail %q", r.Detail)
				}
				for _, want := range tc.want {
					if !strings.Contains(log.String(), want) {
						t.Errorf("no %q in %s", want, log.String())
					}
				}
			})
		})
	}
}

// lockedBuffer is a log that two goroutines use.
type lockedBuffer struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.String()
}

// TestPlainToTLSPort: the cause says it.
func TestPlainToTLSPort(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		b := lbtest.New(t, func(c *lbtest.Conn) {
			c.ReadHead()
			c.Say("\x15\x03\x01\x00\x02\x02\x46") // protocol_version
		})
		var log lockedBuffer
		n := start(t, setup{kind: kind, backends: addrs(b), logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
		c := n.dial()
		c.say(get("/"))
		c.expectStatus(502)
		n.want(502, BackendAborted)
		eventually(t, "the cause is in the log", func() bool { return strings.Contains(log.String(), "give the pool tls") })
	})
}

// TestBackendTLSSilent: a handshake that does not go on ends with the time for a connection.
func TestBackendTLSSilent(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		ca := newAuthority(t)
		b := lbtest.New(t, func(c *lbtest.Conn) { io.Copy(io.Discard, c) })
		cfg := ca.overTLS(kind, "b.test", b)
		cfg.pool.ConnectTimeout = short
		cfg.pool.MaxPerBackend = 1
		n := start(t, cfg)
		c := n.dial()
		c.say(get("/"))
		c.expectStatus(504)
		if r := n.want(504, ConnectFailed); r.Detail != "connect_timeout" {
			t.Errorf("detail %q", r.Detail)
		}
		eventually(t, "its slot is free", func() bool { return n.backend(0).Connections == 0 })
	})
}

// TestBackendTLSTunnel: both directions and both ends of a tunnel, TLS on either side.
func TestBackendTLSTunnel(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		const size = 4 << 20
		ca := newAuthority(t)
		b := lbtest.NewTLS(t, ca.server("b.test"), func(c *lbtest.Conn) {
			c.ReadHead()
			c.Say(switched)
			io.Copy(c.Conn, c)
			c.Say("last")
		})
		cfg := ca.overTLS(kind, "b.test", b)
		cfg.tls = testTerminator(t)
		n := start(t, cfg)
		c := n.dialTLS(tls.VersionTLS13)
		c.say(upgrade)
		if resp, err := http.ReadResponse(c.r, nil); err != nil || resp.StatusCode != 101 {
			t.Fatalf("%v %v", resp, err)
		}
		go func() {
			io.Copy(c.Conn, io.LimitReader(repeat('x'), size))
			c.Conn.(*tls.Conn).CloseWrite()
		}()
		all, err := io.ReadAll(c.r)
		if err != nil || len(all) != size+4 || !strings.HasSuffix(string(all), "xlast") {
			t.Errorf("%d bytes, %v", len(all), err)
		}
		n.want(101, OK)
	})
}

// TestBackendTLSCut: an answer whose body ends with its connection is whole only with a farewell.
func TestBackendTLSCut(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		ca := newAuthority(t)
		b := lbtest.NewTLS(t, ca.server("b.test"), func(c *lbtest.Conn) {
			r, err := c.ReadRequest()
			if err != nil {
				return
			}
			c.Say("HTTP/1.1 200 OK\r\n\r\nhalf of it")
			if strings.HasPrefix(r.Line(), "GET /cut") {
				c.Conn.(*tls.Conn).NetConn().Close()
			}
		})
		n := start(t, ca.overTLS(kind, "b.test", b))
		c := n.dial()
		c.say(get("/whole"))
		c.expect("GET", 200, "half of it")
		n.want(200, OK)
		c.say(get("/cut"))
		if _, body, err := c.tryAnswer("GET"); err == nil {
			t.Errorf("a cut body came as whole: %q", body)
		}
		n.want(200, BackendTruncated)
	})
}

// gathered is a connection whose writes are kept.
type gathered struct {
	net.Conn
	bytes.Buffer
}

func (g *gathered) Read(p []byte) (int, error)  { return g.Buffer.Read(p) }
func (g *gathered) Write(p []byte) (int, error) { return g.Buffer.Write(p) }

// TestBackendTLSNoise: a backend that sends tickets without end and no answer is given up.
func TestBackendTLSNoise(t *testing.T) {
	onEngines(t, func(t *testing.T, kind string) {
		ca := newAuthority(t)
		b := lbtest.New(t, func(c *lbtest.Conn) {
			var keys lockedBuffer
			config := ca.server("b.test")
			config.MinVersion, config.SessionTicketsDisabled, config.KeyLogWriter = tls.VersionTLS13, true, &keys
			conn := tls.Server(c.Conn, config)
			if conn.Handshake() != nil {
				return
			}
			s, err := newSealer(c.Conn, keys.String())
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := conn.Read(make([]byte, 4096)); err != nil {
				return
			}
			var much gathered
			s.Conn = &much
			for range 20_000 {
				s.record(recordHandshake, ticket)
			}
			c.Say(much.String())
			io.Copy(io.Discard, c)
		})
		cfg := ca.overTLS(kind, "b.test", b)
		cfg.forward.FirstByte = time.Minute
		cfg.pool.MaxPerBackend = 1
		n := start(t, cfg)
		c := n.dial()
		c.say(get("/"))
		c.expectStatus(502)
		n.want(502, BackendAborted)
		eventually(t, "the connection is given up", func() bool { return n.backend(0).Connections == 0 })
	})
}
