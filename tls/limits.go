package tlsterm

import "time"

// The package's limits, each with its reason.
const (
	// chainCertificatesMax bounds a chain. Public chains have two to four; clients refuse long ones.
	chainCertificatesMax = 10
	// pemBytesMax bounds each PEM text. A chain of ten large RSA certificates is about 30 kB.
	pemBytesMax = 256 << 10
	// rsaBitsMin is the smallest RSA key that clients still accept.
	rsaBitsMin = 2048
	// rsaBitsMax bounds what a signature may cost, which grows with the cube of this.
	rsaBitsMax = 8192
	// selfSignedHostsMax is the schema's limit for a self-signed certificate.
	selfSignedHostsMax = 100
	// selfSignedLifetime is long, since nothing renews such a certificate by itself, and under the 398 days of public ones.
	selfSignedLifetime = 397 * 24 * time.Hour
	// selfSignedBackdate allows for clients whose clock is behind.
	selfSignedBackdate = time.Hour
	// proofTimeout ends a handshake with ourselves. It takes a millisecond; more than this is a machine in trouble, not a wrong certificate.
	proofTimeout = 5 * time.Second
)
