package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lbd/cmd/lbctl/document"
	lbdv1 "lbd/proto/lbd/v1"
)

const removalLong = `The cluster's sealing key and certificate authority become others in the same step, so that what the node knew is worth nothing any more.
The pins of the last eight authorities before stay good for lbctl until "cluster rotate-ca --retire". With --compromised they end at once:
the context that was used gets the new pin, every other machine and pipeline is locked out until somebody gives it that. The answer lists
the certificates whose private keys the node held: where it was compromised, replace them. Backups from before can be opened with the
sealing keys that it had: make another one.

Refused where the cluster could not go on without the node, and where another node is out of contact, which would go on trusting it; with
--force such a node hears of it when it is back. The data directory of a removed node is of no use: it deletes its keys when it learns of
its removal.`

func (c *cli) clusterRemove() *cobra.Command {
	request := &lbdv1.RemoveNodeRequest{}
	var yes bool
	cmd := &cobra.Command{
		Use:     "remove NODE",
		Short:   "Take a node out of the cluster, for good",
		Long:    "Take a node out of the cluster, for good, whether or not it runs. NODE is its name or id.\n\n" + removalLong,
		Example: "  lbctl cluster remove edge-3 --yes\n  lbctl cluster remove edge-3 --compromised --yes",
		Args:    cobra.ExactArgs(1),
		RunE: c.does(func(ctx context.Context, args []string) error {
			request.Node = withoutNodes(args[0])
			if !yes {
				if err := c.confirm("Remove node " + request.GetNode() + " from the cluster, for good?"); err != nil {
					return err
				}
			}
			return c.call(func(cl *client) error {
				itself, err := c.isAnswering(ctx, cl, request.GetNode())
				if err != nil {
					return err
				}
				return c.removeNode(ctx, cl, request, itself)
			})
		}),
	}
	c.removalFlags(cmd, &request.Compromised, &request.Force, &yes)
	return cmd
}

func (c *cli) removalFlags(cmd *cobra.Command, compromised, force, yes *bool) {
	cmd.Flags().BoolVar(compromised, "compromised", false, "its keys may be in wrong hands: the pins of all authorities before end at once, too")
	cmd.Flags().BoolVar(force, "force", false, "also where another node is out of contact")
	cmd.Flags().BoolVar(yes, "yes", false, "do not ask")
}

// removeNode removes a node. One that removes itself is cut off from the others at that moment: that it says so is the answer then.
func (c *cli) removeNode(ctx context.Context, cl *client, request *lbdv1.RemoveNodeRequest, itself bool) error {
	request.RequestId = newRequestID()
	answer, err := retried(ctx, cl, startGrace, func() (*lbdv1.RemoveNodeResponse, error) {
		return lbdv1.NewClusterServiceClient(cl.conn).RemoveNode(ctx, request)
	})
	if itself && reason(err) == "NODE_REMOVED" {
		answer, err = &lbdv1.RemoveNodeResponse{Node: &lbdv1.Node{Name: request.GetNode()}}, nil
	}
	if err != nil {
		return c.complained(err)
	}
	c.print(result{value: document.OfAnswer(answer), names: []string{"nodes/" + answer.GetNode().GetName()}, table: func(*table) {
		fmt.Fprintf(c.stdout, "node %s removed\n", oneLine(answer.GetNode().GetName()))
	}})
	return c.sayRemoved(cl, answer)
}

// isAnswering tells whether it is that node, by its name or id, that calls go to. Where that cannot be found out nothing is to be removed: what the
// removal ends with could not be told from a failure.
func (c *cli) isAnswering(ctx context.Context, cl *client, node string) (bool, error) {
	me, err := retried(ctx, cl, startGrace, func() (*lbdv1.WhoAmIResponse, error) { return cl.auth.WhoAmI(ctx, &lbdv1.WhoAmIRequest{}) })
	if err != nil {
		c.say("nothing was removed: it is not known which node answers")
		return false, err
	}
	return node == me.GetNode() || node == me.GetNodeId(), nil
}

