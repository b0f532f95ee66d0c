package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"lbd/cluster/state"
	"lbd/cmd/lbctl/document"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

func (c *cli) validateCommand() *cobra.Command {
	var paths []string
	var errorFormat string
	cmd := &cobra.Command{
		Use:   "validate -f PATH",
		Short: "Check documents without a node",
		Long: `Check documents without a node, and report everything that is wrong at once, as file:line:column.

References to what the documents do not define are warnings: the cluster may have it. Warnings alone exit 0.`,
		Example: `  lbctl validate -f site/
  lbctl validate -f site.yaml --error-format json`,
		Args: cobra.NoArgs,
		RunE: c.does(func(context.Context, []string) error {
			if errorFormat != "text" && errorFormat != "json" {
				return fail(exitUsage, "unknown error format %q (text, json)", errorFormat)
			}
			source, err := c.read(paths)
			if err != nil {
				return err
			}
			problems := source.Report(state.Validate(nil, change(source.Document)))
			if errorFormat == "json" {
				c.stdout.Write(problemsValue(problems).IndentedJSON())
				if document.Invalid(problems) {
					return &failure{code: exitInvalid}
				}
				return nil
			}
			if err := c.tell(problems); err != nil {
				return err
			}
			c.say("valid: %s", countOf(len(state.Resources(source.Document)), "resource"))
			return nil
		}),
	}
	filesFlag(cmd, &paths)
	cmd.Flags().StringVar(&errorFormat, "error-format", "text", "text (on stderr) or json (on stdout)")
	return cmd
}

// filesFlag is -f of the verbs that read documents.
func filesFlag(cmd *cobra.Command, paths *[]string) {
	cmd.Flags().StringArrayVarP(paths, "file", "f", nil, "a document, a folder of them, or - for stdin (repeatable)")
	if err := cmd.MarkFlagRequired("file"); err != nil {
		panic(err)
	}
}

// read reads documents and the files and variables that they name.
func (c *cli) read(paths []string) (*document.Source, error) {
	files, err := document.ReadFiles(paths, c.stdin)
	if err != nil {
		return nil, &failure{exitUsage, err}
	}
	source := document.Parse(files)
	source.ReadContents(document.ReadFile, c.getenv)
	return source, nil
}

// change is what the rules judge: the document as a change of the cluster.
func change(doc *lbdv1.Document) *raftv1.ChangeCommand {
	ch := &raftv1.ChangeCommand{Owner: doc.GetOwner()}
	for _, r := range state.Resources(doc) {
		ch.Upserts = append(ch.Upserts, &raftv1.StoredResource{Resource: r})
	}
	return ch
}

func problemsValue(problems []document.Problem) *document.Value {
	var all []*document.Value
	for _, p := range problems {
		severity := "ERROR"
		if p.Warning {
			severity = "WARNING"
		}
		all = append(all, document.MapOf().
			With("file", document.Text(p.Position.File)).
			With("line", document.Number(p.Position.Line)).
			With("column", document.Number(p.Position.Column)).
			With("severity", document.Text(severity)).
			With("field", document.Text(p.Field)).
			With("message", document.Text(p.Message)))
	}
	return document.ListOf(all)
}

// countOf is a number of things, in words.
func countOf(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
