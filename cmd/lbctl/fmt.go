package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"lbd/cmd/lbctl/document"
)

func (c *cli) fmtCommand() *cobra.Command {
	var paths []string
	var check bool
	cmd := &cobra.Command{
		Use:   "fmt -f PATH",
		Short: "Lay documents out in the one way",
		Long: `Lay YAML documents out in the one way, in place (stdin to stdout): fields in the order of "explain", two spaces a level.
Comments, quotes and what was written on one line stay. It prints the files that it changes. JSON files are left alone.

With --check it changes nothing and exits 1 if a file is laid out differently.`,
		Example: `  lbctl fmt -f site/
  lbctl fmt -f site/ --check`,
		Args: documentsOnly,
		RunE: c.does(func(context.Context, []string) error {
			files, err := document.ReadFiles(paths, c.stdin)
			if err != nil {
				return &failure{exitUsage, err}
			}
			return c.fmt(files, check)
		}),
	}
	filesFlag(cmd, &paths)
	cmd.Flags().BoolVar(&check, "check", false, "change nothing, exit 1 if there is something to change")
	return c.reportsProblems(cmd)
}

func (c *cli) fmt(files []document.File, check bool) error {
	refused, differ := 0, false
	for _, f := range files {
		if filepath.Ext(f.Name) == ".json" {
			continue
		}
		text, err := document.Layout(f)
		if err != nil {
			_ = c.tell([]document.Problem{document.LayoutProblem(f, err)}) // counted here
			refused++
			continue
		}
		stdin := f.Name == document.Stdin
		if stdin && !check {
			c.stdout.Write(text)
		}
		if bytes.Equal(text, f.Data) {
			continue
		}
		differ = true
		if check && c.problems.format != problemsText {
			_ = c.tell([]document.Problem{{Position: document.FirstDifference(f, text), Message: "is not laid out in the one way: run `lbctl fmt`"}})
			continue
		}
		if check || !stdin {
			fmt.Fprintln(c.stdout, f.Name)
		}
		if !check && !stdin {
			if err := rewrite(f.Name, text); err != nil {
				return fail(exitInternal, "write %s: %w", f.Name, err)
			}
		}
	}
	switch {
	case refused > 0:
		return fail(exitInvalid, "%s not laid out", countOf(refused, "file"))
	case check && differ:
		return &failure{code: exitNo}
	}
	return nil
}

// rewrite puts a file's new text in the place of the old one, whole or not at all.
func rewrite(path string, text []byte) error {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".lbctl-fmt-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // gone already if all went well
	if _, err = f.Write(text); err == nil {
		err = f.Chmod(info.Mode().Perm())
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