// sayRemoved tells what is to be done after a removal. Nodes that have not heard of it make it exit 8.
func (c *cli) sayRemoved(cl *client, answer *lbdv1.RemoveNodeResponse) error {
	c.sayHeld("it", answer.GetCertificates())
	if answer.GetAuthority() != "" {
		c.repin(cl, answer.GetAuthority(), answer.GetPreviousAuthority() != "")
	}
	if len(answer.GetUnreached()) > 0 {
		return fail(exitWaitTimedOut, "node %s is removed; %s out of contact and will hear of it when back: %s",
			answer.GetNode().GetName(), areText(len(answer.GetUnreached())), oneLine(strings.Join(answer.GetUnreached(), ", ")))
	}
	return nil
}

// sayHeld tells which private keys nodes had that are members no more, and what in backups they can still open.
func (c *cli) sayHeld(who string, certificates []string) {
	if len(certificates) > 0 {
		c.say("%s held the private keys of %s: %s", who, countOf(len(certificates), "certificate"), oneLine(strings.Join(certificates, ", ")))
	}
	c.say("%s held the sealing keys until now: backups from before can be opened with them; make another one, `lbctl backup create`", who)
}

func areText(n int) string {
	if n == 1 {
		return "one node is"
	}
	return fmt.Sprintf("%d nodes are", n)
}

func theyText(n int) string {
	if n == 1 {
		return "it"
	}
	return "they"
}

func (c *cli) clusterLeave() *cobra.Command {
	request := &lbdv1.RemoveNodeRequest{}
	var yes bool
	cmd := &cobra.Command{
		Use:   "leave",
		Short: "Take the node that answers out of the cluster, for good; it drains and ends",
		Long: `Take the node that answers out of the cluster, for good: the one on this machine, unless endpoints say another. It drains and its
process ends.

` + removalLong,
		Example: "  lbctl cluster leave --yes",
		Args:    cobra.NoArgs,
		RunE: c.does(func(ctx context.Context, _ []string) error {
			return c.call(func(cl *client) error {
				me, err := retried(ctx, cl, startGrace, func() (*lbdv1.WhoAmIResponse, error) { return cl.auth.WhoAmI(ctx, &lbdv1.WhoAmIRequest{}) })
				if err != nil {
					return err
				}
				request.Node = me.GetNode()
				if !yes {
					if err := c.confirm("Take node " + request.GetNode() + " out of the cluster, for good, and end it?"); err != nil {
						return err
					}
				}
				return c.removeNode(ctx, cl, request, true)
			})
		}),
	}
	c.removalFlags(cmd, &request.Compromised, &request.Force, &yes)
	return cmd
}

func (c *cli) clusterReplace() *cobra.Command {
	request := &lbdv1.ReplaceNodeRequest{}
	var yes bool
	cmd := &cobra.Command{
		Use:   "replace OLD NEW",
		Short: "Remove a node, and make one that has joined a voter in its place",
		Long: `Remove node OLD, and make NEW, which has joined already, a voter in its place if OLD is one. At no moment the cluster has fewer voters
in contact than before.

` + removalLong,
		Example: "  lbctl cluster replace edge-3 edge-4 --yes",
		Args:    cobra.ExactArgs(2),
		RunE: c.does(func(ctx context.Context, args []string) error {
			request.Old, request.New, request.RequestId = withoutNodes(args[0]), withoutNodes(args[1]), newRequestID()
			if !yes {
				if err := c.confirm("Remove node " + request.GetOld() + " from the cluster, for good?"); err != nil {
					return err
				}
			}
			return c.call(func(cl *client) error {
				itself, err := c.isAnswering(ctx, cl, request.GetOld())
				if err != nil {
					return err
				}
				answer, err := retried(ctx, cl, startGrace, func() (*lbdv1.ReplaceNodeResponse, error) {
					return lbdv1.NewClusterServiceClient(cl.conn).ReplaceNode(ctx, request)
				})
				if itself && reason(err) == "NODE_REMOVED" {
					answer, err = &lbdv1.ReplaceNodeResponse{
						Removed: &lbdv1.RemoveNodeResponse{Node: &lbdv1.Node{Name: request.GetOld()}}, Node: &lbdv1.Node{Name: request.GetNew()},
					}, nil
				}
				if err != nil {
					return c.complained(err)
				}
				c.print(result{value: document.OfAnswer(answer), names: []string{"nodes/" + answer.GetNode().GetName()}, table: func(*table) {
					fmt.Fprintf(c.stdout, "node %s removed, %s is in its place\n", oneLine(answer.GetRemoved().GetNode().GetName()), oneLine(answer.GetNode().GetName()))
				}})
				return c.sayRemoved(cl, answer.GetRemoved())
			})
		}),
	}
	c.removalFlags(cmd, &request.Compromised, &request.Force, &yes)
	return cmd
}

