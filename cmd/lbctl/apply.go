package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"lbd/cluster/state"
	"lbd/cmd/lbctl/document"
	lbdv1 "lbd/proto/lbd/v1"
)

// partBytesMax is how much of a change goes into one message; a single resource may be larger.
const partBytesMax = 256 << 10

func (c *cli) applyCommand() *cobra.Command {
	var paths []string
	var wait string
	header := &lbdv1.ApplyHeader{}
	cmd := &cobra.Command{
		Use:   "apply -f PATH",
		Short: "Make documents so, as one revision",
		Long: `Make documents so, as one revision, or change nothing. What is so already makes no revision.

A retry is safe: while no node answers or there is no leader the same request is repeated until --timeout.
With --wait it returns when every node serves the revision; a node that refuses it ends the wait at once (exit 1), and
one that is silent until --timeout is exit 8: the change is stored all the same.`,
		Example: `  lbctl apply -f site/ --wait -m "shop: second backend"
  lbctl apply -f site.yaml --dry-run`,
		Args: cobra.NoArgs,
		RunE: c.does(func(ctx context.Context, _ []string) error {
			if err := checkWait(wait, header.ValidateOnly); err != nil {
				return err
			}
			source, err := c.read(paths)
			if err != nil {
				return err
			}
			// What cannot be read is not sent: the rules are asked here, so that all is told at once all the same.
			if document.Invalid(source.Report(nil)) {
				return c.tell(source.Report(state.Validate(nil, change(source.Document))))
			}
			header.Owner = source.Document.GetOwner()
			header.RequestId = newRequestID()
			return c.call(func(cl *client) error { return c.apply(ctx, cl, source, header, wait) })
		}),
	}
	filesFlag(cmd, &paths)
	flags := cmd.Flags()
	flags.BoolVar(&header.ValidateOnly, "dry-run", false, "report what would change, change nothing")
	flags.BoolVar(&header.TakeOver, "take-over", false, "take resources over from other owners")
	flags.StringVarP(&header.Message, "message", "m", "", "kept with the revision")
	waitFlag(cmd, &wait)
	return cmd
}

// apply sends a document and, if asked, follows its revision.
func (c *cli) apply(ctx context.Context, cl *client, source *document.Source, header *lbdv1.ApplyHeader, wait string) error {
	resources := state.Resources(source.Document)
	answer, err := retried(ctx, cl, startGrace, func() (*lbdv1.ApplyResponse, error) {
		return send(ctx, cl, header, resources)
	})
	if vs := violations(err); len(vs) > 0 {
		return c.tell(source.Report(vs))
	}
	if reason(err) == string(state.OwnedByOther) {
		return fail(codeOf(status.Code(err)), "%s (--take-over)", status.Convert(err).Message())
	}
	if err != nil {
		return err
	}
	if err := c.tell(source.Report(answer.GetWarnings())); err != nil {
		return err
	}
	c.printApplied(answer, header.GetValidateOnly())
	if wait == "" {
		return nil
	}
	return c.wait(ctx, cl, answer.GetRevision())
}

// send makes one attempt of an apply.
func send(ctx context.Context, cl *client, header *lbdv1.ApplyHeader, resources []*lbdv1.Resource) (*lbdv1.ApplyResponse, error) {
	stream, err := cl.config.Apply(ctx)
	if err != nil {
		return nil, err
	}
	parts := []*lbdv1.ApplyRequest{{Part: &lbdv1.ApplyRequest_Header{Header: header}}}
	for _, p := range split(resources) {
		parts = append(parts, &lbdv1.ApplyRequest{Part: &lbdv1.ApplyRequest_Resources{Resources: p}})
	}
	for _, p := range parts {
		if stream.Send(p) != nil {
			break // the node has answered already; the answer says why
		}
	}
	return stream.CloseAndRecv()
}

// split cuts resources into messages of a bearable size.
func split(resources []*lbdv1.Resource) []*lbdv1.ApplyResources {
	var parts []*lbdv1.ApplyResources
	size := partBytesMax
	for _, r := range resources {
		n := proto.Size(r)
		if size+n > partBytesMax {
			parts, size = append(parts, &lbdv1.ApplyResources{}), 0
		}
		last := parts[len(parts)-1]
		last.Resources = append(last.Resources, r)
		size += n
	}
	return parts
}

func (c *cli) printApplied(answer *lbdv1.ApplyResponse, dryRun bool) {
	var names []string
	for _, ch := range answer.GetChanges() {
		names = append(names, changeName(ch))
	}
	c.print(result{
		value: document.OfAnswer(answer),
		names: names,
		table: func(w *table) {
			for i, ch := range answer.GetChanges() {
				w.row(names[i], changed(ch.GetAction(), dryRun))
			}
			w.flush()
			switch {
			case len(names) == 0:
				fmt.Fprintf(c.stdout, "revision %d: nothing to change\n", answer.GetRevision())
			case dryRun:
				fmt.Fprintf(c.stdout, "dry run: %s, nothing was changed\n", countOf(len(names), "change"))
			default:
				fmt.Fprintf(c.stdout, "revision %d: %s\n", answer.GetRevision(), countOf(len(names), "change"))
			}
		},
	})
}

// changeName is "pools/shop".
func changeName(ch *lbdv1.Change) string {
	return state.Key{Kind: state.Kind(ch.GetKind()), Name: ch.GetName()}.String()
}

// changed says what a change did, or would do: "created", "would be created".
func changed(action lbdv1.ChangeAction, dryRun bool) string {
	word := strings.ToLower(document.Word(action.Descriptor(), action.Number())) + "d"
	if dryRun {
		return "would be " + word
	}
	return word
}

// newRequestID makes the id under which a node remembers the answer to a change.
func newRequestID() string { return rand.Text() }
