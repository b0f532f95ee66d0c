package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"lbd/cmd/lbctl/document"
	lbdv1 "lbd/proto/lbd/v1"
)

func (c *cli) joinTokenCommand() *cobra.Command {
	return noun("join-token", "Tokens with which nodes join the cluster", c.joinTokenCreate(), c.joinTokenList(), c.joinTokenRevoke(), c.joinTokenApprove())
}

func (c *cli) joinTokenCreate() *cobra.Command {
	request := &lbdv1.CreateJoinTokenRequest{}
	var ttl string
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Make a token with which a node joins",
		Long: `Make a token with which a node joins, and write it to stdout, this once and nowhere else. It is good for one node and one hour
unless told otherwise, for 24 hours at most. It pins the cluster's certificate authority: a node that joins shows it to nobody else.

With --approval each node waits, after it has shown the token, until "join-token approve" lets it in.`,
		Example: `  lbctl cluster join-token create >token
  lbctl cluster join-token create --uses 2 --ttl 10m --source 10.0.0.0/24
  lbctl cluster join-token create --node edge-2 --approval`,
		Args: cobra.NoArgs,
		RunE: c.does(func(ctx context.Context, _ []string) error {
			if ttl != "" {
				span, ok := parseSpan(ttl)
				if !ok {
					return fail(exitUsage, "--ttl takes a length of time such as 10m or 24h, not %q", ttl)
				}
				request.Ttl = durationpb.New(span)
			}
			request.RequestId = newRequestID()
			return c.call(func(cl *client) error { return c.createJoinToken(ctx, cl, request) })
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&ttl, "ttl", "", "how long it is good, 1m to 24h (default 1h)")
	flags.Int32Var(&request.Uses, "uses", 0, "how many nodes may join with it, 1 to 100 (default 1)")
	flags.BoolVar(&request.Reusable, "reusable", false, "any number of nodes may, until it ends")
	flags.StringVar(&request.Node, "node", "", "only a node of this name")
	flags.StringSliceVar(&request.Sources, "source", nil, "only from addresses of this network, as 10.0.0.0/24 (repeatable)")
	flags.BoolVar(&request.Approval, "approval", false, "each node waits until \"join-token approve\" lets it in")
	return cmd
}

func (c *cli) createJoinToken(ctx context.Context, cl *client, request *lbdv1.CreateJoinTokenRequest) error {
	answer, err := retried(ctx, cl, startGrace, func() (*lbdv1.CreateJoinTokenResponse, error) {
		return lbdv1.NewClusterServiceClient(cl.conn).CreateJoinToken(ctx, request)
	})
	if vs := violations(err); len(vs) > 0 {
		c.tellViolations(vs)
		return fail(exitUsage, "no token was made")
	}
	if err != nil {
		return err
	}
	token := answer.GetToken()
	if answer.GetSecret() == "" {
		return fail(exitUnavailable, "join token %s was made, but the connection broke before its secret came: revoke it (`lbctl cluster join-token revoke %s`) and make another one",
			token.GetId(), token.GetId())
	}
	c.print(result{value: document.OfAnswer(answer), names: []string{token.GetId()}, table: func(*table) {
		_, err = fmt.Fprintln(c.stdout, answer.GetSecret())
	}})
	if err != nil {
		return fail(exitUsage, "write the secret: %w: the token is of no use, revoke it (`lbctl cluster join-token revoke %s`)", err, token.GetId())
	}
	c.say("join token %s: %s, until %s", token.GetId(), usesText(token), moment(token.GetExpireTime()))
	c.say("on the node that joins, with the token in FILE:\n  lbd join %s --token-file FILE --control HOST:PORT", strings.Join(answer.GetAddresses(), ","))
	return nil
}

// usesText says for whom a join token is.
func usesText(t *lbdv1.JoinToken) string {
	text := "for any number of nodes"
	if !t.GetReusable() {
		text = "for " + countOf(int(t.GetUses()), "node")
	}
	if t.GetNode() != "" {
		text = "for node " + t.GetNode()
	}
	if len(t.GetSources()) > 0 {
		text += " from " + strings.Join(t.GetSources(), ", ")
	}
	if t.GetApproval() {
		text += ", each to be approved"
	}
	return text
}

func (c *cli) joinTokenList() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "List the join tokens that are still good, and the nodes that wait for an approval",
		Example: "  lbctl cluster join-token list",
		Args:    cobra.NoArgs,
		RunE: c.does(func(ctx context.Context, _ []string) error {
			return c.call(func(cl *client) error {
				answer, err := retried(ctx, cl, 0, func() (*lbdv1.ListJoinTokensResponse, error) {
					return lbdv1.NewClusterServiceClient(cl.conn).ListJoinTokens(ctx, &lbdv1.ListJoinTokensRequest{})
				})
				if err != nil {
					return err
				}
				c.printJoinTokens(answer)
				return nil
			})
		}),
	}
}

