package main

import (
	"context"
	"slices"

	"github.com/spf13/cobra"

	"lbd/cmd/lbctl/document"
	lbdv1 "lbd/proto/lbd/v1"
)

func (c *cli) doctorCommand() *cobra.Command {
	errorsOnly, node := false, ""
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Look for what makes a node slow, unsafe or about to fail",
		Long: `Look for what makes each node, or one (--node), slow, unsafe or about to fail without an error in any log: open files, backends whose
connections are not reused and why, the build, certificates, the clock, and what "status" finds.

Exit 1 if there is a warning or an error, or a node that does not answer. With --errors-only warnings do not count and are not shown.`,
		Example: `  lbctl doctor --errors-only`,
		Args:    cobra.NoArgs,
		RunE: c.does(func(ctx context.Context, _ []string) error {
			return c.call(func(cl *client) error {
				answer, err := cl.system.RunDoctor(ctx, &lbdv1.RunDoctorRequest{Node: c.meant(node)})
				if err != nil {
					return err
				}
				findings := answer.GetFindings()
				if errorsOnly {
					findings = slices.DeleteFunc(findings, func(f *lbdv1.Finding) bool { return f.GetLevel() != lbdv1.FindingLevel_FINDING_LEVEL_ERROR })
				}
				c.printFindings(findings)
				c.warnUnreached(answer.GetUnreached())
				if len(answer.GetUnreached()) > 0 || slices.ContainsFunc(findings, func(f *lbdv1.Finding) bool { return f.GetLevel() != lbdv1.FindingLevel_FINDING_LEVEL_OK }) {
					return &failure{code: exitNo}
				}
				return nil
			})
		}),
	}
	cmd.Flags().BoolVar(&errorsOnly, "errors-only", false, "leave warnings out")
	nodesFlag(cmd, &node)
	return cmd
}

func (c *cli) printFindings(findings []*lbdv1.Finding) {
	values := []*document.Value{}
	var names []string
	for _, f := range findings {
		values = append(values, document.OfAnswer(f))
		names = append(names, f.GetCheck())
	}
	c.print(result{value: document.ListOf(values), names: names, table: func(w *table) {
		several := several(findings)
		w.byNode(several, "NODE", []string{"LEVEL", "CHECK", "FINDING", "WHAT TO DO"})
		for _, f := range findings {
			w.byNode(several, f.GetNode(), []string{word(f.GetLevel()), f.GetCheck(), f.GetMessage(), f.GetRemedy()})
		}
	}})
}
