package lb

import (
	"crypto"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"lbd/lb/loop"
)

// backendTLS is how one backend is spoken to: immutable but for the session that it keeps.
type backendTLS struct {
	key    string
	config *tls.Config
}

// newBackendTLS completes a pool's settings for the backend of that name ("host:port").
func newBackendTLS(cfg *BackendTLS, name string) *backendTLS {
	c := cfg.Config.Clone()
	if c.ServerName == "" {
		host, _, err := net.SplitHostPort(name)
		if err != nil {
			host = name
		}
		c.ServerName, _, _ = strings.Cut(host, "%") // an address has no zone in a certificate
	}
	c.NextProtos = []string{"http/1.1"}
	// The newest session is the one to resume; each backend has its own keys, so its own cache.
	c.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	c.DynamicRecordSizingDisabled = true // as for clients: fewer and larger writes
	return &backendTLS{key: cfg.Key, config: c}
}

// speak sets how new connections to the backend are made. What it was before ends its idle connections when they are looked at.
func (b *Backend) speak(cfg *BackendTLS) {
	switch now := b.over.Load(); {
	case cfg == nil:
		b.over.Store(nil)
	case now == nil || now.key != cfg.Key:
		b.over.Store(newBackendTLS(cfg, b.name))
	}
}

// handshake begins TLS on a new connection, as heavy steps of the loop.
func (bc *backendConn) handshake(deadline time.Time) error {
	c := bc.c
	c.SetHeavy(true)
	c.SetDeadline(deadline)
	conn := tls.Client(wire{c}, bc.over.configFor(c))
	err := conn.Handshake()
	c.SetHeavy(false)
	c.SetDeadline(time.Time{})
	if err == nil {
		bc.tls, bc.io = conn, conn
	}
	return err
}

// wire is the connection under TLS. It tells an end without a farewell (close_notify) from one with it, which crypto/tls does not between
// two records: a body that ends with its connection would not show that it was cut (RFC 8446 6.1, RFC 9112 9.8).
type wire struct{ *loop.Conn }

func (w wire) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	if err == io.EOF {
		err = errNoFarewell
	}
	return n, err
}

var errNoFarewell = fmt.Errorf("the backend ended its TLS connection without close_notify: %w", io.ErrUnexpectedEOF)

// configFor is the configuration for one connection: if we have a certificate to show, its RSA key signs on a worker.
func (o *backendTLS) configFor(c *loop.Conn) *tls.Config {
	show := o.config.GetClientCertificate
	if show == nil {
		return o.config
	}
	config := o.config.Clone()
	config.GetClientCertificate = func(info *tls.CertificateRequestInfo) (*tls.Certificate, error) {
		cert, err := show(info)
		if err != nil || cert == nil {
			return cert, err
		}
		signer, ok := cert.PrivateKey.(crypto.Signer)
		if !ok {
			return cert, nil
		}
		if _, slow := signer.Public().(*rsa.PublicKey); !slow {
			return cert, nil
		}
		ours := *cert
		ours.PrivateKey = workerSigner{signer, c}
		return &ours, nil
	}
	return config
}

// workerSigner signs away from the loop.
type workerSigner struct {
	crypto.Signer
	conn *loop.Conn
}

var errNotSigned = errors.New("sign: the connection's loop has stopped")

func (s workerSigner) Sign(random io.Reader, digest []byte, opts crypto.SignerOpts) (signature []byte, err error) {
	err = errNotSigned
	s.conn.Offload(func() { signature, err = s.Signer.Sign(random, digest, opts) })
	return signature, err
}

// quiet reports whether there is nothing to read and the connection is open. On TLS that takes a read, which deals with what is
// nobody's answer: new tickets and keys.
func (bc *backendConn) quiet() bool {
	if bc.tls == nil {
		return true
	}
	n, err := bc.tls.Read(bc.probe[:])
	return n == 0 && err == loop.ErrWouldBlock
}

// read reads what is there. A record is at most 16 KiB: several go into a larger buffer, as far as they have come.
func (bc *backendConn) read(p []byte) (n int, err error) {
	if bc.tls == nil {
		return bc.c.Read(p)
	}
	for n < len(p) {
		var k int
		if k, err = bc.tls.Read(p[n:]); k == 0 {
			break
		}
		n += k
	}
	if n > 0 {
		return n, nil // an error stays until the next read
	}
	return 0, err
}