func (c *cli) printJoinTokens(answer *lbdv1.ListJoinTokensResponse) {
	var names []string
	for _, t := range answer.GetTokens() {
		names = append(names, t.GetId())
	}
	c.print(result{value: document.OfAnswer(answer), names: names, table: func(w *table) {
		w.wideRow([]string{"TOKEN", "FOR", "EXPIRES"}, "CREATED", "AUTHOR")
		for _, t := range answer.GetTokens() {
			w.wideRow([]string{t.GetId(), strings.TrimPrefix(usesText(t), "for "), moment(t.GetExpireTime())}, moment(t.GetCreateTime()), t.GetAuthor())
		}
		if len(answer.GetPending()) == 0 {
			return
		}
		w.row("")
		w.wideRow([]string{"WAITING", "ADDRESS", "FROM", "TOKEN", "SINCE"}, "ID", "KEY")
		for _, n := range answer.GetPending() {
			w.wideRow([]string{n.GetName(), n.GetAddress(), n.GetSource(), n.GetTokenId(), ago(time.Since(n.GetTime().AsTime()))}, n.GetId(), n.GetKey())
		}
	}})
}

func (c *cli) joinTokenRevoke() *cobra.Command {
	return &cobra.Command{
		Use:   "revoke TOKEN",
		Short: "End a join token at once",
		Long: `End a join token at once. TOKEN is its id, as "join-token list" shows it: what is between the first underscores of lbj_<id>_….
Nodes that have joined with it stay; those that wait for an approval are turned away.`,
		Example: "  lbctl cluster join-token revoke k3v9x2ab",
		Args:    cobra.ExactArgs(1),
		RunE: c.does(func(ctx context.Context, args []string) error {
			request := &lbdv1.RevokeJoinTokenRequest{Id: args[0], RequestId: newRequestID()}
			if rest, whole := strings.CutPrefix(args[0], "lbj_"); whole {
				request.Id, _, _ = strings.Cut(rest, "_")
				fmt.Fprintln(c.stderr, "warning: the whole token was on the command line, where others on this machine may see it: its id is enough")
			}
			return c.call(func(cl *client) error {
				answer, err := retried(ctx, cl, startGrace, func() (*lbdv1.RevokeJoinTokenResponse, error) {
					return lbdv1.NewClusterServiceClient(cl.conn).RevokeJoinToken(ctx, request)
				})
				if err != nil {
					return c.complained(err)
				}
				c.print(result{value: document.OfAnswer(answer), names: []string{request.GetId()}, table: func(*table) {
					fmt.Fprintf(c.stdout, "join token %s revoked\n", request.GetId())
				}})
				return nil
			})
		}),
	}
}

func (c *cli) joinTokenApprove() *cobra.Command {
	request := &lbdv1.ApproveNodeRequest{}
	cmd := &cobra.Command{
		Use:   "approve NODE",
		Short: "Let a node in that waits for it, or turn it away",
		Long: `Let a node in that has shown a token made with --approval, or turn it away with --reject. NODE is its name or id. Compare first
the key that "join-token list -o wide" shows with the one in the node's own log: a name anybody can choose.`,
		Example: "  lbctl cluster join-token approve edge-2\n  lbctl cluster join-token approve edge-9 --reject",
		Args:    cobra.ExactArgs(1),
		RunE: c.does(func(ctx context.Context, args []string) error {
			request.Node, request.RequestId = args[0], newRequestID()
			return c.call(func(cl *client) error {
				answer, err := retried(ctx, cl, startGrace, func() (*lbdv1.ApproveNodeResponse, error) {
					return lbdv1.NewClusterServiceClient(cl.conn).ApproveNode(ctx, request)
				})
				if err != nil {
					return c.complained(err)
				}
				does := "approved"
				if request.GetReject() {
					does = "turned away"
				}
				n := answer.GetNode()
				c.print(result{value: document.OfAnswer(answer), names: []string{"nodes/" + n.GetName()}, table: func(*table) {
					fmt.Fprintf(c.stdout, "node %s %s\n", oneLine(n.GetName()), does)
				}})
				return nil
			})
		}),
	}
	cmd.Flags().BoolVar(&request.Reject, "reject", false, "turn it away instead")
	return cmd
}
