package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"lbd/cmd/lbctl/document"
	lbdv1 "lbd/proto/lbd/v1"
)

// ticketKeyFileBytesMax bounds a file of ticket keys: HAProxy's have one of 108 characters on each line.
const ticketKeyFileBytesMax = 64 << 10

func (c *cli) ticketKeysCommand() *cobra.Command {
	return noun("ticket-keys", "The keys of TLS session tickets, with which clients resume on any node",
		c.ticketKeysStatus(), c.ticketKeysRotate(), c.ticketKeysInspect(), c.ticketKeysImport())
}

func (c *cli) ticketKeysStatus() *cobra.Command {
	var node string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the ticket keys, and how far each node is with them",
		Long: `Show the ticket keys and how far each node is with them, then how handshakes have gone on all nodes that answer.

A key is STAGED for a whole interval, accepted by all and issuing none; then ACTIVE; then ACCEPTED until its tickets are too old. IMPORTED
ones are another tier's. IN SYNC: the node has exactly these keys. Exit 1 if a node is not in sync, does not answer or has a problem.`,
		Example: "  lbctl ticket-keys status",
		Args:    cobra.NoArgs,
		RunE: c.does(func(ctx context.Context, _ []string) error {
			return c.call(func(cl *client) error {
				answer, err := lbdv1.NewSessionTicketServiceClient(cl.conn).GetStatus(ctx, &lbdv1.SessionTicketServiceGetStatusRequest{Node: c.meant(node)})
				if err != nil {
					return err
				}
				c.warnUnreached(answer.GetUnreached())
				c.printTicketKeys(answer)
				wrong := func(n *lbdv1.TicketKeysOnNode) bool { return !n.GetInSync() || n.GetProblem() != "" }
				if len(answer.GetUnreached()) > 0 || slices.ContainsFunc(answer.GetNodes(), wrong) {
					return &failure{code: exitNo}
				}
				return nil
			})
		}),
	}
	nodesFlag(cmd, &node)
	return takesNodeLocal(cmd)
}

func (c *cli) printTicketKeys(answer *lbdv1.SessionTicketServiceGetStatusResponse) {
	var names []string
	for _, k := range answer.GetKeys() {
		names = append(names, fmt.Sprintf("ticket_keys/%d", k.GetEpoch()))
	}
	c.print(result{value: document.OfAnswer(answer), names: names, table: func(w *table) {
		w.wideRow([]string{"EPOCH", "STATE", "ACTIVE SINCE", "UNTIL"}, "NAME", "CREATED", "ENDED")
		for _, k := range answer.GetKeys() {
			epoch := fmt.Sprint(k.GetEpoch())
			if k.GetEpoch() == 0 {
				epoch = "-"
			}
			w.wideRow([]string{epoch, word(k.GetState()), moment(k.GetActivateTime()), moment(k.GetExpireTime())}, k.GetName(), moment(k.GetCreateTime()), moment(k.GetEndTime()))
		}
		w.row("")
		w.wideRow([]string{"NODE", "EPOCH", "IN SYNC", "AGE", "ISSUED", "PROBLEM"}, "RESUMED FROM", "DIGEST")
		for _, n := range answer.GetNodes() {
			w.wideRow([]string{n.GetNode(), fmt.Sprint(n.GetEpoch()), yesNo(n.GetInSync()), ageText(n.GetAge()), fmt.Sprint(n.GetIssued()), n.GetProblem()},
				countsText(n.GetResumedByIssuer()), n.GetDigest())
		}
		w.row("")
		w.row("HANDSHAKES", "COUNT")
		for _, result := range slices.Sorted(maps.Keys(answer.GetResults())) {
			w.row(result, fmt.Sprint(answer.GetResults()[result]))
		}
	}})
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func ageText(d *durationpb.Duration) string {
	if d == nil {
		return ""
	}
	return d.AsDuration().Round(time.Second).String()
}

// countsText is "edge-1: 12, edge-2: 9".
func countsText(counts map[string]uint64) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		all = append(all, fmt.Sprintf("%s: %d", name, counts[name]))
	}
	return strings.Join(all, ", ")
}