// tlsFault says why a backend could not be spoken to in TLS. It is the operator's to mend, so the log has it without being asked.
func (x *exchange) tlsFault(err error, again retry) *fault {
	f := &fault{reason: ConnectFailed, status: 502, detail: "backend_tls", retry: again, on: OnConnectFailure}
	switch {
	case isTimeout(err):
		f.status, f.detail, f.cause = 504, "connect_timeout", err
		return f
	case errors.Is(err, loop.ErrClosed):
		return &fault{reason: Drained, status: 503, detail: "closing", cause: err}
	case errors.Is(err, loop.ErrOverloaded):
		return &fault{reason: Shed, status: 503, detail: "backend_tls", cause: err}
	}
	f.cause = tlsTrouble(err)
	b := x.backend
	if now, last := x.t.Now().Unix(), b.warned.Load(); now-last >= backendWarningSeconds && b.warned.CompareAndSwap(last, now) {
		x.server.log.Warn("backend refused: TLS", "pool", x.pool.name, "backend", b.name, "cause", f.cause)
	}
	return f
}

// isAlert reports whether the peer has sent a TLS alert: of TLS 1.3, what it says of our certificate comes after our handshake.
func isAlert(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error"
}

// tlsTrouble adds to the error of a handshake what to do about it.
func tlsTrouble(err error) error {
	var authority x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	var header tls.RecordHeaderError
	text := err.Error()
	switch {
	case errors.As(err, &authority):
		return fmt.Errorf("%w: name a trust bundle with its CA in the pool's tls.trust_bundle", err)
	case errors.As(err, &name):
		return fmt.Errorf("%w: set the pool's tls.server_name to a name that it has", err)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Errorf("%w: renew the backend's certificate, or set this node's clock", err)
	case errors.As(err, &header) && string(header.RecordHeader[:]) == "HTTP/":
		return fmt.Errorf("%w: the backend answers in plain HTTP on this port: remove the pool's tls, or use its TLS port", err)
	case errors.As(err, &header):
		return fmt.Errorf("%w: the backend does not speak TLS on this port", err)
	case isAlert(err):
		return fmt.Errorf("%w: %s", err, alertRemedy(text))
	case errors.Is(err, io.EOF), isGone(err):
		return fmt.Errorf("%w: the backend ended the connection in the handshake: does it speak TLS on this port?", err)
	}
	return err
}

// alertRemedy: crypto/tls exports no numbers of alerts, so they are told by their words.
func alertRemedy(text string) string {
	switch {
	case strings.Contains(text, "certificate required"), strings.Contains(text, "bad certificate"),
		strings.Contains(text, "unknown certificate"), strings.Contains(text, "unsupported certificate"):
		return "the backend wants a client certificate that it trusts: set the pool's tls.client_certificate"
	case strings.Contains(text, "expired certificate"), strings.Contains(text, "revoked certificate"):
		return "the backend does not take our client certificate any more: renew it"
	case strings.Contains(text, "unrecognized name"):
		return "the backend does not know that name: set the pool's tls.server_name"
	case strings.Contains(text, "handshake failure"):
		return "no common cipher suite, or the backend wants a client certificate (the pool's tls.client_certificate)"
	case strings.Contains(text, "protocol version"):
		return "the backend offers no TLS version from 1.2 on"
	}
	return "the backend ended the handshake"
}

// errSpeaksTLS is what an answer that begins like a TLS record means.
var errSpeaksTLS = errors.New("the backend answers plain HTTP with a TLS record: it speaks TLS on this port: give the pool tls, or use its plain port")

// mistaken returns why what has come of an answer is none: that it is TLS, else err.
func (bc *backendConn) mistaken(err error) error {
	if head := bc.in.bytes(); bc.tls == nil && len(head) >= 2 && (head[0] == recordAlert || head[0] == recordHandshake) && head[1] == 3 {
		return errSpeaksTLS
	}
	return err
}

// Types of TLS records.
const (
	recordAlert     = 21
	recordHandshake = 22
)
