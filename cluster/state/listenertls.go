package state

import (
	"slices"
	"strings"

	lbdv1 "lbd/proto/lbd/v1"
)

// The tables say what crypto/tls supports and calls safe. They are written out because nodes of different builds have
// to judge a change alike; a test compares them with crypto/tls.
var (
	cipherSuites = []string{
		"TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
		"TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
		"TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
		"TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA", "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
		"TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA", "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
	}
	groups = []string{"X25519MLKEM768", "SecP256r1MLKEM768", "SecP384r1MLKEM1024", "X25519", "P256", "P384", "P521"}
)

func (c *checker) checkListenerTLS(t *lbdv1.ListenerTls) {
	c.checkEnum("tls.min_version", "version", t.GetMinVersion())
	c.checkEnum("tls.max_version", "version", t.GetMaxVersion())
	lowest, highest := t.GetMinVersion(), t.GetMaxVersion()
	if lowest == 0 {
		lowest = lbdv1.TlsVersion_TLS_VERSION_TLS12
	}
	if highest != 0 && highest < lowest {
		c.errorf("tls.max_version", "must not be below min_version (%s)", strings.TrimPrefix(lowest.String(), "TLS_VERSION_"))
	}
	if name := t.GetDefaultCertificate(); name != "" {
		c.refer("tls.default_certificate", Certificates, name)
		if t.GetStrictSni() {
			c.errorf("tls.default_certificate", "is never served with `strict_sni`: leave one of them out")
		}
	}
	c.checkListenerCertificates(t.GetCertificates())
	c.checkChoice("tls.cipher_suites", "cipher suite of TLS 1.2", t.GetCipherSuites(), cipherSuites)
	if len(t.GetCipherSuites()) > 0 && lowest > lbdv1.TlsVersion_TLS_VERSION_TLS12 {
		c.errorf("tls.cipher_suites", "are those of TLS 1.2, which min_version excludes: those of TLS 1.3 are not to be chosen")
	}
	c.checkChoice("tls.groups", "group", t.GetGroups(), groups)
}

// checkChoice checks words of a table.
func (c *checker) checkChoice(path, what string, chosen, table []string) {
	c.checkDistinct(path, chosen)
	for i, word := range chosen {
		if !slices.Contains(table, word) {
			c.errorf(itemPath(path, i), "`%s` is no %s that may be offered%s", word, what, didYouMean(word, table))
		}
	}
}

// spellAs writes words as a table does, which are read in any case.
func spellAs(chosen, table []string) {
	for i, word := range chosen {
		if at := slices.IndexFunc(table, func(known string) bool { return strings.EqualFold(known, word) }); at >= 0 {
			chosen[i] = table[at]
		}
	}
}

func (c *checker) checkListenerCertificates(selectors []string) {
	c.checkMost("tls.certificates", len(selectors), listenerCertificatesMax)
	c.checkDistinct("tls.certificates", selectors)
	for i, selector := range selectors {
		path := itemPath("tls.certificates", i)
		if !isLabel(selector) {
			c.refer(path, Certificates, selector)
		} else if !c.isLabeled(selector) {
			c.warnf(path, "no certificate has the label `%s`", selector)
		}
	}
}

// isLabel tells a label, "key=value", from a name.
func isLabel(selector string) bool { return strings.Contains(selector, "=") }

// isLabeled tells whether any certificate has a label.
func (c *checker) isLabeled(selector string) bool {
	if c.labeled == nil {
		c.labeled = make(map[string]bool)
		for stored := range c.next.All(Certificates) {
			for key, value := range stored.GetResource().GetCertificate().GetLabels() {
				c.labeled[key+"="+value] = true
			}
		}
	}
	return c.labeled[selector]
}
