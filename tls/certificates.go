package tlsterm

import (
	"crypto/tls"
	"sync/atomic"
	"time"
)

// Certificates is the set that a node serves now: handshakes read it with one atomic load, one goroutine replaces it.
type Certificates struct {
	set atomic.Pointer[Set]
	now func() time.Time
}

// NewCertificates starts with an empty set.
func NewCertificates() *Certificates {
	c := &Certificates{now: time.Now}
	c.set.Store(NewSet(nil))
	return c
}

// Replace serves another set from the next handshake on. Open connections and tickets stay as they are.
func (c *Certificates) Replace(set *Set) { c.set.Store(set) }

// Current is the set that is served now, for status and metrics.
func (c *Certificates) Current() *Set { return c.set.Load() }

// ForHello is the certificate for a client of a listener with this policy, by the rules of Set; nil if it is to be refused. One
// atomic load, and one map read for a host that has one certificate of its own; a second one where the policy chooses.
func (c *Certificates) ForHello(hello *tls.ClientHelloInfo, policy *Policy) *Certificate {
	return c.set.Load().forHello(hello, policy, c.now())
}
