package tlsterm

import (
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"sync"
	"sync/atomic"
)

// Policy is what one listener offers.
type Policy struct {
	// MinVersion and MaxVersion are tls.VersionTLS12 or tls.VersionTLS13; 0 is 1.2 for the least and 1.3 for the most.
	MinVersion, MaxVersion uint16
	// DefaultCertificate is the name of the certificate for clients that send no server name or one that no certificate
	// has. If there is none of that name such a client is refused (alert unrecognized_name, RFC 6066 section 3).
	DefaultCertificate string
}

// Terminator makes server-side TLS connections for listeners.
type Terminator struct {
	certificates *Certificates
	counts       counts

	mu        sync.Mutex // serialises writers of listeners
	listeners atomic.Pointer[map[string]*listener]
}

// listener is one listener's TLS. It outlives changes of its policy and of the certificates: its tls.Config holds the keys
// of the tickets that its clients come back with.
type listener struct {
	name         string
	certificates *Certificates
	policy       atomic.Pointer[Policy]
	config       atomic.Pointer[tls.Config]
}

// NewTerminator serves from certificates. It knows no listener yet.
func NewTerminator(certificates *Certificates) *Terminator {
	t := &Terminator{certificates: certificates}
	t.listeners.Store(&map[string]*listener{})
	return t
}

// SetListener adds a listener or changes its policy, from the next handshake on. Tickets stay good. A version outside
// TLS 1.2 and 1.3, or a maximum below the minimum, is an error and changes nothing.
func (t *Terminator) SetListener(name string, policy Policy) error {
	policy, err := policy.complete()
	if err != nil {
		return fmt.Errorf("listener %s: %w", name, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if l := (*t.listeners.Load())[name]; l != nil {
		l.setPolicy(policy)
		return nil
	}
	listeners := maps.Clone(*t.listeners.Load())
	listeners[name] = newListener(name, policy, t.certificates)
	t.listeners.Store(&listeners)
	return nil
}

// RemoveListener forgets a listener and its tickets' keys. Connections of it live on.
func (t *Terminator) RemoveListener(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	listeners := maps.Clone(*t.listeners.Load())
	delete(listeners, name)
	t.listeners.Store(&listeners)
}

// Handshake ends TLS on a fresh connection of a listener. The deadline is c's own; there is no context, which would close c
// from another goroutine. On an error the alert has been sent, as far as the peer takes it, and c is the caller's to
// close; the connection is returned for what the client had said by then, and the error is a *HandshakeError.
//
// If c has a method Offload(func()), RSA keys sign through it.
func (t *Terminator) Handshake(c net.Conn, listener string) (*tls.Conn, error) {
	l, err := t.listener(listener)
	if err != nil {
		return nil, err
	}
	conn, err := l.handshake(c)
	t.counts.observe(conn, err)
	if err != nil {
		return conn, &HandshakeError{err}
	}
	return conn, nil
}

// HandshakeError is a handshake that failed.
type HandshakeError struct{ cause error }

func (e *HandshakeError) Error() string { return "TLS handshake: " + e.cause.Error() }

func (e *HandshakeError) Unwrap() error { return e.cause }

// Detail is the word that counts it as a result in Stats.
func (e *HandshakeError) Detail() string { return resultNames[resultOf(e.cause)] }

func (t *Terminator) listener(name string) (*listener, error) {
	if l := (*t.listeners.Load())[name]; l != nil {
		return l, nil
	}
	return nil, fmt.Errorf("listener %s has no TLS policy", name)
}

// complete fills in defaults and checks versions.
func (p Policy) complete() (Policy, error) {
	if p.MinVersion == 0 {
		p.MinVersion = tls.VersionTLS12
	}
	if p.MaxVersion == 0 {
		p.MaxVersion = tls.VersionTLS13
	}
	if p.MinVersion < tls.VersionTLS12 || p.MaxVersion > tls.VersionTLS13 || p.MaxVersion < p.MinVersion {
		return p, fmt.Errorf("cannot offer %s to %s: TLS 1.2 and 1.3 are safe to offer, the maximum not below the minimum",
			tls.VersionName(p.MinVersion), tls.VersionName(p.MaxVersion))
	}
	return p, nil
}

func newListener(name string, policy Policy, certificates *Certificates) *listener {
	l := &listener{name: name, certificates: certificates}
	l.policy.Store(&policy)
	l.config.Store(&tls.Config{
		GetCertificate: l.getCertificate,
		MinVersion:     policy.MinVersion,
		MaxVersion:     policy.MaxVersion,
		NextProtos:     []string{"http/1.1"},
		// Small records first would be small writes first: five system calls for the first 16 KiB, in place of one.
		DynamicRecordSizingDisabled: true,
	})
	return l
}

// setPolicy makes a new tls.Config only if it must; Clone takes the ticket keys along.
func (l *listener) setPolicy(policy Policy) {
	old := l.policy.Swap(&policy)
	if old.MinVersion == policy.MinVersion && old.MaxVersion == policy.MaxVersion {
		return
	}
	config := l.config.Load().Clone()
	config.MinVersion, config.MaxVersion = policy.MinVersion, policy.MaxVersion
	l.config.Store(config)
}

// handshake is the one path to a TLS connection, for clients and for the proof. The connection is returned with an error
// too: what the client had said by then belongs into the counters.
func (l *listener) handshake(c net.Conn) (*tls.Conn, error) {
	conn := tls.Server(c, l.config.Load())
	err := conn.Handshake()
	if err != nil && err.Error() == noCertificateText {
		err = fmt.Errorf("%w: server name %q", errNoCertificate, conn.ConnectionState().ServerName)
	}
	return conn, err
}

// errNoCertificate ends the handshake of a client for which there is no certificate.
var errNoCertificate = errors.New("no certificate and no default certificate")

// noCertificateText is how crypto/tls, which does not export the error, says that getCertificate had nothing.
const noCertificateText = "tls: no certificates configured"

// getCertificate is called by crypto/tls in a full handshake. Neither certificate nor error makes it answer
// unrecognized_name; an error would make it internal_error.
func (l *listener) getCertificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	if proof, ok := hello.Conn.(*proofConn); ok {
		hello = proof.narrow(hello)
	}
	c := l.certificates.ForHello(hello, l.policy.Load().DefaultCertificate)
	if c == nil {
		return nil, nil
	}
	return c.forConn(hello), nil
}