func (c *cli) ticketKeysRotate() *cobra.Command {
	var request lbdv1.RotateTicketKeysRequest
	cmd := &cobra.Command{
		Use:   "rotate [--emergency]",
		Short: "Have the staged ticket key issue now, or make all earlier tickets worthless",
		Long: `Have the staged ticket key issue now. Tickets from before stay good. lbd does so by itself, every ticket_keys.interval of the cluster
settings; a node that is out of contact while this is called twice within an interval issues tickets that others know, and does not know theirs.

With --emergency, where a key is in wrong hands: fresh keys issue at once, and no earlier ticket is accepted any more on any node in contact.
Clients make a full handshake; none fails.

It waits until every node in contact has the keys. Where others have not, they are named: exit 8.`,
		Example: "  lbctl ticket-keys rotate\n  lbctl ticket-keys rotate --emergency -m 'edge-2 was broken into'",
		Args:    cobra.NoArgs,
		RunE: c.does(func(ctx context.Context, _ []string) error {
			request.RequestId = newRequestID()
			return c.call(func(cl *client) error {
				answer, err := retried(ctx, cl, startGrace, func() (*lbdv1.RotateTicketKeysResponse, error) {
					return lbdv1.NewSessionTicketServiceClient(cl.conn).RotateTicketKeys(ctx, &request)
				})
				if err != nil {
					return err
				}
				name := fmt.Sprintf("ticket_keys/%d", answer.GetEpoch())
				c.print(result{value: document.OfAnswer(answer), names: []string{name}, table: func(w *table) {
					w.row(fmt.Sprintf("ticket key epoch %d issues", answer.GetEpoch()))
				}})
				return notInSync(answer.GetUnreached())
			})
		}),
	}
	cmd.Flags().BoolVar(&request.Emergency, "emergency", false, "accept no earlier ticket any more")
	cmd.Flags().StringVarP(&request.Message, "message", "m", "", "why, for the audit")
	return cmd
}

// notInSync is the failure that names the nodes which have not said that they have the keys.
func notInSync(unreached []*lbdv1.UnreachedNode) error {
	var silent []string
	for _, u := range unreached {
		silent = append(silent, fmt.Sprintf("%s (%s)", oneLine(u.GetNode()), oneLine(u.GetReason())))
	}
	if len(silent) == 0 {
		return nil
	}
	return fail(exitWaitTimedOut, "the keys are stored, and not on %s: a node takes them before it answers any control call; see `lbctl ticket-keys status`", strings.Join(silent, ", "))
}

func (c *cli) ticketKeysImport() *cobra.Command {
	var request lbdv1.ImportTicketKeysRequest
	var accept time.Duration
	cmd := &cobra.Command{
		Use:   "import FILE…",
		Short: "Accept the tickets of another tier, by its keys",
		Long: `Accept the tickets that another tier has issued, so that its clients resume here: for a migration. None is issued under its keys.

FILE is an ssl_session_ticket_key of nginx (48 or 80 bytes), or tls-ticket-keys of HAProxy (a line of base64 for each). The keys are stored sealed,
and never shown again. Called again with the same keys it moves their end.`,
		Example: "  lbctl ticket-keys import /etc/nginx/ticket.key --accept-for 48h",
		Args:    cobra.MinimumNArgs(1),
		RunE: c.does(func(ctx context.Context, args []string) (err error) {
			if request.Keys, err = readTicketKeys(args); err != nil {
				return err
			}
			request.RequestId = newRequestID()
			if accept != 0 {
				request.AcceptFor = durationpb.New(accept)
			}
			return c.call(func(cl *client) error {
				answer, err := retried(ctx, cl, startGrace, func() (*lbdv1.ImportTicketKeysResponse, error) {
					return lbdv1.NewSessionTicketServiceClient(cl.conn).ImportTicketKeys(ctx, &request)
				})
				if err != nil {
					return err
				}
				c.printImported(answer)
				return notInSync(answer.GetUnreached())
			})
		}),
	}
	cmd.Flags().DurationVar(&accept, "accept-for", 0, "how long their tickets are accepted (default: ticket_keys.accept_for of the cluster settings)")
	cmd.Flags().StringVarP(&request.Message, "message", "m", "", "why, for the audit")
	return cmd
}

func (c *cli) printImported(answer *lbdv1.ImportTicketKeysResponse) {
	c.print(result{value: document.OfAnswer(answer), table: func(w *table) {
		w.row("NAME", "STATE", "UNTIL")
		for _, k := range answer.GetKeys() {
			w.row(k.GetName(), word(k.GetState()), moment(k.GetExpireTime()))
		}
	}})
}

// readTicketKeys reads the keys of files in any of the forms in which others write them.
func readTicketKeys(paths []string) (keys [][]byte, err error) {
	for _, path := range paths {
		text, err := document.ReadFile(path, ticketKeyFileBytesMax)
		if err != nil {
			return nil, fail(exitUsage, "%w", err)
		}
		found := ticketKeysIn(text)
		if found == nil {
			return nil, fail(exitUsage, "%s has no ticket keys: want a file of 48 or 80 bytes (nginx), or a line of base64 for each (HAProxy)", path)
		}
		keys = append(keys, found...)
	}
	return keys, nil
}

// ticketKeysIn are the keys in a file; nil: it is none of them.
func ticketKeysIn(text []byte) (keys [][]byte) {
	fits := func(key []byte) bool { return len(key) == 48 || len(key) == 80 }
	if fits(text) {
		return [][]byte{text}
	}
	for line := range bytes.Lines(text) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			continue
		}
		key, err := base64.StdEncoding.DecodeString(string(line))
		if err != nil || !fits(key) {
			return nil
		}
		keys = append(keys, key)
	}
	return keys
}
