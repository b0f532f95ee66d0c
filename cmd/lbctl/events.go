package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cmd/lbctl/document"
	lbdv1 "lbd/proto/lbd/v1"
)

func (c *cli) eventsCommand() *cobra.Command {
	request := &lbdv1.WatchEventsRequest{}
	var since time.Duration
	var node string
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Show what has happened on the nodes",
		Long: `Show what has happened on every node, or on one (--node), oldest first: backends that went down or came back, ejections, overrides,
revisions served or refused, certificates that end soon, nodes that joined, left, were drained or lost contact, another leader. A node
remembers the last 10000, until it is restarted. One that does not answer is an event of its own.

With --follow new ones are shown as they happen, until it is interrupted (exit 130) or, if --timeout is given, that time is over.`,
		Example: `  lbctl events --since 1h
  lbctl events --follow -o jsonl`,
		Args: cobra.NoArgs,
	}
	verb := func(ctx context.Context, _ []string) error {
		switch {
		case since < 0:
			return fail(exitUsage, "--since takes a length of time such as 1h, not %s", since)
		case request.Follow && c.format.name != "table" && c.format.name != "wide" && c.format.name != "jsonl" && c.format.name != "name":
			return fail(exitUsage, "--follow writes a line for each event: -o table, jsonl or name")
		}
		if since > 0 {
			request.Since = timestamppb.New(time.Now().Add(-since))
		}
		request.Node = c.meant(node)
		return c.call(func(cl *client) error { return c.events(ctx, cl, request) })
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if request.Follow {
			return c.follows(verb)(cmd, args)
		}
		return c.does(verb)(cmd, args)
	}
	cmd.Flags().DurationVar(&since, "since", 0, "only events of this last time, as 1h (default: all)")
	cmd.Flags().BoolVar(&request.Follow, "follow", false, "go on with new events")
	nodesFlag(cmd, &node)
	return cmd
}

// events reads what is remembered and prints it, or prints each as it comes.
func (c *cli) events(ctx context.Context, cl *client, request *lbdv1.WatchEventsRequest) error {
	stream, err := cl.traffic.WatchEvents(ctx, request)
	if err != nil {
		return err
	}
	var past []*lbdv1.WatchEventsResponse
	for {
		event, err := stream.Recv()
		switch {
		case err == nil && request.GetFollow():
			c.printEvent(event)
		case err == nil:
			past = append(past, event)
		case request.GetFollow() && status.Code(err) == codes.DeadlineExceeded: // the context may not have noticed yet
			return nil
		case errors.Is(ctx.Err(), context.Canceled):
			return fail(exitInterrupted, "interrupted")
		case errors.Is(err, io.EOF) && request.GetFollow():
			return status.Error(codes.Unavailable, "the node ended the events: start it again")
		case errors.Is(err, io.EOF):
			c.printEvents(past)
			return nil
		default:
			return c.complained(err)
		}
	}
}

func (c *cli) printEvents(events []*lbdv1.WatchEventsResponse) {
	values := []*document.Value{}
	var names []string
	for _, e := range events {
		values = append(values, document.OfAnswer(e))
		names = append(names, e.GetResource())
	}
	c.print(result{value: document.ListOf(values), names: names, table: func(w *table) {
		several := several(events)
		w.byNode(several, "NODE", []string{"TIME", "EVENT", "RESOURCE", "MESSAGE"})
		for _, e := range events {
			w.byNode(several, e.GetNode(), []string{moment(e.GetTime()), e.GetType(), e.GetResource(), e.GetMessage()})
		}
	}})
}

// printEvent writes one line, as the next may be hours away.
func (c *cli) printEvent(e *lbdv1.WatchEventsResponse) {
	switch c.format.name {
	case "jsonl":
		fmt.Fprintf(c.stdout, "%s\n", document.OfAnswer(e).JSON())
	case "name":
		fmt.Fprintln(c.stdout, e.GetResource())
	default:
		fmt.Fprintf(c.stdout, "%s  %s  %-19s  %s  %s\n", moment(e.GetTime()), oneLine(e.GetNode()), oneLine(e.GetType()), oneLine(e.GetResource()), oneLine(e.GetMessage()))
	}
}