func (c *cli) clusterTransferLeader() *cobra.Command {
	return &cobra.Command{
		Use:     "transfer-leader [NODE]",
		Short:   "Make another voter the leader",
		Long:    "Make another voter the leader: NODE, or the one that is furthest. Calls that are under way meanwhile are repeated by lbctl.",
		Example: "  lbctl cluster transfer-leader\n  lbctl cluster transfer-leader edge-2",
		Args:    cobra.MaximumNArgs(1),
		RunE: c.does(func(ctx context.Context, args []string) error {
			request := &lbdv1.TransferLeaderRequest{Node: withoutNodes(strings.Join(args, ""))}
			return c.call(func(cl *client) error {
				answer, err := retried(ctx, cl, startGrace, func() (*lbdv1.TransferLeaderResponse, error) {
					return lbdv1.NewClusterServiceClient(cl.conn).TransferLeader(ctx, request)
				})
				if err != nil {
					return c.complained(err)
				}
				c.print(result{value: document.OfAnswer(answer), names: []string{"nodes/" + answer.GetLeader()}, table: func(*table) {
					fmt.Fprintf(c.stdout, "node %s leads\n", oneLine(answer.GetLeader()))
				}})
				return nil
			})
		}),
	}
}

func (c *cli) clusterRecover() *cobra.Command {
	request := &lbdv1.RecoverClusterRequest{}
	var yes bool
	cmd := &cobra.Command{
		Use:   "recover",
		Short: "Begin anew with this node alone, where most voters are lost for good",
		Long: `Make the node on this machine the only one of a new epoch of the cluster, with everything that it holds. It is for the case that most
voters are lost for good, so that there is no leader any more. What was acknowledged shortly before, and had not come to this node, is lost.

All other nodes are members no more, also those that are only out of contact: they have to join anew on empty data directories. Stop them
first: what they still serve is what they knew. The sealing key and the certificate authority become others; the pins of those before stay
good until "cluster rotate-ca --retire". The answer lists the certificates whose private keys the others hold, and go on holding: where one
is in wrong hands, replace them. Backups from before can be opened with the sealing keys that they have: make another one.

It is refused while a node leads, or is heard by another one that answers; where one answers that this node is a member no more; and, without
--force, while a majority of the voters answers.

It takes the control socket of the node. The node should be the one that is furthest: compare applied_index in "lbctl status" of each.`,
		Example: "  lbctl cluster recover --cluster-id c-0123456789abcdef --yes",
		Args:    cobra.NoArgs,
		RunE: c.does(func(ctx context.Context, _ []string) error {
			if !yes {
				if err := c.confirm("Begin anew with this node alone, and leave all other nodes behind, for good?"); err != nil {
					return err
				}
			}
			return c.call(func(cl *client) error {
				answer, err := lbdv1.NewClusterServiceClient(cl.conn).RecoverCluster(ctx, request)
				if err != nil {
					return c.complained(err)
				}
				var left []string
				for _, n := range answer.GetRemoved() {
					left = append(left, n.GetName())
				}
				c.print(result{value: document.OfAnswer(answer), names: left, table: func(*table) {
					fmt.Fprintf(c.stdout, "epoch %d has begun with this node alone\n", answer.GetEpoch())
				}})
				if len(left) > 0 {
					c.say("members no more: %s: empty their data directories and let them join anew", oneLine(strings.Join(left, ", ")))
					c.sayHeld(theyText(len(left)), answer.GetCertificates())
				}
				c.repin(cl, answer.GetAuthority(), true)
				return nil
			})
		}),
	}
	cmd.Flags().StringVar(&request.ClusterId, "cluster-id", "", "the cluster's id, as \"lbctl cluster status\" shows it: so that it is meant")
	cmd.Flags().BoolVar(&request.Force, "force", false, "although a majority of the voters answers: where they elect no leader")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	if err := cmd.MarkFlagRequired("cluster-id"); err != nil {
		panic(err)
	}
	return cmd
}

