package main

import (
	"context"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"lbd/cmd/lbctl/document"
	lbdv1 "lbd/proto/lbd/v1"
)

// version is set by the release build: -ldflags '-X main.version=1.2.3'.
var version = "dev"

func (c *cli) versionCommand() *cobra.Command {
	var node string
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Show the versions of lbctl and of a node",
		Long:    `Show the versions of lbctl and of the answering node, or of another (--node). "cluster status" shows those of all nodes.`,
		Example: `  lbctl version -o json`,
		Args:    cobra.NoArgs,
		RunE: c.does(func(ctx context.Context, _ []string) error {
			whose, err := oneNode(node)
			if err != nil {
				return err
			}
			builds := map[string]*lbdv1.GetVersionResponse{"lbctl": build()}
			err = c.call(func(cl *client) (err error) {
				builds["lbd"], err = cl.system.GetVersion(ctx, &lbdv1.GetVersionRequest{Node: whose})
				return err
			})
			// Without a node there is still something to say.
			if err != nil {
				delete(builds, "lbd")
				c.say("%v", failed(err))
			}
			c.printVersions(builds)
			return nil
		}),
	}
	nodeFlag(cmd, &node)
	return cmd
}

// build describes this binary.
func build() *lbdv1.GetVersionResponse {
	b := &lbdv1.GetVersionResponse{Version: version, GoVersion: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, Commit: "unknown"}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			b.Commit = s.Value
		}
	}
	return b
}

func (c *cli) printVersions(builds map[string]*lbdv1.GetVersionResponse) {
	value := document.MapOf()
	var names []string
	for _, program := range []string{"lbctl", "lbd"} {
		if builds[program] != nil {
			value.With(program, document.OfAnswer(builds[program]))
			names = append(names, program)
		}
	}
	c.print(result{value: value, names: names, table: func(w *table) {
		w.row("PROGRAM", "VERSION", "COMMIT", "GO", "PLATFORM")
		for _, program := range names {
			b := builds[program]
			w.row(program, b.GetVersion(), b.GetCommit(), b.GetGoVersion(), b.GetPlatform())
		}
	}})
}
