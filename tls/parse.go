package tlsterm

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Material is a certificate's content as it is stored and served.
type Material struct {
	Chain [][]byte // DER, leaf first
	Key   []byte   // PKCS #8, DER, in the clear; nil if none was given
}

// Part is the half of a certificate's content that an error is about.
type Part string

// The halves.
const (
	PartChain Part = "chain"
	PartKey   Part = "key"
)

// ContentError is a refusal that its author can act upon. It never holds key bytes.
type ContentError struct {
	Part   Part
	Reason string
}

func (e *ContentError) Error() string { return string(e.Part) + ": " + e.Reason }

func refuse(part Part, format string, args ...any) error {
	return &ContentError{part, fmt.Sprintf(format, args...)}
}

// ParsePEM reads a chain (leaf first, then each one's issuer; the root may be left out) and the leaf's private key
// (PKCS #1, PKCS #8 or SEC 1, not encrypted). Both may be one combined file: blocks of the other half are passed over; one that
// cannot be read is an error. No key leaves Material.Key nil: for a renewal under the stored key. What it refuses is a
// *ContentError.
//
// Dates are the caller's to judge: a rotation to an expired certificate is a mistake, restoring a backup that holds one is
// none.
func ParsePEM(chain, key []byte) (*Material, error) {
	certificates, err := parseChain(chain)
	if err != nil {
		return nil, err
	}
	leaf := certificates[0]
	m := &Material{}
	for _, c := range certificates {
		m.Chain = append(m.Chain, c.Raw)
	}
	if len(key) > 0 {
		signer, err := parseKey(key)
		if err != nil {
			return nil, err
		}
		if err := checkOwner(certificates, signer); err != nil {
			return nil, err
		}
		if m.Key, err = x509.MarshalPKCS8PrivateKey(signer); err != nil {
			return nil, refuse(PartKey, "%v", err)
		}
	}
	if err := checkOrder(certificates); err != nil {
		return nil, err
	}
	if _, err := leafHosts(leaf); err != nil {
		return nil, refuse(PartChain, "%v", err)
	}
	if _, err := kindOf(leaf.PublicKey); err != nil {
		return nil, refuse(PartChain, "%v", err)
	}
	return m, nil
}

// parseChain reads every certificate of a PEM text.
func parseChain(text []byte) ([]*x509.Certificate, error) {
	blocks, err := pemBlocks(PartChain, text)
	if err != nil {
		return nil, err
	}
	var certificates []*x509.Certificate
	for _, block := range blocks {
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, refuse(PartChain, "certificate %d cannot be parsed: %s", len(certificates)+1, plain(err))
		}
		if len(certificates) == chainCertificatesMax {
			return nil, refuse(PartChain, "more than %d certificates", chainCertificatesMax)
		}
		certificates = append(certificates, c)
	}
	if len(certificates) == 0 {
		return nil, refuse(PartChain, "no certificate found (PEM block CERTIFICATE)%s", found(blocks))
	}
	return certificates, nil
}

// parseKey reads the one private key of a PEM text.
func parseKey(text []byte) (crypto.Signer, error) {
	blocks, err := pemBlocks(PartKey, text)
	if err != nil {
		return nil, err
	}
	blocks = slices.DeleteFunc(blocks, func(b *pem.Block) bool { return !strings.HasSuffix(b.Type, "PRIVATE KEY") })
	switch len(blocks) {
	case 0:
		return nil, refuse(PartKey, "no private key found (PEM block PRIVATE KEY, EC PRIVATE KEY or RSA PRIVATE KEY)")
	case 1:
		return parseKeyBlock(blocks[0])
	}
	return nil, refuse(PartKey, "%d private keys, want one", len(blocks))
}

func parseKeyBlock(block *pem.Block) (crypto.Signer, error) {
	if block.Type == "ENCRYPTED PRIVATE KEY" || block.Headers["DEK-Info"] != "" {
		return nil, refuse(PartKey, "the key is encrypted and lbd has no passphrase for it: remove it with `openssl pkey -in KEY -out PLAIN`")
	}
	var (
		key any
		err error
	)
	switch block.Type {
	case "PRIVATE KEY":
		key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
	case "RSA PRIVATE KEY":
		key, err = x509.ParsePKCS1PrivateKey(block.Bytes)
	case "EC PRIVATE KEY":
		key, err = x509.ParseECPrivateKey(block.Bytes)
	default:
		return nil, refuse(PartKey, "a key of the form %s is not for TLS: want PKCS #8, PKCS #1 or SEC 1", block.Type)
	}
	if err != nil {
		// The parser's words could quote what it read.
		return nil, refuse(PartKey, "the private key cannot be parsed: it is damaged or of an unknown kind")
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, refuse(PartKey, "a key of type %T cannot sign", key)
	}
	if _, err := kindOf(signer.Public()); err != nil {
		return nil, refuse(PartKey, "%v", err)
	}
	return signer, nil
}