func (c *cli) clusterRotateCA() *cobra.Command {
	var retire, yes bool
	cmd := &cobra.Command{
		Use:   "rotate-ca",
		Short: "Make a new certificate authority, or end the pins of those before",
		Long: `Make a new certificate authority of the cluster, by which lbctl and nodes that join know it. Nodes show new certificates at once, and
the pins of the last eight before stay good. Once every context and pipeline has the new pin, --retire ends the old ones.`,
		Example: "  lbctl cluster rotate-ca\n  lbctl cluster rotate-ca --retire --yes",
		Args:    cobra.NoArgs,
		RunE: c.does(func(ctx context.Context, _ []string) error {
			if retire && !yes {
				if err := c.confirm("End the pins of the certificate authorities before? Who has no other one is locked out."); err != nil {
					return err
				}
			}
			return c.call(func(cl *client) error {
				if retire {
					return c.retireAuthority(ctx, cl)
				}
				return c.rotateAuthority(ctx, cl)
			})
		}),
	}
	cmd.Flags().BoolVar(&retire, "retire", false, "end the pins of the authorities before")
	cmd.Flags().BoolVar(&yes, "yes", false, "with --retire: do not ask")
	return cmd
}

func (c *cli) rotateAuthority(ctx context.Context, cl *client) error {
	request := &lbdv1.RotateAuthorityRequest{RequestId: newRequestID()}
	answer, err := retried(ctx, cl, startGrace, func() (*lbdv1.RotateAuthorityResponse, error) {
		return lbdv1.NewClusterServiceClient(cl.conn).RotateAuthority(ctx, request)
	})
	if err != nil {
		return c.complained(err)
	}
	c.print(result{value: document.OfAnswer(answer), names: []string{answer.GetAuthority()}, table: func(*table) {
		fmt.Fprintln(c.stdout, answer.GetAuthority())
	}})
	if answer.GetPreviousAuthority() == "" {
		fmt.Fprintln(c.stderr, "warning: the authority before cannot vouch for another one: its pin is good no more")
	}
	c.repin(cl, answer.GetAuthority(), answer.GetPreviousAuthority() != "")
	return nil
}

func (c *cli) retireAuthority(ctx context.Context, cl *client) error {
	request := &lbdv1.RetireAuthorityRequest{RequestId: newRequestID()}
	answer, err := retried(ctx, cl, startGrace, func() (*lbdv1.RetireAuthorityResponse, error) {
		return lbdv1.NewClusterServiceClient(cl.conn).RetireAuthority(ctx, request)
	})
	if err != nil {
		return c.complained(err)
	}
	c.print(result{value: document.OfAnswer(answer), names: []string{answer.GetAuthority()}, table: func(*table) {
		fmt.Fprintf(c.stdout, "%s is the only pin that is good\n", answer.GetAuthority())
	}})
	c.repin(cl, answer.GetAuthority(), false)
	return nil
}

// setRole is `node promote` and `node demote`.
func (c *cli) setRole(ctx context.Context, node string, role lbdv1.NodeRole, does string) error {
	request := &lbdv1.SetNodeRoleRequest{Node: withoutNodes(node), Role: role, RequestId: newRequestID()}
	return c.call(func(cl *client) error {
		answer, err := retried(ctx, cl, startGrace, func() (*lbdv1.SetNodeRoleResponse, error) {
			return lbdv1.NewClusterServiceClient(cl.conn).SetNodeRole(ctx, request)
		})
		var late *lateError
		votes := role == lbdv1.NodeRole_NODE_ROLE_VOTER
		if votes && status.Code(err) == codes.DeadlineExceeded && !errors.As(err, &late) && ctx.Err() != nil {
			return fail(exitWaitTimedOut, "timed out after %s: node %s has not caught up yet; it becomes a voter when it has", cl.timeout, request.GetNode())
		}
		if err != nil {
			return c.complained(err)
		}
		c.printNode(answer.GetNode(), does, false)
		return nil
	})
}
