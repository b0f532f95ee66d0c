package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lbd/cluster/state"
	"lbd/cmd/lbctl/document"
	lbdv1 "lbd/proto/lbd/v1"
)

func (c *cli) watchCommand() *cobra.Command {
	request := &lbdv1.WatchRequest{}
	kinds := kindWords()
	cmd := &cobra.Command{
		Use:   "watch KIND[/NAME]",
		Short: "Follow resources as they change",
		Long: `Follow resources as they change: a line for each that there is, then one for each change, until it is interrupted (exit
130) or, if --timeout is given, that time is over (exit 0). -o jsonl has the whole resource.`,
		Example:   `  lbctl watch pools --owner web -o jsonl`,
		Args:      oneKey,
		ValidArgs: kinds,
		RunE: c.follows(func(ctx context.Context, args []string) error {
			kind, name, err := parseKey(args[0])
			switch {
			case err != nil:
				return err
			case name != "" && request.Owner != "":
				return fail(exitUsage, "--owner chooses among several: leave the name or the owner out")
			case c.format.name != "table" && c.format.name != "wide" && c.format.name != "jsonl" && c.format.name != "name":
				return fail(exitUsage, "watch writes a line for each change: -o table, jsonl or name")
			}
			request.Kind, request.Name = string(kind), name
			return c.call(func(cl *client) error { return c.watch(ctx, cl, request) })
		}),
	}
	cmd.Flags().StringVar(&request.Owner, "owner", "", "only this owner's")
	return cmd
}

func (c *cli) watch(ctx context.Context, cl *client, request *lbdv1.WatchRequest) error {
	stream, err := cl.config.Watch(ctx, request)
	if err != nil {
		return err
	}
	for {
		change, err := stream.Recv()
		switch {
		case errors.Is(ctx.Err(), context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded:
			return nil
		case errors.Is(ctx.Err(), context.Canceled):
			return fail(exitInterrupted, "interrupted")
		case errors.Is(err, io.EOF):
			return status.Error(codes.Unavailable, "the node ended the watch: start it again")
		case err != nil:
			return err
		}
		c.printWatched(state.Key{Kind: state.Kind(request.GetKind()), Name: change.GetName()}, change)
	}
}

// printWatched writes one line, as the next may be hours away.
func (c *cli) printWatched(key state.Key, change *lbdv1.WatchResponse) {
	switch c.format.name {
	case "jsonl":
		fmt.Fprintf(c.stdout, "%s\n", document.Of(change).JSON())
	case "name":
		fmt.Fprintln(c.stdout, key)
	default:
		fmt.Fprintf(c.stdout, "%s  %-7s  %s  %s\n", sign(change.GetAction()), changed(change.GetAction(), false), key, watchedOf(change))
	}
}

// watchedOf says where a change comes from.
func watchedOf(change *lbdv1.WatchResponse) string {
	text := fmt.Sprintf("revision %d", change.GetRevision())
	if r := change.GetResource(); state.Spec(r) != nil {
		text = fmt.Sprintf("revision %d", r.GetRevision())
		if r.GetOwner() != "" {
			text += " of " + r.GetOwner()
		}
	}
	return text
}
