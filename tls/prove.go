package tlsterm

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

// ErrNotOffered says that no client of the listener is shown a certificate: the listener is not to serve it, a newer
// one has all of its names, it has only addresses and is not the default, or no version and suite on offer goes with its key.
var ErrNotOffered = errors.New("no client is shown this certificate")

// Prove makes a TLS handshake with itself, through the listener's real path, as a client that asks for one of the
// certificate's names and can verify only its kind of key. It answers the serial that was served, which is c's unless
// what is served is not what c's holder thinks; comparing is the caller's part. ErrNotOffered if no name leads to c. An
// error that is os.ErrDeadlineExceeded (after 5 s) proves nothing, neither way.
func (t *Terminator) Prove(listener string, c *Certificate) (serial string, err error) {
	l, err := t.listener(listener)
	if err != nil {
		return "", err
	}
	host, version, err := l.provable(c)
	if err != nil {
		return "", err
	}
	return l.prove(host, version, c.kind)
}

// prove runs both ends.
func (l *listener) prove(host string, version uint16, kind keyKind) (string, error) {
	near, far := net.Pipe()
	deadline := time.Now().Add(proofTimeout)
	_ = near.SetDeadline(deadline)
	_ = far.SetDeadline(deadline)

	served := make(chan error, 1)
	go func() {
		conn, _, err := l.handshake(&proofConn{Conn: far, kind: kind})
		if err == nil {
			_ = conn.CloseWrite()
		}
		_ = far.Close()
		served <- err
	}()
	serial, err := askSerial(near, host, version, l.policy.Load().Groups)
	_ = near.Close()
	if serverErr := <-served; serverErr != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		err = serverErr // the client has only the alert
	}
	if err != nil {
		return "", fmt.Errorf("handshake with ourselves as %q on listener %s: %w", host, l.name, err)
	}
	return serial, nil
}

// askSerial is the client's end. It reads on to the end of the stream, so that the server's ticket finds a reader: the pipe has
// no buffer. For the same reason it offers the listener's groups and no others: where the server has to ask for another key share
// (RFC 8446, section 4.1.4), both ends write at once.
func askSerial(c net.Conn, host string, version uint16, groups []tls.CurveID) (string, error) {
	conn := tls.Client(c, &tls.Config{
		ServerName:       host,
		MinVersion:       version,
		MaxVersion:       version,
		CipherSuites:     cipherSuites,
		CurvePreferences: groups,
		// What is asked is which certificate is served, not whether anyone trusts it.
		InsecureSkipVerify: true,
	})
	if err := conn.Handshake(); err != nil {
		return "", err
	}
	if _, err := io.Copy(io.Discard, conn); err != nil {
		return "", err
	}
	return serialOf(conn.ConnectionState().PeerCertificates[0]), nil
}

// proofConn marks a connection with ourselves and says which kind of key its client wants to see.
type proofConn struct {
	net.Conn
	kind keyKind
}

// schemesByKind are the signature algorithms of a client that can verify one kind of key alone.
var schemesByKind = [keyKinds][]tls.SignatureScheme{
	kindECDSA:   {tls.ECDSAWithP256AndSHA256, tls.ECDSAWithP384AndSHA384, tls.ECDSAWithP521AndSHA512},
	kindEd25519: {tls.Ed25519},
	kindRSA:     {tls.PSSWithSHA256, tls.PSSWithSHA384, tls.PSSWithSHA512, tls.PKCS1WithSHA256},
}

// narrow is hello as it would be if the client knew only the wanted kind. crypto/tls has no setting for that on its
// client's side; its own client verifies whatever is chosen.
func (p *proofConn) narrow(hello *tls.ClientHelloInfo) *tls.ClientHelloInfo {
	narrow := *hello
	narrow.SignatureSchemes = schemesByKind[p.kind]
	return &narrow
}

// provable is a server name ("" is to send none) and a version by which a client that can verify c's kind of key is shown c now.
func (l *listener) provable(c *Certificate) (host string, version uint16, err error) {
	set, policy, now := l.certificates.Current(), l.policy.Load(), l.certificates.now()
	if set.Get(c.name) != c {
		return "", 0, fmt.Errorf("certificate %s: what is served under this name is another certificate or none", c.name)
	}
	for host := range c.serverNames() {
		if version := set.seenIn(c, host, policy, now); version != 0 {
			return host, version, nil
		}
	}
	return "", 0, fmt.Errorf("certificate %s on listener %s: %w", c.name, l.name, ErrNotOffered)
}
