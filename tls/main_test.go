package tlsterm

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"

	"lbd/tls/tlstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// certificate makes a servable certificate from a test pair.
func certificate(t testing.TB, name string, p *tlstest.Pair) *Certificate {
	t.Helper()
	c, err := NewCertificate(name, p.Chain, p.KeyPKCS8)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// terminator serves certificates on a listener named "https".
func terminator(t testing.TB, policy Policy, certificates ...*Certificate) *Terminator {
	t.Helper()
	c := NewCertificates()
	c.Replace(NewSet(certificates))
	tickets := NewTickets()
	tickets.Replace(NewTicketKeys(1, &TicketKey{Epoch: 1, Name: [16]byte{1}, Secret: [32]byte{1}}, nil, nil))
	term := NewTerminator(c, tickets)
	if err := term.SetListener("https", policy); err != nil {
		t.Fatal(err)
	}
	return term
}

// dial runs a client against the listener "https" and returns what the client saw and what Handshake said. The client
// reads to the end, so that tickets arrive.
func dial(t testing.TB, term *Terminator, config *tls.Config) (state tls.ConnectionState, clientErr, serverErr error) {
	t.Helper()
	return dialOver(t, term, config, func(c net.Conn) net.Conn { return c })
}

func dialOver(t testing.TB, term *Terminator, config *tls.Config, wrap func(net.Conn) net.Conn) (state tls.ConnectionState, clientErr, serverErr error) {
	t.Helper()
	near, far := loopback(t)
	deadline := time.Now().Add(10 * time.Second)
	_ = near.SetDeadline(deadline)
	_ = far.SetDeadline(deadline)
	done := make(chan error)
	go func() {
		conn, err := term.Handshake(wrap(far), "https")
		if err == nil {
			_ = conn.CloseWrite()
		}
		_ = far.Close()
		done <- err
	}()
	client := tls.Client(near, config)
	if clientErr = client.Handshake(); clientErr == nil {
		_, clientErr = io.Copy(io.Discard, client)
		state = client.ConnectionState()
	}
	_ = near.Close()
	return state, clientErr, <-done
}

// loopback is a connection through the kernel: unlike a pipe it has buffers, and both ends may write at once.
func loopback(t testing.TB) (near, far net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if near, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if far, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return near, far
}

// mustDial is dial for a handshake that succeeds.
func mustDial(t testing.TB, term *Terminator, config *tls.Config) tls.ConnectionState {
	t.Helper()
	state, clientErr, serverErr := dial(t, term, config)
	if clientErr != nil || serverErr != nil {
		t.Fatalf("client: %v, server: %v", clientErr, serverErr)
	}
	return state
}

// client is a client that trusts the authority.
func client(roots *x509.CertPool, host string) *tls.Config {
	return &tls.Config{ServerName: host, RootCAs: roots}
}

func servedSerial(state tls.ConnectionState) string { return serialOf(state.PeerCertificates[0]) }

func pemOf(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
