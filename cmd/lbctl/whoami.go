package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"lbd/cmd/lbctl/document"
	lbdv1 "lbd/proto/lbd/v1"
)

func (c *cli) whoamiCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "whoami",
		Short: "Show how the cluster sees you: role, owners, and by what it knows you",
		Long: `Show how the cluster sees the caller: role, owners, and by what it knows who calls. CA PIN is what LBCTL_CA takes on other
machines ("lbctl help connection").`,
		Example: `  lbctl whoami
  lbctl whoami -o jsonpath='{.ca_pin}'`,
		Args: cobra.NoArgs,
		RunE: c.does(func(ctx context.Context, _ []string) error {
			return c.call(func(cl *client) error {
				me, err := retried(ctx, cl, 0, func() (*lbdv1.WhoAmIResponse, error) { return cl.auth.WhoAmI(ctx, &lbdv1.WhoAmIRequest{}) })
				if err != nil {
					return err
				}
				c.print(result{value: document.OfAnswer(me), names: []string{me.GetAuthor()}, table: func(w *table) {
					for _, row := range [][2]string{
						{"AUTHOR", me.GetAuthor()},
						{"ROLE", roleWord(me.GetRole())},
						{"OWNERS", ownersWord(me.GetOwners())},
						{"KNOWN BY", me.GetKind()},
						{"TOKEN", me.GetTokenId()},
						{"EXPIRES", moment(me.GetExpireTime())},
						{"COMES FROM", me.GetSource()},
						{"NODE", me.GetNode()},
						{"CA PIN", me.GetCaPin()},
					} {
						w.row(row[0], row[1])
					}
				}})
				return nil
			})
		}),
	}
}

// roleWord is a role as flags take it.
func roleWord(role lbdv1.Role) string { return strings.ToLower(word(role)) }

// ownersWord lists the owners that a credential is bound to.
func ownersWord(owners []string) string {
	if len(owners) == 0 {
		return "all"
	}
	return strings.Join(owners, ",")
}
