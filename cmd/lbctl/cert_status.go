package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lbd/cluster/state"
	"lbd/cmd/lbctl/document"
	lbdv1 "lbd/proto/lbd/v1"
)

func (c *cli) certStatus() *cobra.Command {
	var within, node string
	cmd := &cobra.Command{
		Use:   "status [NAME]",
		Short: "Show certificates as stored and as served",
		Long: `Show certificates as stored and as the nodes serve them; SERVED names those that do not. LISTENERS are those on which some client
of the answering node is shown it. With -o wide SHADOWED BY has, for each host, the certificate that is shown in its place: a newer one, or one with a better key.

With --expires-within only those are shown that end within that time or have ended, the first to end before the others: exit 1
if there are any, 0 if there are none.`,
		Example: `  lbctl cert status shop -o wide
  lbctl cert status --expires-within 30d`,
		Args: cobra.MaximumNArgs(1),
		RunE: c.does(func(ctx context.Context, args []string) error {
			span, ok := parseSpan(within)
			if within != "" && !ok {
				return fail(exitUsage, "--expires-within takes a length of time such as 30d or 12h, not %q", within)
			}
			return c.call(func(cl *client) error {
				answer, err := cl.certificate.GetStatus(ctx, &lbdv1.CertificateServiceGetStatusRequest{Name: strings.Join(args, ""), Node: c.meant(node)})
				if err != nil {
					return err
				}
				c.warnUnreached(answer.GetUnreached())
				if within == "" {
					c.printCertificates(answer.GetCertificates())
					return nil
				}
				return c.printEnding(answer.GetCertificates(), time.Now().Add(span))
			})
		}),
	}
	cmd.Flags().StringVar(&within, "expires-within", "", "only those that end within this time, as 30d, or have ended; exit 1 if there are any")
	nodesFlag(cmd, &node)
	return cmd
}

// printEnding prints the certificates that end until then, the first to end before the others.
func (c *cli) printEnding(certificates []*lbdv1.CertificateStatus, until time.Time) error {
	ending := slices.DeleteFunc(certificates, func(s *lbdv1.CertificateStatus) bool {
		return s.GetNotAfter() == nil || s.GetNotAfter().AsTime().After(until)
	})
	slices.SortStableFunc(ending, func(a, b *lbdv1.CertificateStatus) int {
		return a.GetNotAfter().AsTime().Compare(b.GetNotAfter().AsTime())
	})
	c.printCertificates(ending)
	if len(ending) == 0 {
		c.say("no certificate ends before %s", until.UTC().Format(time.RFC3339))
		return nil
	}
	return &failure{code: exitNo}
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

// served is whether the nodes serve what is stored: those that do not are named, where there are several; another content of the
// one that there is by its serial.
func served(s *lbdv1.CertificateStatus) string {
	var others []string
	for _, n := range s.GetNodes() {
		if n.GetServedSerial() != s.GetSerial() {
			others = append(others, n.GetNode())
		}
	}
	if len(s.GetNodes()) > 1 && len(others) > 0 {
		return "not on " + list(others)
	}
	switch s.GetServedSerial() {
	case "":
		return "no"
	case s.GetSerial():
		return "yes"
	default:
		return s.GetServedSerial()
	}
}

// servedSerials is what each node serves, or the one serial that all do.
func servedSerials(s *lbdv1.CertificateStatus) string {
	var all []string
	for _, n := range s.GetNodes() {
		all = append(all, n.GetNode()+": "+cmp.Or(n.GetServedSerial(), "none"))
	}
	if !slices.ContainsFunc(s.GetNodes(), func(n *lbdv1.CertificateOnNode) bool { return n.GetServedSerial() != s.GetServedSerial() }) {
		return s.GetServedSerial()
	}
	return strings.Join(all, ", ")
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
