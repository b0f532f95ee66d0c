package state

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"

	lbdv1 "lbd/proto/lbd/v1"
)

// ParseTrustBundle reads the certificates of a trust bundle's PEM. It refuses what is not PEM, holds no certificate or
// one that cannot be parsed, and whatever else is in it, a private key above all.
func ParseTrustBundle(text string) ([]*x509.Certificate, error) {
	blocks, err := certificateBlocks(text)
	if err != nil {
		return nil, err
	}
	all := make([]*x509.Certificate, len(blocks))
	for i, der := range blocks {
		if all[i], err = x509.ParseCertificate(der); err != nil {
			return nil, fmt.Errorf("certificate %d: %w", i+1, err)
		}
	}
	return all, nil
}

// CheckBundleCertificates is the part of a trust bundle's check that Apply leaves to those who make the change: an error for
// a certificate that x509 cannot parse. What is wrong with the PEM itself is said by Apply.
func CheckBundleCertificates(text string) error {
	if _, err := certificateBlocks(text); err != nil {
		return nil
	}
	_, err := ParseTrustBundle(text)
	return err
}

// certificateBlocks are the contents of the PEM blocks, all of which must be certificates.
func certificateBlocks(text string) ([][]byte, error) {
	var blocks [][]byte
	for rest := []byte(withoutBOM(text)); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		switch {
		case strings.Contains(block.Type, "PRIVATE KEY"):
			return nil, errors.New("holds a private key: a trust bundle is no secret, leave the key out")
		case block.Type != "CERTIFICATE":
			return nil, fmt.Errorf("holds a block of type %s: want certificates alone", block.Type)
		}
		blocks = append(blocks, block.Bytes)
	}
	begun := strings.Count(text, "-----BEGIN ")
	switch {
	case strings.Contains(text, "PRIVATE KEY-----"):
		return nil, errors.New("holds a private key: a trust bundle is no secret, leave the key out")
	case begun == 0:
		return nil, errors.New("holds no certificate: want PEM, which begins with -----BEGIN CERTIFICATE-----")
	case begun > len(blocks):
		return nil, fmt.Errorf("has %d PEM blocks of which %d can be read: the others are damaged", begun, len(blocks))
	}
	return blocks, nil
}

func checkTrustBundle(c *checker, b *lbdv1.TrustBundle) {
	switch source := b.GetCa().GetSource().(type) {
	case nil:
		c.errorf("ca", "is required: `file`, `env` or `inline`")
	case *lbdv1.Content_Sha256:
		c.errorf("ca", "a trust bundle is no secret: want `file`, `env` or `inline`")
	case *lbdv1.Content_Inline:
		c.checkCA(source.Inline)
	default:
		c.checkContent("ca", b.GetCa())
	}
}

// checkCA leaves it to those who make the change to parse the certificates: which ones x509 takes differs from build to
// build, and the nodes that store the change have to judge it alike.
func (c *checker) checkCA(text string) {
	if len(text) > trustBundleBytesMax {
		c.errorf("ca.inline", "has %d bytes: at most %d", len(text), trustBundleBytesMax)
		return
	}
	var err error
	if c.storing {
		_, err = certificateBlocks(text)
	} else {
		_, err = ParseTrustBundle(text)
	}
	if err != nil {
		c.errorf("ca.inline", "%s", err)
	}
}

// normalizeTrustBundle keeps of PEM the certificates, without the comments around them.
func normalizeTrustBundle(b *lbdv1.TrustBundle) {
	inline, ok := b.GetCa().GetSource().(*lbdv1.Content_Inline)
	if !ok {
		return
	}
	blocks, err := certificateBlocks(inline.Inline)
	if err != nil {
		return
	}
	var text strings.Builder
	for _, der := range blocks {
		_ = pem.Encode(&text, &pem.Block{Type: "CERTIFICATE", Bytes: der}) // a Builder does not fail
	}
	inline.Inline = text.String()
}
