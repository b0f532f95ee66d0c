package state

import (
	"cmp"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

var sha256Form = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

func checkCertificate(c *checker, cert *lbdv1.Certificate) {
	switch source := cert.GetSource().(type) {
	case *lbdv1.Certificate_Pem:
		c.checkPEM(source.Pem)
	case *lbdv1.Certificate_SelfSigned:
		c.checkSelfSigned(source.SelfSigned)
	default:
		c.errorf("", "needs a source: `pem` or `self_signed`")
	}
	if c.storing {
		c.checkMaterial()
	}
	c.checkSharedNames()
}

// checkSharedNames says what is served where two certificates are for one name and kind of key: that is how one replaces
// another, and else a mistake.
func (c *checker) checkSharedNames() {
	stored, _ := c.next.Get(c.key.Kind, c.key.Name)
	hosts, keyType := namesOf(stored)
	var others []string
	for _, host := range hosts {
		c.next.indexed(nameIndex(host, keyType), func(name string) bool {
			if other := (Key{Certificates, name}); other != c.key && c.earlier(other) && !slices.Contains(others, name) {
				others = append(others, name)
			}
			return len(others) < sharedNamesToldMax
		})
	}
	lost := make(map[string]bool)
	for _, name := range others {
		other, _ := c.next.Get(Certificates, name)
		theirs, _ := namesOf(other)
		shared := slices.DeleteFunc(slices.Clone(hosts), func(host string) bool { return !slices.Contains(theirs, host) })
		winner := c.served(stored, name, other)
		c.warnf("", "is for %s with a key of type %s, as certificate `%s` is: of those that are valid the newest is served%s",
			someHosts(shared), keyType, name, winner.text())
		for _, host := range shared {
			lost[host] = lost[host] || winner.name == name
		}
	}
	if len(others) > 0 && !slices.ContainsFunc(hosts, func(host string) bool { return !lost[host] }) {
		c.warnf("", "is shown to no client that asks for one of its names: others are, as the warnings before this one say")
	}
}

const sharedNamesToldMax = 3

// served is which of two certificates is shown for a name that both have.
type served struct {
	// name is empty as long as that is not known.
	name string
	// this is whether it is the one that is checked.
	this  bool
	begin time.Time
	// tie is whether both begin at the same time.
	tie bool
}

// served follows the rule of those that serve: the later beginning, and then the first by name.
func (c *checker) served(stored *raftv1.StoredResource, name string, other *raftv1.StoredResource) served {
	mine, theirs := leafOf(stored), leafOf(other)
	if mine == nil || theirs == nil {
		return served{}
	}
	order := cmp.Or(theirs.NotBefore.Compare(mine.NotBefore), strings.Compare(c.key.Name, name))
	tie := theirs.NotBefore.Equal(mine.NotBefore)
	if order < 0 {
		return served{name: c.key.Name, this: true, begin: mine.NotBefore, tie: tie}
	}
	return served{name: name, begin: theirs.NotBefore, tie: tie}
}

func (w served) text() string {
	if w.name == "" {
		return ""
	}
	who := "`" + w.name + "`"
	if w.this {
		who = "this one"
	}
	if w.tie {
		return fmt.Sprintf(": %s, the first by name of two that begin at %s", who, w.begin.UTC().Format(time.RFC3339))
	}
	return fmt.Sprintf(": %s, which begins at %s", who, w.begin.UTC().Format(time.RFC3339))
}

// someHosts writes host names, all but the first few as their number.
func someHosts(hosts []string) string {
	const shown = 5
	text := "`" + strings.Join(hosts[:min(len(hosts), shown)], "`, `") + "`"
	if more := len(hosts) - shown; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// namesOf are the host names and IP addresses that a certificate serves, as far as its content is known, and the type of
// its key.
func namesOf(stored *raftv1.StoredResource) (hosts []string, keyType string) {
	if s := stored.GetResource().GetCertificate().GetSelfSigned(); s != nil {
		if s.GetKeyType() == lbdv1.KeyType_KEY_TYPE_RSA_2048 {
			return s.GetHosts(), x509.RSA.String()
		}
		return s.GetHosts(), x509.ECDSA.String()
	}
	leaf := leafOf(stored)
	if leaf == nil {
		return nil, ""
	}
	hosts = leafHosts(leaf)
	return hosts[:min(len(hosts), hostsMax)], leaf.PublicKeyAlgorithm.String()
}

// leafHosts are the names and addresses in a leaf, all of them, normalised; none for no leaf.
func leafHosts(leaf *x509.Certificate) []string {
	if leaf == nil {
		return nil
	}
	var hosts []string
	for _, name := range leaf.DNSNames {
		hosts = append(hosts, strings.TrimSuffix(strings.ToLower(name), "."))
	}
	for _, ip := range leaf.IPAddresses {
		hosts = append(hosts, ip.String())
	}
	return hosts
}

// leafOf is a certificate's leaf; nil as long as its content is not known, or if it is none.
func leafOf(stored *raftv1.StoredResource) *x509.Certificate {
	var der []byte
	if chain := stored.GetMaterial().GetChain(); len(chain) > 0 {
		der = chain[0]
	} else if block, _ := pem.Decode([]byte(withoutBOM(stored.GetResource().GetCertificate().GetPem().GetChain().GetInline()))); block != nil {
		der = block.Bytes
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil
	}
	return leaf
}

// withoutBOM drops the mark that some editors put before a text's first byte, where it would hide the first PEM block.
func withoutBOM(text string) string { return strings.TrimPrefix(text, "\ufeff") }

// indexCertificate finds a certificate by what it serves.
func indexCertificate(stored *raftv1.StoredResource) []string {
	hosts, keyType := namesOf(stored)
	keys := make([]string, len(hosts))
	for i, host := range hosts {
		keys[i] = nameIndex(host, keyType) + stored.GetResource().GetCertificate().GetName()
	}
	return keys
}

func normalizeCertificate(cert *lbdv1.Certificate) {
	for i, host := range cert.GetSelfSigned().GetHosts() {
		cert.GetSelfSigned().Hosts[i] = normalHost(host)
	}
}

// checkPEM checks where the content comes from. What it holds is parsed by those who may open it.
func (c *checker) checkPEM(pem *lbdv1.CertificatePem) {
	switch pem.GetChain().GetSource().(type) {
	case nil:
		if c.material == nil {
			c.errorf("pem.chain", "is required: `file`, `env` or `inline`")
		}
	case *lbdv1.Content_Sha256:
		c.errorf("pem.chain", "a chain is no secret: want `file`, `env` or `inline`")
	default:
		c.checkContent("pem.chain", pem.GetChain())
	}
	if pem.GetKey() != nil {
		c.checkContent("pem.key", pem.GetKey())
	}
}

func (c *checker) checkContent(path string, content *lbdv1.Content) {
	switch source := content.GetSource().(type) {
	case nil:
		c.errorf(path, "needs a source: `file`, `env`, `inline` or `sha256`")
	case *lbdv1.Content_File:
		c.checkRead(path+".file", source.File)
	case *lbdv1.Content_Env:
		c.checkRead(path+".env", source.Env)
	case *lbdv1.Content_Inline:
		if source.Inline == "" {
			c.errorf(path+".inline", "is empty")
		}
	case *lbdv1.Content_Sha256:
		if !sha256Form.MatchString(source.Sha256) {
			c.errorf(path+".sha256", "is no fingerprint: want `sha256:` and 64 hex digits in lower case")
		}
	}
}

// checkRead checks a source that only lbctl can read: it never reaches a cluster.
func (c *checker) checkRead(path, value string) {
	if value == "" {
		c.errorf(path, "is empty")
	} else if c.storing {
		c.errorf(path, "is read by lbctl: send the content inline")
	}
}

func (c *checker) checkSelfSigned(s *lbdv1.CertificateSelfSigned) {
	c.checkCount("self_signed.hosts", "host name or IP address", len(s.GetHosts()), hostsMax)
	seen := make(map[string]bool)
	for i, host := range s.GetHosts() {
		path := itemPath("self_signed.hosts", i)
		if _, err := netip.ParseAddr(host); err != nil {
			c.checkPattern(path, host)
		}
		if seen[host] {
			c.errorf(path, "`%s` is there twice", host)
		}
		seen[host] = true
	}
	c.checkEnum("self_signed.key_type", "key type", s.GetKeyType())
}

func (c *checker) checkPattern(path, host string) {
	if fault := patternFault(host); fault != "" {
		c.errorf(path, "`%s` %s", host, fault)
	}
}

// checkMaterial refuses to store a certificate that nobody could serve, or a key that is not sealed.
func (c *checker) checkMaterial() {
	m := c.material
	if len(m.GetChain()) == 0 || len(m.GetSealedKey()) == 0 || len(m.GetPublicKeySha256()) == 0 {
		c.errorf("", "has no content to serve")
	}
	r, _ := c.next.Get(c.key.Kind, c.key.Name)
	if r.GetResource().GetCertificate().GetPem().GetKey().GetInline() != "" {
		c.errorf("pem.key", "holds a key in the clear: it has to be sealed first")
	}
}
