package health

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"
)

// DialFunc opens a connection, as net.Dialer.DialContext does.
type DialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// asker runs checks. Its fields are those of Options.
type asker struct {
	dial       DialFunc
	explainTLS func(error) string
}

// ask runs one check. The error is what an operator reads: it names the phase and what was wanted. The check must be complete.
//
//  1. connect
//  2. TLS, where it is wanted: handshake, verification
//  3. HTTP, where it is wanted: request, status, body
//
// The deadline is for all of it.
func (a asker) ask(ctx context.Context, c Check) error {
	deadline := time.Now().Add(c.Timeout)
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	conn, err := a.dial(ctx, "tcp", c.target())
	if err != nil {
		return a.explain(c, err, "connecting", "connect")
	}
	defer conn.Close() // without tls.Conn's Close, which would wait for a peer that does not read
	_ = conn.SetDeadline(deadline)
	// A prober that is closed does not wait for slow backends.
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()

	switch {
	case c.TLS == nil && c.HTTP == nil:
		return nil
	case c.TLS == nil:
		return a.request(c, conn, deadline)
	}
	secured := tls.Client(conn, c.tlsConfig())
	if err := secured.Handshake(); err != nil {
		return a.explain(c, ifClosed(err, "connection closed in the TLS handshake"), "in the TLS handshake", handshakeVerb)
	}
	if c.HTTP == nil {
		return a.leave(c, secured, deadline)
	}
	return a.request(c, secured, deadline)
}

const handshakeVerb = "TLS handshake"

// request is the HTTP part of a check.
func (a asker) request(c Check, conn net.Conn, deadline time.Time) error {
	if _, err := io.WriteString(conn, c.HTTP.request()); err != nil {
		return a.explain(c, err, "sending the request", "send request")
	}
	answer := bufio.NewReaderSize(conn, lineBytesMax)
	code, err := readStatus(answer)
	if err != nil {
		return a.explain(c, ifClosed(err, "connection closed before the status line"), "waiting for the status line", "read status line")
	}
	if err = c.HTTP.judge(code); err == nil && c.HTTP.ExpectBody != "" {
		if err = c.HTTP.judgeBody(code, answer); err != nil {
			err = a.explain(c, err, "reading the body", "read body")
		}
	}
	drain(conn, answer, deadline)
	return err
}

// tlsConfig is the check's, made whole.
func (c Check) tlsConfig() *tls.Config {
	config := c.TLS.Config.Clone()
	config.ClientSessionCache = nil
	if config.ServerName == "" {
		config.ServerName, _, _ = net.SplitHostPort(c.Address)
	}
	return config
}

// leave ends a connection that was opened for its handshake alone. In TLS 1.3 a backend judges our certificate when the handshake
// is over for us: what it says is waited for, as long as politeness goes.
func (a asker) leave(c Check, conn *tls.Conn, deadline time.Time) error {
	_ = conn.CloseWrite()
	if soon := time.Now().Add(drainTimeout); soon.Before(deadline) {
		deadline = soon
	}
	_ = conn.SetReadDeadline(deadline)
	if _, err := io.CopyN(io.Discard, conn, drainBytesMax); isAlert(err) {
		return a.explain(c, err, "", "TLS")
	}
	return nil
}

// isAlert reports whether an error is what the peer has said in TLS.
func isAlert(err error) bool {
	var network *net.OpError
	return errors.As(err, &network) && network.Op == "remote error"
}

// drain reads the rest of a small answer, so that closing does not reset the connection under the backend's feet.
func drain(conn net.Conn, answer *bufio.Reader, deadline time.Time) {
	if soon := time.Now().Add(drainTimeout); soon.Before(deadline) {
		_ = conn.SetReadDeadline(soon)
	}
	_, _ = io.CopyN(io.Discard, answer, drainBytesMax)
}

// judgement is an error that is already in an operator's words.
type judgement string

func (j judgement) Error() string { return string(j) }

// ifClosed says where a connection ended, in place of an error that says only that it did.
func ifClosed(err error, words judgement) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return words
	}
	return err
}

// explain puts an error of the network or of TLS into words: phase is for "timeout after 1s …", verb for anything else.
func (a asker) explain(c Check, err error, phase, verb string) error {
	var (
		said    judgement
		timeout net.Error
		number  syscall.Errno
		name    *net.DNSError
	)
	switch {
	case errors.As(err, &said):
		return said
	case errors.As(err, &name) && name.IsNotFound:
		return fmt.Errorf("resolve: no such host %s", name.Name)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("timeout after %s %s", c.Timeout, phase)
	case errors.As(err, &number):
		return fmt.Errorf("%s: %w", verb, number)
	case c.TLS != nil && (isAlert(err) || verb == handshakeVerb):
		return errors.New("TLS: " + a.explainTLS(err))
	}
	return fmt.Errorf("%s: %w", verb, err)
}
