package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"lbd/cluster/state"
	"lbd/cmd/lbctl/document"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

func (c *cli) validateCommand() *cobra.Command {
	var paths []string
	var against string
	cmd := &cobra.Command{
		Use:   "validate -f PATH",
		Short: "Check documents, without a node or against what it has",
		Long: `Check documents without a node, and report everything that is wrong at once, as file:line:column.

References to what the documents do not define are warnings: the cluster may have it. Warnings alone exit 0. With --against
they are errors: it names a node (unix:PATH, or "cluster" for the one that other verbs use) or a file that "export" wrote.`,
		Example: `  lbctl validate -f site/ --error-format json
  lbctl export >all.yaml; lbctl validate -f site/ --against all.yaml`,
		Args: documentsOnly,
		RunE: c.does(func(ctx context.Context, _ []string) error {
			source, err := c.read(paths)
			if err != nil {
				return err
			}
			found, err := c.validate(ctx, source, against)
			if err != nil {
				return c.refused(source, err)
			}
			if err := c.tell(source.Report(found)); err != nil {
				return err
			}
			if !c.problems.collects() {
				c.say("valid: %s", countOf(len(state.Resources(source.Document)), "resource"))
			}
			return nil
		}),
	}
	filesFlag(cmd, &paths)
	cmd.Flags().StringVar(&against, "against", "", "judge them as a change of: cluster, unix:PATH, or an exported file")
	return c.reportsProblems(cmd)
}

// validate judges a document alone, or against what a node or a file has.
func (c *cli) validate(ctx context.Context, source *document.Source, against string) ([]*lbdv1.Violation, error) {
	switch endpoint := strings.HasPrefix(against, "unix:"); {
	case document.Invalid(source.Report(nil)):
		// What could not be read is not sent, and makes strangers of what refers to it.
		return state.ValidateRest(change(source.Document)), nil
	case against == "":
		return state.Validate(nil, change(source.Document)), nil
	case endpoint:
		c.endpoints = []string{against}
		fallthrough
	case against == "cluster":
		var answer *lbdv1.ValidateResponse
		err := c.call(func(cl *client) (err error) {
			answer, err = cl.config.Validate(ctx, &lbdv1.ValidateRequest{Document: source.Document})
			return err
		})
		return answer.GetViolations(), err
	}
	base, err := exportedState(against)
	if err != nil {
		return nil, err
	}
	return state.Validate(base, change(source.Document)), nil
}

// exportedState is the state that an export describes, as far as references to it go.
func exportedState(path string) (*state.State, error) {
	files, err := document.ReadFiles([]string{path}, strings.NewReader(""))
	if err != nil {
		return nil, &failure{exitUsage, err}
	}
	var records []*raftv1.SnapshotRecord
	for _, s := range document.ParseExport(files) {
		if problems := s.Report(nil); len(problems) > 0 {
			return nil, fail(exitInvalid, "--against: %s", problems[0])
		}
		for _, r := range state.Resources(s.Document) {
			stored := &raftv1.StoredResource{Resource: state.Normalize(r)}
			records = append(records, &raftv1.SnapshotRecord{Record: &raftv1.SnapshotRecord_Resource{Resource: stored}})
		}
	}
	base, err := state.Decode(state.New("").Header(), func() (*raftv1.SnapshotRecord, error) {
		if len(records) == 0 {
			return nil, io.EOF
		}
		next := records[0]
		records = records[1:]
		return next, nil
	})
	if err != nil {
		return nil, fail(exitInvalid, "--against %s: it is no export: %w", path, err)
	}
	return base, nil
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

// countOf is a number of things, in words.
func countOf(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
