package tlsterm

import (
	"crypto"
	"crypto/tls"
	"errors"
	"io"
)

// offloader is a connection that can run a function away from the event loop that owns it, and returns when it has run.
type offloader interface{ Offload(fn func()) }

// errNotSigned is what a handshake ends with if its loop went away before the worker had signed.
var errNotSigned = errors.New("sign: the connection's loop has stopped")

// offloadSigner signs on a worker. An RSA-2048 signature takes about a millisecond: inside a loop, every other
// connection of that loop would wait for it. As it is no crypto.Decrypter, static RSA key exchange is out of reach.
type offloadSigner struct {
	crypto.Signer
	conn offloader
}

func (s offloadSigner) Sign(rand io.Reader, digest []byte, opts crypto.SignerOpts) (signature []byte, err error) {
	err = errNotSigned
	s.conn.Offload(func() { signature, err = s.Signer.Sign(rand, digest, opts) })
	return signature, err
}

// forConn is the certificate as crypto/tls uses it on one connection.
func (c *Certificate) forConn(hello *tls.ClientHelloInfo) *tls.Certificate {
	conn, ok := hello.Conn.(offloader)
	if c.kind != kindRSA || !ok {
		return &c.served
	}
	served := c.served
	served.PrivateKey = offloadSigner{Signer: c.served.PrivateKey.(crypto.Signer), conn: conn}
	return &served
}
