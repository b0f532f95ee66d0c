package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"lbd/cluster/state"
	"lbd/cmd/lbctl/document"
	lbdv1 "lbd/proto/lbd/v1"
)

func (c *cli) certPurge() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "purge NAME",
		Short: "Remove the keys that a certificate had before, for good",
		Long: `Remove every key that a certificate had before from the history, and from log, snapshots and databases of every node: nobody can
roll back to them then. The certificate stays and is served as before, with the key that it has now: "cert rotate" it with a new key
first if that is the one that leaked. On a terminal it asks first; elsewhere --yes is needed.

Backups, and copies of the data directory that somebody made, keep the keys, sealed. So do other certificates that have one of them.`,
		Example: `  lbctl cert rotate leaked --chain new.pem --key new.key --wait
  lbctl cert purge leaked --yes`,
		Args: cobra.ExactArgs(1),
		RunE: c.does(func(ctx context.Context, args []string) error {
			name := withoutKind(state.Certificates, args[0])
			if !yes {
				if err := c.confirm("Remove all keys that certificates/" + name + " had before, with no way back?"); err != nil {
					return err
				}
			}
			return c.call(func(cl *client) error { return c.purgePast(ctx, cl, name) })
		}),
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

func (c *cli) purgePast(ctx context.Context, cl *client, name string) error {
	request := &lbdv1.PurgeRequest{Name: name}
	answer, err := retried(ctx, cl, startGrace, func() (*lbdv1.PurgeResponse, error) { return cl.certificate.Purge(ctx, request) })
	if err != nil {
		return err
	}
	c.print(result{value: document.OfAnswer(answer), names: []string{"certificates/" + name}, table: func(*table) {
		fmt.Fprintf(c.stdout, "certificates/%s: %s removed from the history; it stays, with the key that it has now\n", name, countOf(int(answer.GetPurged()), "key"))
	}})
	if answer.GetPurged() == 0 {
		fmt.Fprintln(c.stderr, "the history has no other key of it: if the one that it has now leaked, rotate it with a new key first")
	}
	return nil
}
