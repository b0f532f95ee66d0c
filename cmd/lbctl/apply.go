package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
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
	var wait, rollback = "", false
	var ifRevision int64
	header := &lbdv1.ApplyHeader{}
	var cmd *cobra.Command
	cmd = &cobra.Command{
		Use:   "apply -f PATH",
		Short: "Make documents so, as one revision",
		Long: `Make documents so, as one revision, or change nothing. What is so already makes no revision.

A retry is safe: while no node answers or there is no leader the same request is repeated until --timeout.
With --wait it returns when every node that is not drained serves the revision; a node that refuses it ends the wait at once (exit
1), and one that is silent until --timeout is exit 8: the change is stored all the same. With --wait=healthy each pool of the
documents has a backend that takes requests on every node, too; with --wait=reachable nodes that do not answer are left out, and
named. With --rollback-on-failure a revision that a node refuses is undone by another
one (exit 1, both are told); one that was not seen to be served in time never is.
With --prune what an earlier apply of the owner made and these documents do not name is deleted; it is shown first.
With --if-revision N the owner's newest revision must be N, or nothing changes (exit 6).`,
		Example: `  lbctl apply -f site/ --wait -m "shop: second backend"
  lbctl apply -f site/ --prune --dry-run`,
		Args: documentsOnly,
		RunE: c.does(func(ctx context.Context, _ []string) error {
			if err := checkWait(&wait, header.ValidateOnly); err != nil {
				return err
			}
			if rollback && wait == "" {
				return fail(exitUsage, "--rollback-on-failure needs --wait: else nobody sees a failure")
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
			return c.call(func(cl *client) error { return c.apply(ctx, cl, source, header, wait, rollback) })
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
	flags.BoolVar(&rollback, "rollback-on-failure", false, "with --wait: undo the revision where a node refuses it")
	return c.reportsProblems(cmd)
}

// apply sends a document and, if asked, follows its revision.
func (c *cli) apply(ctx context.Context, cl *client, source *document.Source, header *lbdv1.ApplyHeader, wait string, rollback bool) error {
	resources := state.Resources(source.Document)
	lost := c.settingsToLose(ctx, cl, source, header)
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
	if err := c.tell(source.Report(append(answer.GetWarnings(), lost...))); err != nil {
		return err
	}
	c.printApplied(answer, header.GetValidateOnly())
	if wait == "" {
		return nil
	}
	err = c.waitServed(ctx, cl, answer.GetRevision(), wait == forReachable)
	var f *failure
	switch {
	case err == nil && wait == forHealthy:
		return c.waitHealthy(ctx, cl, answer.GetRevision(), poolsNamed(resources))
	case rollback && errors.As(err, &f) && f.code == exitNo:
		return c.undo(ctx, cl, header.GetOwner(), answer, f, wait)
	}
	return err
}

// poolsNamed are the pools of a document, and those of others that its routes forward to.
func poolsNamed(resources []*lbdv1.Resource) []string {
	var names []string
	for _, r := range resources {
		if p := r.GetPool(); p != nil {
			names = append(names, p.GetName())
		}
		for _, p := range r.GetRoute().GetForward().GetPools() {
			names = append(names, p.GetPool())
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// undo takes a revision back that a node refuses, alone, and sees to it that this is served. The failure stays one.
func (c *cli) undo(ctx context.Context, cl *client, owner string, applied *lbdv1.ApplyResponse, why *failure, wait string) error {
	revision := applied.GetRevision()
	if len(applied.GetChanges()) == 0 {
		return fail(exitNo, "%w; revision %d was there before this apply, and is not rolled back", why, revision)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.timeout) // what is left of the wait may be nothing
	defer cancel()
	request := &lbdv1.RollbackRequest{Owner: owner, Only: &revision, RequestId: newRequestID(), Message: fmt.Sprintf("undoes revision %d, which a node refused", revision)}
	answer, err := retried(ctx, cl, startGrace, func() (*lbdv1.RollbackResponse, error) { return cl.config.Rollback(ctx, request) })
	if err != nil {
		return fail(exitNo, "%w; revision %d is not rolled back: %s", why, revision, status.Convert(err).Message())
	}
	if err := c.waitServed(ctx, cl, answer.GetRevision(), wait == forReachable); err != nil {
		return fail(exitNo, "%w; revision %d undoes revision %d, but %w", why, answer.GetRevision(), revision, err)
	}
	return fail(exitNo, "%w; revision %d undoes revision %d", why, answer.GetRevision(), revision)
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

// settingsToLose asks, of documents with cluster_settings, which of them go back to their defaults. What is wrong with the documents
// the apply itself tells.
func (c *cli) settingsToLose(ctx context.Context, cl *client, source *document.Source, header *lbdv1.ApplyHeader) []*lbdv1.Violation {
	if source.Document.GetClusterSettings() == nil {
		return nil
	}
	answer, err := retried(ctx, cl, startGrace, func() (*lbdv1.DiffResponse, error) {
		return diff(ctx, cl, header, []*lbdv1.Resource{{Spec: &lbdv1.Resource_ClusterSettings{ClusterSettings: source.Document.GetClusterSettings()}}})
	})
	if err != nil {
		return nil
	}
	return settingsLost(source.Document, answer.GetChanges())
}

// allowedBy is the flag that allows what a node refuses for a reason.
var allowedBy = map[string]string{string(state.OwnedByOther): "--take-over", "MASS_DELETE": "--allow-mass-delete", "OLDER_CERTIFICATE": "--allow-older-certificates", string(state.WouldDelete): "--replace"}

// refused puts a node's complaints about a document in their places.
func (c *cli) refused(source *document.Source, err error) error {
	if vs := violations(err); len(vs) > 0 {
		if err := c.misused(vs, "message"); err != nil {
			return err
		}
		return c.tellAs(codeOf(status.Code(err)), source.Report(vs))
	}
	c.tellConflicts(source, err)
	return withFlag(err)
}

// tellConflicts puts resources that a conflict is about in their places, for who reads reports: a person is told by the error.
func (c *cli) tellConflicts(source *document.Source, err error) {
	if c.problems.format == problemsText || c.problems.format == "" {
		return
	}
	var found []*lbdv1.Violation
	for _, d := range status.Convert(err).Details() {
		failure, ok := d.(*errdetails.PreconditionFailure)
		if !ok {
			continue
		}
		for _, v := range failure.GetViolations() {
			if key, err := state.ParseKey(v.GetSubject()); err == nil {
				found = append(found, &lbdv1.Violation{Severity: lbdv1.Severity_SEVERITY_ERROR, Field: key.Field(), Description: v.GetDescription()})
			}
		}
	}
	_ = c.tell(source.Report(found)) // the failure is the conflict
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
