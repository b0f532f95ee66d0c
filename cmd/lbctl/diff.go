package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"lbd/cluster/state"
	"lbd/cmd/lbctl/document"
	lbdv1 "lbd/proto/lbd/v1"
)

func (c *cli) diffCommand() *cobra.Command {
	var paths []string
	header := &lbdv1.ApplyHeader{}
	cmd := &cobra.Command{
		Use:   "diff -f PATH",
		Short: "Show what an apply would change",
		Long: `Show what an apply would change, field by field, and change nothing: + is new, - goes, ~ becomes something else.

Exit 0 if nothing differs, 1 if something does. -o markdown is for the comment on a merge request.`,
		Example: `  lbctl diff -f site/ --prune
  lbctl diff -f site/ -o markdown >comment.md`,
		Args:        documentsOnly,
		Annotations: map[string]string{moreFormats: "markdown"},
		RunE: c.does(func(ctx context.Context, _ []string) error {
			source, err := c.read(paths)
			if err != nil {
				return err
			}
			if document.Invalid(source.Report(nil)) {
				return c.tell(source.Report(state.ValidateRest(change(source.Document))))
			}
			header.Owner = source.Document.GetOwner()
			return c.call(func(cl *client) error { return c.diff(ctx, cl, source, header) })
		}),
	}
	filesFlag(cmd, &paths)
	flags := cmd.Flags()
	flags.BoolVar(&header.Prune, "prune", false, "as in an apply with --prune")
	flags.BoolVar(&header.TakeOver, "take-over", false, "as in an apply with --take-over")
	return c.reportsProblems(cmd)
}

func (c *cli) diff(ctx context.Context, cl *client, source *document.Source, header *lbdv1.ApplyHeader) error {
	answer, err := retried(ctx, cl, startGrace, func() (*lbdv1.DiffResponse, error) {
		return diff(ctx, cl, header, state.Resources(source.Document))
	})
	if err != nil {
		return c.refused(source, err)
	}
	warnings := source.Report(append(answer.GetWarnings(), settingsLost(source.Document, answer.GetChanges())...))
	if c.format.name == "markdown" {
		fmt.Fprint(c.stdout, markdown(header.GetOwner(), answer, warnings))
	} else {
		if err := c.tell(warnings); err != nil {
			return err
		}
		c.printDiff(answer)
	}
	if len(answer.GetChanges()) > 0 {
		return &failure{code: exitNo}
	}
	return nil
}

// diff makes one attempt of a diff.
func diff(ctx context.Context, cl *client, header *lbdv1.ApplyHeader, resources []*lbdv1.Resource) (*lbdv1.DiffResponse, error) {
	stream, err := cl.config.Diff(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range parts(header, &lbdv1.ApplyResources{Resources: resources}) {
		if stream.Send(&lbdv1.DiffRequest{Part: p}) != nil {
			break // the node has answered already; the answer says why
		}
	}
	return stream.CloseAndRecv()
}

func (c *cli) printDiff(answer *lbdv1.DiffResponse) {
	c.print(result{
		value: document.OfAnswer(answer),
		names: changeNames(answer.GetChanges()),
		table: func(*table) {
			c.writeChanges(answer.GetChanges())
			for _, o := range answer.GetOverrides() {
				fmt.Fprintf(c.stdout, "  %s\n", overrideText(o))
			}
		},
	})
	if len(answer.GetChanges()) == 0 {
		c.say("no differences")
	}
}

// overrideText is an override in words.
func overrideText(o *lbdv1.Override) string {
	what := word(o.GetState())
	if _, ok := o.GetWhat().(*lbdv1.Override_Weight); ok {
		what = fmt.Sprintf("weight %d", o.GetWeight())
	}
	where := ""
	if o.GetNode() != "" {
		where = " on node " + o.GetNode() + " alone"
	}
	text := fmt.Sprintf("override of %s/%s%s: %s, by %s", o.GetPool(), o.GetAddress(), where, what, o.GetAuthor())
	if o.GetReason() != "" {
		text += ": " + o.GetReason()
	}
	if o.GetExpireTime() != nil {
		text += ", until " + moment(o.GetExpireTime())
	}
	return oneLine(text)
}

// markdownRowsMax bounds the table: forges refuse comments beyond about a megabyte.
const markdownRowsMax = 500

// markdown is a diff as a comment on a merge request.
func markdown(owner string, answer *lbdv1.DiffResponse, warnings []document.Problem) string {
	var b strings.Builder
	if len(answer.GetChanges()) == 0 {
		fmt.Fprintf(&b, "**lbctl diff** of owner `%s`: no changes.\n", owner)
	} else {
		fmt.Fprintf(&b, "**lbctl diff** of owner `%s`, against its revision %d: %s.\n\n", owner, answer.GetOwnerRevision(), tally(answer.GetChanges()))
		b.WriteString("| | Resource | Field | Before | After |\n|---|---|---|---|---|\n")
		rows := markdownRows(answer.GetChanges())
		b.WriteString(strings.Join(rows[:min(len(rows), markdownRowsMax)], ""))
		if more := len(rows) - markdownRowsMax; more > 0 {
			fmt.Fprintf(&b, "\n… and %s more.\n", countOf(more, "row"))
		}
	}
	markdownList(&b, "Warnings", warnings, func(p document.Problem) string { return p.String() })
	markdownList(&b, "Overrides that stay in force", answer.GetOverrides(), overrideText)
	return b.String()
}

func markdownRows(changes []*lbdv1.Change) []string {
	var rows []string
	row := func(ch *lbdv1.Change, f *lbdv1.FieldChange) {
		resource := code(changeName(ch))
		if from := ch.GetTakenFrom(); from != "" {
			resource += ", taken over from " + code(from)
		}
		rows = append(rows, fmt.Sprintf("| %s | %s | %s | %s | %s |\n", sign(ch.GetAction()), resource, code(f.GetPath()), code(f.GetBefore()), code(f.GetAfter())))
	}
	for _, ch := range changes {
		if len(ch.GetFields()) == 0 {
			row(ch, nil)
		}
		for _, f := range ch.GetFields() {
			row(ch, f)
		}
	}
	return rows
}

func markdownList[T any](b *strings.Builder, title string, all []T, text func(T) string) {
	if len(all) == 0 {
		return
	}
	fmt.Fprintf(b, "\n%s:\n\n", title)
	for _, e := range all[:min(len(all), markdownRowsMax)] {
		fmt.Fprintf(b, "- %s\n", strings.ReplaceAll(oneLine(text(e)), "<", "&lt;"))
	}
}

// code is text that a cell of a table shows as it is, whatever is in it.
func code(s string) string {
	if s == "" {
		return ""
	}
	s = oneLine(s)
	fence := "`"
	for strings.Contains(s, fence) {
		fence += "`"
	}
	if len(fence) > 1 {
		s = " " + s + " "
	}
	return fence + strings.ReplaceAll(s, "|", `\|`) + fence
}