// checkOwner finds the key's certificate, so that a chain in the wrong order is not taken for the wrong key.
func checkOwner(chain []*x509.Certificate, key crypto.Signer) error {
	owner := slices.IndexFunc(chain, func(c *x509.Certificate) bool { return matchKey(c, key) == nil })
	switch owner {
	case 0:
		return nil
	case -1:
		return refuse(PartKey, "%v (%s)", errKeyMismatch, subject(chain[0]))
	}
	return refuse(PartChain, "the key belongs to certificate %d (%s): the leaf comes first, then each one's issuer", owner+1, subject(chain[owner]))
}

// checkOrder demands that each certificate is signed by the next.
func checkOrder(chain []*x509.Certificate) error {
	for i, c := range chain[:len(chain)-1] {
		issuer := chain[i+1]
		if c.Equal(issuer) {
			return refuse(PartChain, "certificate %d is the same as certificate %d (%s)", i+2, i+1, subject(c))
		}
		if err := c.CheckSignatureFrom(issuer); err != nil {
			return refuse(PartChain, "certificate %d (%s) has not signed certificate %d (%s): the leaf comes first, then each one's issuer",
				i+2, subject(issuer), i+1, subject(c))
		}
	}
	return nil
}

// pemBlocks is splitPEM of one half of a certificate's content.
func pemBlocks(part Part, text []byte) ([]*pem.Block, error) {
	if len(text) > pemBytesMax {
		return nil, refuse(part, "%d bytes of PEM, at most %d", len(text), pemBytesMax)
	}
	blocks, err := splitPEM(text)
	if err != nil {
		return nil, refuse(part, "%v", err)
	}
	if len(bytes.TrimSpace(text)) == 0 {
		return nil, refuse(part, "is empty")
	}
	return blocks, nil
}

// splitPEM splits a text. What cannot be a block, such as the comments that tools write between them, is passed over, but
// whatever begins as a block must be one: pem.Decode would leave it out silently, and what is left is another chain. A byte order
// mark before the text is taken away, as it would do that to the first block.
func splitPEM(text []byte) ([]*pem.Block, error) {
	text = bytes.TrimPrefix(text, []byte("\ufeff"))
	var blocks []*pem.Block
	for {
		block, rest := pem.Decode(text)
		passed := text
		if block != nil {
			passed = text[:len(text)-len(rest)]
		}
		switch begun := bytes.Count(passed, pemBegin); {
		case block == nil && begun == 0:
			return blocks, nil
		case block == nil || begun > 1:
			return nil, damaged(len(blocks)+1, text)
		}
		blocks, text = append(blocks, block), rest
	}
}

var pemBegin = []byte("-----BEGIN")

// damaged says which block of a file cannot be read; text goes from the end of the one before it.
func damaged(number int, text []byte) error {
	at := bytes.Index(text, pemBegin)
	name, _, _ := bytes.Cut(text[at+len(pemBegin):], []byte("-----"))
	name, _, _ = bytes.Cut(name, []byte("\n"))
	what := fmt.Sprintf("PEM block %d", number)
	if kind := strings.TrimSpace(string(name)); pemTypeForm.MatchString(kind) {
		what += " (" + kind + ")"
	}
	switch {
	case at > 0 && text[at-1] != '\n':
		return fmt.Errorf("%s does not begin a line: put a line break before its -----BEGIN", what)
	case bytes.Contains(text, []byte("----------BEGIN")):
		return fmt.Errorf("%s, or one after it, ends in the line in which the next begins: put a line break between them", what)
	}
	return fmt.Errorf("%s is damaged or cut short", what)
}

// pemTypeForm is what may be quoted of a block's first line: it could hold anything.
var pemTypeForm = regexp.MustCompile(`^[A-Z0-9][A-Z0-9 ]{0,30}$`)

// found tells what a text held instead.
func found(blocks []*pem.Block) string {
	if len(blocks) == 0 {
		return ""
	}
	return ", only " + blocks[0].Type
}

func plain(err error) string { return strings.TrimPrefix(err.Error(), "x509: ") }

// subject names a certificate to a reader: its common name, or else its first host or serial.
func subject(c *x509.Certificate) string {
	switch {
	case c.Subject.CommonName != "":
		return c.Subject.CommonName
	case len(c.DNSNames) > 0:
		return c.DNSNames[0]
	}
	return "serial " + serialOf(c)
}
