package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/status"

	"lbd/cluster/state"
	"lbd/cmd/lbctl/document"
	lbdv1 "lbd/proto/lbd/v1"
)

// pemBytesMax bounds a chain or key file: a chain of ten certificates is about 20 KiB.
const pemBytesMax = 1 << 20

func (c *cli) certCommand() *cobra.Command {
	return noun("cert", "Add, rotate and inspect certificates",
		c.certAdd(), c.certRotate(), c.certStatus(), c.certInspect(), c.certCheck(), c.certUnused(), c.certDelete(), c.certPurge())
}

// content is what cert add and cert rotate take.
type content struct {
	chain, key, wait string
	request          lbdv1.RotateRequest
}

func (c *cli) certAdd() *cobra.Command {
	var in content
	cmd := &cobra.Command{
		Use:     "add NAME --chain FILE --key FILE --owner OWNER",
		Short:   "Add a certificate",
		Example: "  lbctl cert add shop --chain shop.pem --key shop.key --owner web --wait",
		Args:    cobra.ExactArgs(1),
		RunE: c.does(func(ctx context.Context, args []string) error {
			in.request.Create = true
			return c.rotate(ctx, withoutKind(state.Certificates, args[0]), &in)
		}),
	}
	c.contentFlags(cmd, &in)
	cmd.Flags().StringVar(&in.request.Owner, "owner", "", "whose it will be")
	for _, f := range []string{"chain", "key", "owner"} {
		if err := cmd.MarkFlagRequired(f); err != nil {
			panic(err)
		}
	}
	return cmd
}

func (c *cli) certRotate() *cobra.Command {
	var in content
	cmd := &cobra.Command{
		Use:   "rotate NAME [--chain FILE --key FILE]",
		Short: "Give a certificate new content",
		Long: `Give a certificate new content, as one revision. Connections and session tickets stay valid.

Without --chain a self-signed certificate is made anew; without --key the stored key stays and must fit the chain.
With --wait every node has proven by a TLS handshake that it serves the new certificate.`,
		Example: "  lbctl cert rotate shop --chain shop.pem --key shop.key --wait",
		Args:    cobra.ExactArgs(1),
		RunE: c.does(func(ctx context.Context, args []string) error {
			if in.key != "" && in.chain == "" {
				return fail(exitUsage, "--key needs --chain: a new key has a new certificate")
			}
			return c.rotate(ctx, withoutKind(state.Certificates, args[0]), &in)
		}),
	}
	c.contentFlags(cmd, &in)
	return cmd
}

func (c *cli) contentFlags(cmd *cobra.Command, in *content) {
	cmd.Flags().StringVar(&in.chain, "chain", "", "PEM file: the certificate, then its intermediates")
	cmd.Flags().StringVar(&in.key, "key", "", "PEM file: the private key, not encrypted")
	cmd.Flags().StringVarP(&in.request.Message, "message", "m", "", "kept with the revision")
	waitFlag(cmd, &in.wait)
}

// rotate stores content and, if asked, follows its revision.
func (c *cli) rotate(ctx context.Context, name string, in *content) error {
	if err := checkWait(&in.wait, false); err != nil {
		return err
	}
	in.request.Name, in.request.RequestId = name, newRequestID()
	var err error
	if in.request.ChainPem, err = readPEM(in.chain, false); err != nil {
		return err
	}
	if in.request.KeyPem, err = readPEM(in.key, true); err != nil {
		return err
	}
	return c.call(func(cl *client) error {
		answer, err := retried(ctx, cl, startGrace, func() (*lbdv1.RotateResponse, error) {
			return cl.certificate.Rotate(ctx, &in.request)
		})
		if vs := violations(err); len(vs) > 0 {
			c.tellViolations(vs)
			return fail(codeOf(status.Code(err)), "%s", countOf(len(vs), "error"))
		}
		if err != nil {
			return err
		}
		c.tellViolations(answer.GetWarnings())
		c.printRotated(answer)
		if in.wait == "" {
			return nil
		}
		return c.wait(ctx, cl, answer.GetRevision(), in.wait)
	})
}

func readPEM(path string, key bool) (string, error) {
	if path == "" {
		return "", nil
	}
	text, err := document.ReadFile(path, pemBytesMax)
	if err != nil {
		return "", fail(exitUsage, "read %s: %w", path, err)
	}
	if fault := document.PEMFault(text, path, key); fault != "" { // an empty one, sent, would be the chain or key that was left out
		return "", fail(exitInvalid, "%s %s", path, fault)
	}
	return string(text), nil
}

func (c *cli) printRotated(answer *lbdv1.RotateResponse) {
	cert := answer.GetCertificate()
	c.print(result{
		value: document.OfAnswer(answer),
		names: []string{"certificates/" + cert.GetName()},
		table: func(*table) {
			fmt.Fprintf(c.stdout, "revision %d: certificates/%s has serial %s, valid until %s\n",
				answer.GetRevision(), cert.GetName(), cert.GetSerial(), moment(cert.GetNotAfter()))
		},
	})
}
