package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cluster/state"
	"lbd/cmd/lbctl/document"
	lbdv1 "lbd/proto/lbd/v1"
)

func (c *cli) certInspect() *cobra.Command {
	file := ""
	cmd := &cobra.Command{
		Use:   "inspect NAME|--file PEM",
		Short: "Show what a certificate's chain says",
		Long: `Show what each certificate of a chain says, leaf first: names, key, serial, issuer, validity and fingerprint. Of a stored
certificate by its NAME, or of a PEM file before it is added, without a node.`,
		Example: `  lbctl cert inspect shop
  lbctl cert inspect --file shop.pem`,
		Args: func(cmd *cobra.Command, args []string) error {
			if (len(args) == 1) == (file != "") {
				return fmt.Errorf("inspect takes a certificate's NAME or --file, one of them")
			}
			return cobra.MaximumNArgs(1)(cmd, args)
		},
		RunE: c.does(func(ctx context.Context, args []string) error {
			if file == "" {
				return c.call(func(cl *client) error { return c.inspect(ctx, cl, withoutKind(state.Certificates, args[0])) })
			}
			text, err := readPEM(file, false)
			if err != nil {
				return err
			}
			chain, err := parseChain(text)
			if err != nil {
				return fail(exitInvalid, "%s: %w", file, err)
			}
			c.printChain(chain)
			return nil
		}),
	}
	cmd.Flags().StringVar(&file, "file", "", "a PEM file on this machine")
	return cmd
}

func (c *cli) inspect(ctx context.Context, cl *client, name string) error {
	answer, err := cl.config.Get(ctx, &lbdv1.GetRequest{Kind: string(state.Certificates), Name: name})
	if err != nil {
		return err
	}
	if stored := answer.GetResource().GetCertificate().GetPem().GetChain().GetInline(); stored != "" {
		chain, err := parseChain(stored)
		if err != nil {
			return fail(exitInternal, "certificates/%s: %w", name, err)
		}
		c.printChain(chain)
		return nil
	}
	// A self-signed one is made by the node: it has no chain beside itself.
	status, err := cl.certificate.GetStatus(ctx, &lbdv1.CertificateServiceGetStatusRequest{Name: name})
	if err != nil {
		return err
	}
	var all []sayings
	for _, s := range status.GetCertificates() {
		all = append(all, statusSays(s))
	}
	c.printSayings(all)
	return nil
}

// parseChain reads the certificates of a PEM text. Keys in it are passed over: they are not shown.
func parseChain(text string) ([]*x509.Certificate, error) {
	var chain []*x509.Certificate
	for rest := []byte(text); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		one, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("read certificate %d: %w", len(chain)+1, err)
		}
		chain = append(chain, one)
	}
	if len(chain) == 0 {
		return nil, fmt.Errorf("there is no certificate in PEM here")
	}
	return chain, nil
}

// sayings are what a certificate says, in order: names as in JSON, and values.
type sayings [][2]string

func (s sayings) value() *document.Value {
	v := document.MapOf()
	for _, f := range s {
		v.With(f[0], document.Text(f[1]))
	}
	return v
}

const serialField = "serial"

func (s sayings) serial() string {
	for _, f := range s {
		if f[0] == serialField {
			return f[1]
		}
	}
	return ""
}

func certificateSays(cert *x509.Certificate) sayings {
	hosts := append([]string(nil), cert.DNSNames...)
	for _, ip := range cert.IPAddresses {
		hosts = append(hosts, ip.String())
	}
	return sayings{
		{"subject", cert.Subject.String()},
		{"hosts", strings.Join(hosts, ", ")},
		{"key_type", keyType(cert)},
		{serialField, fmt.Sprintf("%x", cert.SerialNumber)},
		{"issuer", cert.Issuer.String()},
		{"not_before", moment(timestamppb.New(cert.NotBefore))},
		{"not_after", moment(timestamppb.New(cert.NotAfter))},
		{"signature", cert.SignatureAlgorithm.String()},
		{"fingerprint", fmt.Sprintf("sha256:%x", sha256.Sum256(cert.Raw))},
	}
}

func statusSays(s *lbdv1.CertificateStatus) sayings {
	return sayings{
		{"hosts", strings.Join(s.GetHosts(), ", ")},
		{"key_type", s.GetKeyType()},
		{serialField, s.GetSerial()},
		{"issuer", s.GetIssuer()},
		{"not_before", moment(s.GetNotBefore())},
		{"not_after", moment(s.GetNotAfter())},
		{"fingerprint", s.GetFingerprint()},
	}
}

// keyType is the key in the words of documents.
func keyType(cert *x509.Certificate) string {
	switch key := cert.PublicKey.(type) {
	case *ecdsa.PublicKey:
		return fmt.Sprintf("ECDSA_P%d", key.Curve.Params().BitSize)
	case *rsa.PublicKey:
		return fmt.Sprintf("RSA_%d", key.N.BitLen())
	case ed25519.PublicKey:
		return "ED25519"
	default:
		return cert.PublicKeyAlgorithm.String()
	}
}

func (c *cli) printChain(chain []*x509.Certificate) {
	var all []sayings
	for _, cert := range chain {
		all = append(all, certificateSays(cert))
	}
	c.printSayings(all)
	for i := 1; i < len(chain); i++ {
		if err := chain[i-1].CheckSignatureFrom(chain[i]); err != nil {
			fmt.Fprintf(c.stderr, "warning: certificate %d is not signed by the one after it (%v): the order is leaf, then its issuer, and so on\n", i, err)
		}
	}
}

func (c *cli) printSayings(all []sayings) {
	values := []*document.Value{}
	var names []string
	for _, s := range all {
		values = append(values, s.value())
		names = append(names, s.serial())
	}
	c.print(result{value: document.ListOf(values), names: names, table: func(w *table) {
		for i, s := range all {
			if i > 0 {
				w.row()
			}
			for _, f := range s {
				w.row(strings.ToUpper(strings.ReplaceAll(f[0], "_", " ")), f[1])
			}
			w.flush()
		}
	}})
}
