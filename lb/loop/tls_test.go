package loop

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var testCertificate = sync.OnceValue(func() tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		panic(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
})

// offloader signs on a worker, through the connection that the handshake is on.
type offloader struct {
	crypto.Signer
	conn  interface{ Offload(func()) }
	calls *atomic.Int64
}

func (o offloader) Sign(rand io.Reader, digest []byte, opts crypto.SignerOpts) (sig []byte, err error) {
	o.conn.Offload(func() {
		o.calls.Add(1)
		sig, err = o.Signer.Sign(rand, digest, opts)
	})
	return sig, err
}

func serverConfig(signed *atomic.Int64) *tls.Config {
	return &tls.Config{GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		cert := testCertificate()
		cert.PrivateKey = offloader{cert.PrivateKey.(crypto.Signer), hello.Conn.(*Conn), signed}
		return &cert, nil
	}}
}

var clientConfig = &tls.Config{InsecureSkipVerify: true}

// An unmodified tls.Conn in a task: handshake in the heavy class, signature on a
// worker, data both ways, parked while idle with the same tls.Conn resumed.
func TestTLS(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		e := start(t, kind, 2)
		var signed atomic.Int64
		config := serverConfig(&signed)
		serve := func(task *Task, c *Conn) {
			c.SetHeavy(true)
			c.SetDeadline(time.Now().Add(patience))
			tc := tls.Server(c, config)
			if err := tc.Handshake(); err != nil {
				t.Error(err)
				return
			}
			c.SetHeavy(false)
			c.SetNonblocking(true)
			c.SetReadDeadline(time.Time{})
			var resume Handler
			resume = func(task *Task, c *Conn) {
				b := task.Buffer()
				defer task.Release(b)
				for {
					n, err := tc.Read(b)
					switch {
					case errors.Is(err, ErrWouldBlock):
						c.Park(time.Now().Add(patience), resume)
						return
					case err != nil:
						tc.Close()
						return
					}
					tc.Write(b[:n])
				}
			}
			resume(task, c)
		}
		l := listen(t, e, ListenOptions{Handler: serve, Heavy: true})
		var clients sync.WaitGroup
		for range 8 {
			clients.Go(func() {
				tc := tls.Client(dial(t, l), clientConfig)
				for _, size := range []int{1, 100, 5000, 100_000} {
					want := bytes.Repeat([]byte{byte(size)}, size)
					tc.Write(want)
					got := make([]byte, size)
					if _, err := io.ReadFull(tc, got); err != nil || !bytes.Equal(got, want) {
						t.Errorf("%d bytes: %v", size, err)
						return
					}
				}
				tc.Close()
			})
		}
		clients.Wait()
		settle(t, e, "all closed", func(s Stats) bool { return connections(s) == 0 })
		if n := signed.Load(); n != 8 {
			t.Errorf("%d signatures on workers", n)
		}
	})
}

// A ClientHello that comes byte by byte, while the connection is nonblocking
// afterwards only, still ends in a handshake; and a record that comes byte by
// byte leaves tls.Conn.Read resumable.
func TestTLSByteByByte(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		e := start(t, kind, 1)
		var signed atomic.Int64
		config := serverConfig(&signed)
		var wouldBlock atomic.Int64
		l := listen(t, e, ListenOptions{Handler: func(task *Task, c *Conn) {
			tc := tls.Server(c, config)
			if err := tc.Handshake(); err != nil {
				t.Error(err)
				return
			}
			c.SetNonblocking(true)
			b := make([]byte, 100)
			for {
				n, err := tc.Read(b)
				if errors.Is(err, ErrWouldBlock) {
					wouldBlock.Add(1)
					if _, err := task.Wait(time.Now().Add(patience), Want{Conn: c, Read: true}); err != nil {
						t.Error(err)
						return
					}
					continue
				}
				if err != nil {
					return
				}
				tc.Write(b[:n])
			}
		}})
		tc := tls.Client(dribble{dial(t, l)}, clientConfig)
		for range 3 {
			send(t, tc, "slowly")
			expect(t, tc, "slowly")
		}
		tc.Close()
		settle(t, e, "closed", func(s Stats) bool { return connections(s) == 0 })
		if wouldBlock.Load() < 3 {
			t.Errorf("the read was resumed %d times", wouldBlock.Load())
		}
	})
}

// dribble writes one byte a segment.
type dribble struct{ net.Conn }

func (d dribble) Write(p []byte) (int, error) {
	for i := range p {
		if _, err := d.Conn.Write(p[i : i+1]); err != nil {
			return i, err
		}
	}
	return len(p), nil
}

// tls.Conn.Close sends an alert, for which it waits up to 5 s, by a deadline of
// its own, if the peer does not read. With queued writes it does not wait.
func TestTLSCloseToDeafPeer(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		e := start(t, kind, 1)
		var signed atomic.Int64
		config := serverConfig(&signed)
		took := make(chan time.Duration, 1)
		l := listen(t, e, ListenOptions{Handler: func(task *Task, c *Conn) {
			tc := tls.Server(c, config)
			if err := tc.Handshake(); err != nil {
				t.Error(err)
				return
			}
			c.SetQueued(1 << 20)
			for c.Pending() < 100<<10 {
				tc.Write(make([]byte, 256<<10))
				task.Sleep(10 * time.Millisecond) // leaves the twin's flusher its time
			}
			begin := time.Now()
			if err := tc.Close(); err != nil {
				t.Error(err)
			}
			took <- time.Since(begin)
		}})
		tc := tls.Client(dial(t, l), clientConfig)
		if err := tc.Handshake(); err != nil {
			t.Fatal(err)
		}
		if d := within(t, took, "close"); d > time.Second {
			t.Errorf("close took %v", d)
		}
		settle(t, e, "closed", func(s Stats) bool { return connections(s) == 0 })
	})
}
