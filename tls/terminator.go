package tlsterm

import (
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Terminator makes server-side TLS connections for listeners.
type Terminator struct {
	certificates *Certificates
	tickets      *Tickets
	counts       counts
	resumptions  resumptions
	ages         ages

	mu        sync.Mutex // serialises writers of listeners
	listeners atomic.Pointer[map[string]*listener]
}

// listener is one listener's TLS. It outlives changes of its policy and of the certificates.
type listener struct {
	name         string
	certificates *Certificates
	tickets      *Tickets
	now          func() time.Time
	policy       atomic.Pointer[Policy]
	config       atomic.Pointer[tls.Config]
}

// NewTerminator serves from certificates, and issues and accepts tickets under tickets' keys. It knows no listener yet.
func NewTerminator(certificates *Certificates, tickets *Tickets) *Terminator {
	t := &Terminator{certificates: certificates, tickets: tickets}
	t.listeners.Store(&map[string]*listener{})
	return t
}

// SetListener adds a listener or changes its policy, from the next handshake on. Tickets stay good. What cannot be offered
// (a version outside TLS 1.2 and 1.3, a maximum below the minimum, suites or groups that are none of ours) is an error and
// changes nothing.
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
	listeners[name] = newListener(name, policy, t.certificates, t.tickets)
	t.listeners.Store(&listeners)
	return nil
}

// RemoveListener forgets a listener. Connections of it live on.
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
	conn, a, err := l.handshake(c)
	t.counts.observe(conn, err)
	if err != nil {
		return conn, &HandshakeError{err}
	}
	t.observe(a, conn.ConnectionState().DidResume)
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

func newListener(name string, policy Policy, certificates *Certificates, tickets *Tickets) *listener {
	l := &listener{name: name, certificates: certificates, tickets: tickets, now: time.Now}
	l.policy.Store(&policy)
	config := &tls.Config{
		GetCertificate: l.getCertificate,
		NextProtos:     []string{"http/1.1"},
		// Small records first would be small writes first: five system calls for the first 16 KiB, in place of one.
		DynamicRecordSizingDisabled: true,
	}
	policy.configure(config)
	l.config.Store(config)
	return l
}

// setPolicy makes a new tls.Config only if it must.
func (l *listener) setPolicy(policy Policy) {
	old := l.policy.Swap(&policy)
	if old.configuresLike(&policy) {
		return
	}
	config := l.config.Load().Clone()
	policy.configure(config)
	l.config.Store(config)
}

// handshake is the one path to a TLS connection, for clients and for the proof. The connection is returned with an error
// too: what the client had said by then belongs into the counters.
func (l *listener) handshake(c net.Conn) (*tls.Conn, *attempt, error) {
	a := &attempt{listener: l, keys: l.tickets.Current()}
	conn := tls.Server(c, a.config())
	err := conn.Handshake()
	if err != nil && err.Error() == noCertificateText {
		err = fmt.Errorf("%w: server name %q", errNoCertificate, conn.ConnectionState().ServerName)
	}
	return conn, a, err
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
	c := l.certificates.ForHello(hello, l.policy.Load())
	if c == nil {
		return nil, nil
	}
	return c.forConn(hello), nil
}
