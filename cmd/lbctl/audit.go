package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cmd/lbctl/document"
	lbdv1 "lbd/proto/lbd/v1"
)

func (c *cli) auditCommand() *cobra.Command {
	request := &lbdv1.ListAuditRequest{}
	var since, until string
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Show who changed what, and what was refused to whom",
		Long: `Show who changed what, from where, and which revision came of it, oldest first; between that, what each node has refused
to whom: each keeps its own refusals. What is missing because a node does not answer is an entry of its own. Refusals of one minute for the same cause are one entry.

With --node it is what that node has noted by itself, and nothing of what the cluster has accepted.`,
		Example: `  lbctl audit --since 2h
  lbctl audit --since 2026-01-31 --until 2026-02-01
  lbctl audit --refused -o jsonl
  lbctl audit --node edge-2`,
		Args: cobra.NoArgs,
		RunE: c.does(func(ctx context.Context, _ []string) (err error) {
			now := time.Now()
			if request.Since, err = parseSince("--since", since, now); err != nil {
				return err
			}
			if request.Until, err = parseSince("--until", until, now); err != nil {
				return err
			}
			if request.Since != nil && request.Until != nil && !request.Since.AsTime().Before(request.Until.AsTime()) {
				return fail(exitUsage, "--since %s is not before --until %s", since, until)
			}
			if request.Node, err = oneNode(request.GetNode()); err != nil {
				return err
			}
			return c.call(func(cl *client) error { return c.audit(ctx, cl, request) })
		}),
	}
	cmd.Flags().StringVar(&since, "since", "", "only what came after: a length of time such as 2h or 7d, or a time such as 2026-01-31T12:00:00Z (default: all that is kept)")
	cmd.Flags().StringVar(&until, "until", "", "only what came before: likewise, how long ago or when (default: now)")
	cmd.Flags().BoolVar(&request.RefusedOnly, "refused", false, "only refusals")
	cmd.Flags().StringVar(&request.Node, "node", "", "only what this node has noted, by name or id (default: all nodes, and the cluster)")
	return cmd
}

// parseSince reads a moment in the past, as it is or as how long ago; empty: none.
func parseSince(flag, text string, now time.Time) (*timestamppb.Timestamp, error) {
	if text == "" {
		return nil, nil
	}
	if span, ok := parseSpan(text); ok {
		return timestamppb.New(now.Add(-span)), nil
	}
	for _, form := range []string{time.RFC3339, time.DateOnly} {
		if at, err := time.Parse(form, text); err == nil {
			return timestamppb.New(at), nil
		}
	}
	return nil, fail(exitUsage, "%s takes a length of time such as 2h or 7d, or a time such as 2026-01-31T12:00:00Z, not %q", flag, text)
}

func (c *cli) audit(ctx context.Context, cl *client, request *lbdv1.ListAuditRequest) error {
	stream, err := cl.auth.ListAudit(ctx, request)
	if err != nil {
		return err
	}
	var entries []*lbdv1.ListAuditResponse
	for {
		entry, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			c.printAudit(entries)
			return nil
		case err != nil:
			return err
		case c.format.name == "jsonl":
			fmt.Fprintf(c.stdout, "%s\n", document.OfAnswer(entry).JSON())
		default:
			entries = append(entries, entry)
		}
	}
}

func (c *cli) printAudit(entries []*lbdv1.ListAuditResponse) {
	if c.format.name == "jsonl" {
		return // they have been printed as they came
	}
	values := []*document.Value{}
	var names []string
	for _, e := range entries {
		values = append(values, document.OfAnswer(e))
		names = append(names, e.GetMethod())
	}
	c.print(result{value: document.ListOf(values), names: names, table: func(w *table) {
		w.wideRow([]string{"TIME", "RESULT", "AUTHOR", "SOURCE", "METHOD", "REVISION", "MESSAGE"}, "NODE")
		for _, e := range entries {
			revision, message := "", e.GetMessage()
			if e.GetRevision() > 0 {
				revision = fmt.Sprint(e.GetRevision())
			}
			if e.GetCount() > 1 {
				message = fmt.Sprintf("%d times: %s", e.GetCount(), message)
			}
			w.wideRow([]string{moment(e.GetTime()), e.GetResult(), e.GetAuthor(), e.GetSource(), e.GetMethod(), revision, message}, e.GetNode())
		}
	}})
}
