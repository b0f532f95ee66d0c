package tlsterm

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"syscall"
)

// HandshakeCount is one line of the handshake counters.
type HandshakeCount struct {
	Version string // "1.2", "1.3", or "none": the handshake ended before one was agreed
	Kind    string // "full" or "resumed"; what failed before it was decided is "full"
	Result  string // see the table of results
	Count   uint64
}

// result is how a handshake ended.
type result uint8

const (
	resultOK result = iota
	resultClientAborted
	resultTimeout
	resultNotTLS
	resultNoCertificate
	resultClientRefused
	resultFailed
	resultsLen
)

// resultNames are the metric's words.
var resultNames = [resultsLen]string{
	resultOK:            "ok",
	resultClientAborted: "client_aborted", // the connection ended in the middle
	resultTimeout:       "timeout",
	resultNotTLS:        "not_tls",        // the first bytes are something else, often plain HTTP
	resultNoCertificate: "no_certificate", // nothing for this server name, and no default
	resultClientRefused: "client_refused", // the client sent an alert: it does not trust the certificate, for example
	resultFailed:        "failed",         // nothing in common, or bytes that break the protocol
}

// versionNames are in the order of counts' first index.
var versionNames = [...]string{"none", "1.2", "1.3"}

// kindNames are in the order of counts' second index.
var kindNames = [...]string{"full", "resumed"}

// counts are the handshakes so far. One handshake writes one of them, so cores rarely meet on a cache line.
type counts [len(versionNames)][len(kindNames)][resultsLen]atomic.Uint64

// observe counts one handshake.
func (c *counts) observe(conn *tls.Conn, err error) {
	state := conn.ConnectionState()
	version, kind := 0, 0
	switch state.Version {
	case tls.VersionTLS12:
		version = 1
	case tls.VersionTLS13:
		version = 2
	}
	if state.DidResume {
		kind = 1
	}
	c[version][kind][resultOf(err)].Add(1)
}

// resultOf sorts the errors of crypto/tls and of the connection below it.
func resultOf(err error) result {
	var (
		network *net.OpError
		record  tls.RecordHeaderError
		timeout net.Error
	)
	switch {
	case err == nil:
		return resultOK
	case errors.As(err, &network) && network.Op == "remote error":
		return resultClientRefused
	case errors.As(err, &record):
		return resultNotTLS
	case errors.As(err, &timeout) && timeout.Timeout():
		return resultTimeout
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed),
		errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return resultClientAborted
	case errors.Is(err, errNoCertificate):
		return resultNoCertificate
	}
	return resultFailed
}

// Stats lists the handshakes counted so far, without zero lines. Handshakes with ourselves are not among them.
func (t *Terminator) Stats() []HandshakeCount {
	var lines []HandshakeCount
	for version := range t.counts {
		for kind := range t.counts[version] {
			for r := range t.counts[version][kind] {
				if n := t.counts[version][kind][r].Load(); n > 0 {
					lines = append(lines, HandshakeCount{versionNames[version], kindNames[kind], resultNames[r], n})
				}
			}
		}
	}
	return lines
}
