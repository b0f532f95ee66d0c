package state

import (
	"net/netip"
	"regexp"

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
	if _, known := lbdv1.KeyType_name[int32(s.GetKeyType())]; !known {
		c.errorf("self_signed.key_type", "unknown key type %d (ECDSA_P256, RSA_2048)", s.GetKeyType())
	}
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
