package main

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"lbd/cmd/lbctl/document"
)

// Where problems of files are told: to people, to scripts, and to the forges that show them beside a change.
const (
	problemsText   = "text"
	problemsJSON   = "json"
	problemsGitHub = "github"
	problemsGitLab = "gitlab"
)

// problemReport is where the problems of one command line go.
type problemReport struct {
	format string
	// out takes a report that is one document: what else the verb has to say goes to stderr then.
	out io.Writer
	all []document.Problem
	// annotated is that GitHub's runner has been told of an error in a file.
	annotated bool
}

// reportsProblems gives a verb that judges files --error-format.
func (c *cli) reportsProblems(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().StringVar(&c.problems.format, "error-format", problemsText,
		"how problems of files are told: text or github (workflow commands) on stderr; json or gitlab (a code quality report) on stdout")
	cmd.Long += `

With --error-format json or gitlab stdout holds one report, whatever comes of it, and what else there is to say is on stderr.`
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch c.problems.format {
		case problemsText, problemsGitHub:
			return run(cmd, args)
		case problemsJSON, problemsGitLab:
		default:
			return fail(exitUsage, "unknown error format %q (text, json, github, gitlab)", c.problems.format)
		}
		if cmd.Flags().Changed("output") {
			return fail(exitUsage, "-o and --error-format %s both want stdout: leave one of them out", c.problems.format)
		}
		c.problems.out, c.stdout = c.stdout, c.stderr
		err := run(cmd, args)
		c.problems.flush()
		return err
	}
	return cmd
}

// collects tells whether problems are kept for a report.
func (r *problemReport) collects() bool { return r.out != nil }

func (r *problemReport) flush() {
	value := problemsValue(r.all)
	if r.format == problemsGitLab {
		value = qualityValue(r.all)
	}
	r.out.Write(value.IndentedJSON())
}

func problemsValue(problems []document.Problem) *document.Value {
	all := []*document.Value{}
	for _, p := range problems {
		all = append(all, document.MapOf().
			With("file", document.Text(p.Position.File)).
			With("line", document.Number(p.Position.Line)).
			With("column", document.Number(p.Position.Column)).
			With("severity", document.Text(strings.ToUpper(severityOf(p)))).
			With("field", document.Text(p.Field)).
			With("message", document.Text(p.Message)))
	}
	return document.ListOf(all)
}

func severityOf(p document.Problem) string {
	if p.Warning {
		return "warning"
	}
	return "error"
}

// qualityValue is GitLab's code quality report. A problem keeps its fingerprint while its text stays where it is in meaning: lines
// that come before it do not count.
func qualityValue(problems []document.Problem) *document.Value {
	all := []*document.Value{}
	seen := map[string]int{}
	for _, p := range problems {
		key := strings.Join([]string{placeOf(p), severityOf(p), p.Field, p.Message}, "\x00")
		sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%d", key, seen[key]))
		seen[key]++
		severity := "major"
		if p.Warning {
			severity = "minor"
		}
		all = append(all, document.MapOf().
			With("description", document.Text(p.Message)).
			With("check_name", document.Text("lbctl")).
			With("fingerprint", document.Text(hex.EncodeToString(sum[:16]))).
			With("severity", document.Text(severity)).
			With("location", document.MapOf().
				With("path", document.Text(placeOf(p))).
				With("lines", document.MapOf().With("begin", document.Number(max(p.Position.Line, 1))))))
	}
	return document.ListOf(all)
}

// placeOf is a problem's file as forges know it: relative to the folder that the pipeline runs in.
func placeOf(p document.Problem) string {
	path := filepath.Clean(cmp.Or(p.Position.File, "."))
	if here, err := filepath.Abs("."); err == nil && filepath.IsAbs(path) {
		if below, err := filepath.Rel(here, path); err == nil && filepath.IsLocal(below) {
			path = below
		}
	}
	return filepath.ToSlash(path)
}

// workflowData escapes the text of a command to GitHub's runner.
func workflowData(text string) string {
	return strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A").Replace(text)
}

// workflowError is an error that is of no file.
func workflowError(text string) string { return "::error::" + workflowData(text) }

// workflowCommand is a problem as GitHub's runner reads it from a log.
func workflowCommand(p document.Problem) string {
	property := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
	return fmt.Sprintf("::%s file=%s,line=%d,col=%d::%s",
		severityOf(p), property.Replace(placeOf(p)), max(p.Position.Line, 1), max(p.Position.Column, 1), workflowData(p.Message))
}
