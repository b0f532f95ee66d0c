package main

import (
	"context"
	"crypto/rand"
	"fmt"

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
	var ifRevision int64
	header := &lbdv1.ApplyHeader{}
	var cmd *cobra.Command
	cmd = &cobra.Command{
		Use:   "apply -f PATH",
		Short: "Make documents so, as one revision",
		Long: `Make documents so, as one revision, or change nothing. What is so already makes no revision.

A retry is safe: while no node answers or there is no leader the same request is repeated until --timeout.
With --wait it returns when every node serves the revision; a node that refuses it ends the wait at once (exit 1), and
one that is silent until --timeout is exit 8: the change is stored all the same.
With --prune what an earlier apply of the owner made and these documents do not name is deleted; it is shown first.
With --if-revision N the owner's newest revision must be N, or nothing changes (exit 6).`,
		Example: `  lbctl apply -f site/ --wait -m "shop: second backend"
  lbctl apply -f site/ --prune --dry-run`,
		Args: documentsOnly,
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
				return c.tell(source.Report(state.ValidateRest(change(source.Document))))
			}
			header.Owner = source.Document.GetOwner()
			header.RequestId = newRequestID()
			if cmd.Flags().Changed("if-revision") {
				header.IfRevision = &ifRevision
			}
			return c.call(func(cl *client) error { return c.apply(ctx, cl, source, header, wait) })
		}),
	}
	filesFlag(cmd, &paths)
	flags := cmd.Flags()
	flags.BoolVar(&header.ValidateOnly, "dry-run", false, "report what would change, change nothing")
	flags.BoolVar(&header.TakeOver, "take-over", false, "take resources over from other owners")
	flags.BoolVar(&header.Prune, "prune", false, "delete what an earlier apply of the owner made and the documents do not name")
	flags.BoolVar(&header.AllowMassDelete, "allow-mass-delete", false, "let --prune delete more than half of what the owner has")
	flags.Int64Var(&ifRevision, "if-revision", 0, "only if this is the owner's newest revision, 0 for none yet")
	flags.StringVarP(&header.Message, "message", "m", "", "kept with the revision")
	waitFlag(cmd, &wait)
	return cmd
}

// apply sends a document and, if asked, follows its revision.
func (c *cli) apply(ctx context.Context, cl *client, source *document.Source, header *lbdv1.ApplyHeader, wait string) error {
	resources := state.Resources(source.Document)
	if header.GetPrune() && !header.GetValidateOnly() {
		if err := c.showPruned(ctx, cl, source, header); err != nil {
			return err
		}
	}
	answer, err := retried(ctx, cl, startGrace, func() (*lbdv1.ApplyResponse, error) {
		return send(ctx, cl, header, &lbdv1.ApplyResources{Resources: resources})
	})
	if err != nil {
		return c.refused(source, err)
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

// showPruned tells what will be deleted, and makes the apply depend on nothing having changed since.
func (c *cli) showPruned(ctx context.Context, cl *client, source *document.Source, header *lbdv1.ApplyHeader) error {
	answer, err := retried(ctx, cl, startGrace, func() (*lbdv1.DiffResponse, error) {
		return diff(ctx, cl, header, state.Resources(source.Document))
	})
	if err != nil {
		return c.refused(source, err)
	}
	for _, ch := range answer.GetChanges() {
		if ch.GetAction() == actionDelete {
			c.say("deletes %s", changeName(ch))
		}
	}
	if header.IfRevision == nil {
		header.IfRevision = &answer.OwnerRevision
	}
	return nil
}

// allowedBy is the flag that allows what a node refuses for a reason.
var allowedBy = map[string]string{string(state.OwnedByOther): "--take-over", "MASS_DELETE": "--allow-mass-delete", "OLDER_CERTIFICATE": "--allow-older-certificates"}

// refused puts a node's complaints about a document in their places.
func (c *cli) refused(source *document.Source, err error) error {
	if vs := violations(err); len(vs) > 0 {
		if err := c.misused(vs, "message"); err != nil {
			return err
		}
		return c.tell(source.Report(vs))
	}
	return withFlag(err)
}

// withFlag adds the flag that would allow what a node refuses.
func withFlag(err error) error {
	if flag := allowedBy[reason(err)]; flag != "" {
		return fail(codeOf(status.Code(err)), "%s (%s)", status.Convert(err).Message(), flag)
	}
	return err
}

// send makes one attempt of an apply.
func send(ctx context.Context, cl *client, header *lbdv1.ApplyHeader, all *lbdv1.ApplyResources) (*lbdv1.ApplyResponse, error) {
	stream, err := cl.config.Apply(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range parts(header, all) {
		if stream.Send(p) != nil {
			break // the node has answered already; the answer says why
		}
	}
	return stream.CloseAndRecv()
}

// parts are the messages of a call of Apply.
func parts(header *lbdv1.ApplyHeader, all *lbdv1.ApplyResources) []*lbdv1.ApplyRequest {
	parts := []*lbdv1.ApplyRequest{{Part: &lbdv1.ApplyRequest_Header{Header: header}}}
	for _, p := range split(all.GetResources()) {
		parts = append(parts, &lbdv1.ApplyRequest{Part: &lbdv1.ApplyRequest_Resources{Resources: p}})
	}
	if len(all.GetDeletes()) > 0 {
		p := &lbdv1.ApplyResources{Deletes: all.GetDeletes()}
		parts = append(parts, &lbdv1.ApplyRequest{Part: &lbdv1.ApplyRequest_Resources{Resources: p}})
	}
	return parts
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

// printApplied writes what a change of the cluster did, or would do.
func (c *cli) printApplied(answer *lbdv1.ApplyResponse, dryRun bool) {
	names := changeNames(answer.GetChanges())
	c.print(result{
		value: document.OfAnswer(answer),
		names: names,
		table: func(*table) {
			width := 0
			for _, n := range names {
				width = max(width, len(n))
			}
			for i, ch := range answer.GetChanges() {
				what := changed(ch.GetAction(), dryRun)
				if from := takenOver(ch); from != "" {
					what += ", " + from
				}
				fmt.Fprintf(c.stdout, "%-*s  %s\n", width, names[i], what)
				c.writeFields(ch)
			}
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

// newRequestID makes the id under which a node remembers the answer to a change.
func newRequestID() string { return rand.Text() }
