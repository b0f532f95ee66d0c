package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"lbd/cluster/state"
	"lbd/cmd/lbctl/document"
	lbdv1 "lbd/proto/lbd/v1"
)

func (c *cli) certStatus() *cobra.Command {
	return &cobra.Command{
		Use:   "status [NAME]",
		Short: "Show certificates as stored and as served",
		Long: `Show certificates as stored and as the answering node serves them. LISTENERS are those on which some client is shown it. With -o
wide SHADOWED BY has, for each host, the certificate that is shown in its place: a newer one, or one with a better key.`,
		Example: `  lbctl cert status shop -o wide`,
		Args:    cobra.MaximumNArgs(1),
		RunE: c.does(func(ctx context.Context, args []string) error {
			return c.call(func(cl *client) error {
				answer, err := cl.certificate.GetStatus(ctx, &lbdv1.CertificateServiceGetStatusRequest{Name: strings.Join(args, "")})
				if err != nil {
					return err
				}
				c.printCertificates(answer.GetCertificates())
				return nil
			})
		}),
	}
}

func (c *cli) printCertificates(certificates []*lbdv1.CertificateStatus) {
	values := []*document.Value{}
	var names []string
	for _, s := range certificates {
		values = append(values, document.OfAnswer(s))
		names = append(names, "certificates/"+s.GetName())
	}
	c.print(result{value: document.ListOf(values), names: names, table: func(w *table) {
		w.wideRow([]string{"NAME", "HOSTS", "KEY", "NOT AFTER", "SERIAL", "SERVED", "LISTENERS", "REVISION"}, "OWNER", "MANAGED", "SHADOWED BY", "ISSUER", "FINGERPRINT")
		for _, s := range certificates {
			w.wideRow([]string{
				s.GetName(), list(s.GetHosts()), s.GetKeyType(), moment(s.GetNotAfter()), s.GetSerial(), served(s), list(s.GetListeners()), fmt.Sprint(s.GetRevision()),
			}, s.GetOwner(), managed(s), strings.Join(s.GetShadowedBy(), ", "), s.GetIssuer(), s.GetFingerprint())
		}
	}})
}

// served is whether the node serves what is stored; another content by its serial.
func served(s *lbdv1.CertificateStatus) string {
	switch s.GetServedSerial() {
	case "":
		return "no"
	case s.GetSerial():
		return "yes"
	default:
		return s.GetServedSerial()
	}
}

// managed is who changes its content.
func managed(s *lbdv1.CertificateStatus) string {
	if s.GetManagedExternally() {
		return "by cert verbs"
	}
	return "by documents"
}

func (c *cli) certUnused() *cobra.Command {
	return &cobra.Command{
		Use:   "unused",
		Short: "List certificates that nobody is shown",
		Long: `List certificates that the answering node shows to no client on any listener, and that no pool uses as a client. They may have
been replaced by newer ones for the same hosts, which SHADOWED BY in "cert status -o wide" tells.`,
		Example: `  lbctl cert unused -o name | xargs -r lbctl delete`,
		Args:    cobra.NoArgs,
		RunE: c.does(func(ctx context.Context, _ []string) error {
			return c.call(func(cl *client) error {
				answer, err := cl.certificate.GetStatus(ctx, &lbdv1.CertificateServiceGetStatusRequest{})
				if err != nil {
					return err
				}
				var unused []*lbdv1.CertificateStatus
				for _, s := range answer.GetCertificates() {
					used, err := usedOtherwise(ctx, cl, s)
					if err != nil {
						return err
					}
					if !used {
						unused = append(unused, s)
					}
				}
				c.printCertificates(unused)
				return nil
			})
		}),
	}
}

// usedOtherwise tells whether a certificate is shown on a listener, or to backends.
func usedOtherwise(ctx context.Context, cl *client, s *lbdv1.CertificateStatus) (bool, error) {
	if len(s.GetListeners()) > 0 {
		return true, nil
	}
	answer, err := cl.config.Get(ctx, &lbdv1.GetRequest{Kind: string(state.Certificates), Name: s.GetName()})
	return slices.ContainsFunc(answer.GetUsedBy(), func(by string) bool { return strings.HasPrefix(by, string(state.Pools)+"/") }), err
}

func (c *cli) certDelete() *cobra.Command {
	var wait string
	header := &lbdv1.ApplyHeader{}
	cmd := &cobra.Command{
		Use:   "delete NAME…",
		Short: "Delete certificates, as one revision",
		Long: `Delete certificates of one owner, as one revision. What others refer to is not deleted (exit 3). "rollback" brings it back, with
its key.`,
		Example: `  lbctl cert delete old --wait`,
		Args:    cobra.MinimumNArgs(1),
		RunE: c.does(func(ctx context.Context, args []string) error {
			if err := checkWait(wait, header.ValidateOnly); err != nil {
				return err
			}
			var keys []state.Key
			for _, name := range args {
				keys = append(keys, state.Key{Kind: state.Certificates, Name: name})
			}
			header.RequestId = newRequestID()
			return c.call(func(cl *client) error { return c.delete(ctx, cl, keys, header, wait) })
		}),
	}
	cmd.Flags().BoolVar(&header.ValidateOnly, "dry-run", false, "report what would change, change nothing")
	cmd.Flags().StringVarP(&header.Message, "message", "m", "", "kept with the revision")
	waitFlag(cmd, &wait)
	return cmd
}
