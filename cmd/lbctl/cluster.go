package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"lbd/cmd/lbctl/document"
	lbdv1 "lbd/proto/lbd/v1"
	"lbd/tls/seal"
)

func (c *cli) clusterCommand() *cobra.Command {
	return noun("cluster", "The cluster's nodes, keys and settings",
		c.clusterStatus(),
		c.clusterVerify(),
		c.joinTokenCommand(),
		c.clusterLeave(),
		c.clusterRemove(),
		c.clusterReplace(),
		c.clusterTransferLeader(),
		c.clusterRecover(),
		c.clusterRotateCA(),
		c.settingsCommand(),
		c.rotateSeal(),
		noun("seal-key", "The keys under which private keys are sealed", c.sealKeyStatus(), c.sealKeyExport(), c.sealKeyNew()))
}

func (c *cli) rotateSeal() *cobra.Command {
	var retire string
	var force bool
	cmd := &cobra.Command{
		Use:   "rotate-seal",
		Short: "Seal all private keys under a new sealing key, or forget an old one",
		Long: `Make a new sealing key and seal every private key under it, present and history. No revision is made, and traffic does not
notice. A rotation that was cut off is finished by calling it again.

The old key stays, because backups that were made before need it. Once the last of them is gone, --retire ID forgets it; that is
refused while anything is sealed under it.

Every node of the cluster gets the new key before anything is sealed under it; where one is out of contact that is refused without --force.

Where the keys come from a credential or a command (lbd run --seal-key), put a new key before the others there, then call this.`,
		Example: "  lbctl cluster rotate-seal\n  lbctl cluster rotate-seal --retire 84d24474549b1866",
		Args:    cobra.NoArgs,
		RunE: c.does(func(ctx context.Context, _ []string) error {
			return c.call(func(cl *client) error {
				if retire != "" {
					return c.retireSeal(ctx, cl, retire)
				}
				return c.rotateSealNow(ctx, cl, force)
			})
		}),
	}
	cmd.Flags().StringVar(&retire, "retire", "", "forget the key with this id instead, under which nothing is sealed any more")
	cmd.Flags().BoolVar(&force, "force", false, "also where a node is out of contact: it fetches the key when it is back, and opens nothing new until then")
	return cmd
}

func (c *cli) rotateSealNow(ctx context.Context, cl *client, force bool) error {
	request := &lbdv1.RotateSealRequest{RequestId: newRequestID(), Force: force}
	answer, err := retried(ctx, cl, startGrace, func() (*lbdv1.RotateSealResponse, error) {
		return lbdv1.NewClusterServiceClient(cl.conn).RotateSeal(ctx, request)
	})
	if err != nil {
		return err
	}
	c.printSealKeys(document.OfAnswer(answer), answer.GetKeys())
	c.say("%s sealed anew: copy seal.key, or export it with `lbctl cluster seal-key export`", countOf(int(answer.GetResealed()), "secret"))
	return nil
}

func (c *cli) retireSeal(ctx context.Context, cl *client, id string) error {
	request := &lbdv1.RetireSealRequest{Id: id, RequestId: newRequestID()}
	answer, err := retried(ctx, cl, startGrace, func() (*lbdv1.RetireSealResponse, error) {
		return lbdv1.NewClusterServiceClient(cl.conn).RetireSeal(ctx, request)
	})
	if err != nil {
		return err
	}
	c.printSealKeys(document.OfAnswer(answer), answer.GetKeys())
	return nil
}

func (c *cli) sealKeyStatus() *cobra.Command {
	return &cobra.Command{
		Use:     "status",
		Short:   "Which sealing keys there are, and what is sealed under each",
		Example: "  lbctl cluster seal-key status",
		Args:    cobra.NoArgs,
		RunE: c.does(func(ctx context.Context, _ []string) error {
			return c.call(func(cl *client) error {
				answer, err := retried(ctx, cl, 0, func() (*lbdv1.GetSealStatusResponse, error) {
					return lbdv1.NewClusterServiceClient(cl.conn).GetSealStatus(ctx, &lbdv1.GetSealStatusRequest{})
				})
				if err != nil {
					return err
				}
				c.printSealKeys(document.OfAnswer(answer), answer.GetKeys())
				c.say("from %s", answer.GetSource())
				return nil
			})
		}),
	}
}

// printSealKeys lists keys, the active one first.
func (c *cli) printSealKeys(value *document.Value, keys []*lbdv1.SealKey) {
	var names []string
	for _, k := range keys {
		names = append(names, k.GetId())
	}
	c.print(result{value: value, names: names, table: func(w *table) {
		w.row("KEY", "ACTIVE", "SECRETS", "IN HISTORY", "MISSING ON")
		for _, k := range keys {
			w.row(k.GetId(), fmt.Sprint(k.GetActive()), fmt.Sprint(k.GetSecrets()), fmt.Sprint(k.GetHistorySecrets()), strings.Join(k.GetMissingOn(), ","))
		}
	}})
}

func (c *cli) sealKeyExport() *cobra.Command {
	request := &lbdv1.ExportSealKeyRequest{}
	cmd := &cobra.Command{
		Use:   "export --recipient AGE…",
		Short: "Write the sealing keys to stdout, encrypted for a recipient",
		Long: `Write the sealing keys to stdout, as an age file with armour. "age --decrypt" makes a seal.key of it again. Who exported
it, and when, is in the audit.`,
		Example: "  lbctl cluster seal-key export --recipient age1… >seal.key.age",
		Args:    cobra.NoArgs,
		RunE: c.does(func(ctx context.Context, _ []string) error {
			return c.call(func(cl *client) error {
				answer, err := retried(ctx, cl, 0, func() (*lbdv1.ExportSealKeyResponse, error) {
					return lbdv1.NewClusterServiceClient(cl.conn).ExportSealKey(ctx, request)
				})
				if vs := violations(err); len(vs) > 0 {
					return fail(exitUsage, "--recipient: %s", vs[0].GetDescription())
				}
				if err != nil {
					return err
				}
				_, err = fmt.Fprint(c.stdout, answer.GetFile())
				return err
			})
		}),
	}
	cmd.Flags().StringArrayVar(&request.Recipients, "recipient", nil, "age1…: whose identity opens the file (repeatable)")
	if err := cmd.MarkFlagRequired("recipient"); err != nil {
		panic(err)
	}
	return cmd
}

func (c *cli) sealKeyNew() *cobra.Command {
	return &cobra.Command{
		Use:   "new",
		Short: "Make a sealing key and write it to stdout, for keys that lbd does not keep itself",
		Long: `Make a sealing key and write it to stdout, as a line of a seal.key. It asks no node. It is for keys that come from a
credential or a command (lbd run --seal-key): put it before the others there, then call "lbctl cluster rotate-seal".`,
		Example: "  lbctl cluster seal-key new | systemd-creds encrypt --name=lbd-seal - /etc/credstore.encrypted/lbd-seal",
		Args:    cobra.NoArgs,
		RunE: c.does(func(context.Context, []string) error {
			_, err := c.stdout.Write(seal.NewKeyLine())
			return err
		}),
	}
}
