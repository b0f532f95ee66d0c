package main

import (
	"github.com/spf13/cobra"
)

func (c *cli) completionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "completion SHELL",
		Short: "Write a shell's completion script",
		Long:  "Write the completion script of bash, zsh, fish or powershell to stdout.",
		Example: `  source <(lbctl completion bash)
  lbctl completion zsh >"${fpath[1]}/_lbctl"`,
		Args:                  cobra.ExactArgs(1),
		ValidArgs:             []string{"bash", "zsh", "fish", "powershell"},
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch root := cmd.Root(); args[0] {
			case "bash":
				return failed(root.GenBashCompletionV2(c.stdout, true))
			case "zsh":
				return failed(root.GenZshCompletion(c.stdout))
			case "fish":
				return failed(root.GenFishCompletion(c.stdout, true))
			case "powershell":
				return failed(root.GenPowerShellCompletionWithDesc(c.stdout))
			default:
				return fail(exitUsage, "unknown shell %q (bash, zsh, fish, powershell)", args[0])
			}
		},
	}
}
