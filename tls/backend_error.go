package tlsterm

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"time"
)

// ExplainBackendError puts the error of a TLS connection to a backend into an operator's words: which verification failed and
// on what, or what the backend said. It is for what may come out of a handshake or of the first read after it, where a backend
// of TLS 1.3 says that it wants another client certificate. "" for nil.
func ExplainBackendError(err error) string {
	if err == nil {
		return ""
	}
	var (
		record  tls.RecordHeaderError
		network *net.OpError
		timeout net.Error
	)
	switch {
	case errors.As(err, &record):
		return fmt.Sprintf("the backend does not speak TLS: it answered %q", record.RecordHeader[:])
	case errors.As(err, &network) && network.Op == "remote error":
		return explainAlert(strings.TrimPrefix(network.Err.Error(), "tls: "))
	case errors.As(err, &timeout) && timeout.Timeout():
		return "timeout in the TLS handshake"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "the backend closed the connection in the TLS handshake"
	}
	if text := explainVerification(err); text != "" {
		return text
	}
	return strings.TrimPrefix(plain(err), "tls: ")
}

// explainVerification is "" for an error that is not about the backend's certificate.
func explainVerification(err error) string {
	var (
		shown   *tls.CertificateVerificationError
		unknown x509.UnknownAuthorityError
		name    x509.HostnameError
		invalid x509.CertificateInvalidError
	)
	switch {
	case errors.As(err, &name):
		return fmt.Sprintf("the backend's certificate is for %s, not for %s", leafNames(name.Certificate), name.Host)
	case errors.As(err, &invalid):
		return explainInvalid(invalid)
	case errors.As(err, &unknown):
		last := unknown.Cert
		if errors.As(err, &shown) && len(shown.UnverifiedCertificates) > 0 {
			last = shown.UnverifiedCertificates[len(shown.UnverifiedCertificates)-1]
		}
		return explainUnknown(last)
	}
	return ""
}

// explainUnknown says who signed the last certificate that the backend has shown.
func explainUnknown(last *x509.Certificate) string {
	const cure = "is not trusted: name it in the pool's tls.trust_bundle"
	switch {
	case last == nil:
		return "the backend's certificate is signed by an authority that " + cure
	case last.CheckSignatureFrom(last) == nil || string(last.RawIssuer) == string(last.RawSubject):
		return fmt.Sprintf("the backend's certificate (%s) signs itself and %s", subject(last), cure)
	}
	return fmt.Sprintf("the backend's certificate leads to the authority %q, which %s, or have the backend send its intermediates", last.Issuer.String(), cure)
}

// explainInvalid is for a certificate that no authority makes good.
func explainInvalid(e x509.CertificateInvalidError) string {
	who := fmt.Sprintf("the backend's certificate (%s)", subject(e.Cert))
	switch e.Reason {
	case x509.Expired:
		if now := time.Now(); now.Before(e.Cert.NotBefore) {
			return fmt.Sprintf("%s is not valid before %s", who, e.Cert.NotBefore.UTC().Format(time.RFC3339))
		}
		return fmt.Sprintf("%s expired at %s", who, e.Cert.NotAfter.UTC().Format(time.RFC3339))
	case x509.IncompatibleUsage:
		return who + " is not for servers (extended key usage)"
	case x509.NotAuthorizedToSign:
		return who + " is used as an authority and is none"
	}
	return who + " is refused: " + plain(e)
}

// explainAlert puts what a backend has said of us into words (RFC 8446, section 6.2).
func explainAlert(alert string) string {
	switch alert {
	case "certificate required":
		return "the backend demands a client certificate: name one in the pool's tls.client_certificate"
	case "bad certificate", "unsupported certificate", "revoked certificate", "expired certificate", "unknown certificate",
		"unknown certificate authority", "access denied":
		return "the backend refuses the client certificate, or wants one: " + alert
	case "unrecognized name":
		return "the backend has no certificate for the server name that is asked for: see the pool's tls.server_name"
	case "protocol version not supported":
		return "the backend speaks neither TLS 1.2 nor 1.3"
	case "no application protocol":
		return "the backend does not offer http/1.1 (ALPN)"
	case "handshake failure":
		return "the backend finds nothing in common, or wants a client certificate: handshake failure"
	}
	return "the backend ended the handshake: " + alert
}

// leafNames lists what a certificate is for.
func leafNames(c *x509.Certificate) string {
	const shownMax = 5
	names := append([]string{}, c.DNSNames...)
	for _, ip := range c.IPAddresses {
		names = append(names, ip.String())
	}
	switch n := len(names); {
	case n == 0:
		return fmt.Sprintf("no host at all (only the common name %q, which counts for nothing)", c.Subject.CommonName)
	case n > shownMax:
		return fmt.Sprintf("%s and %d more", strings.Join(names[:shownMax], ", "), n-shownMax)
	}
	return strings.Join(names, ", ")
}
