package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"lbd/cmd/lbctl/document"
	lbdv1 "lbd/proto/lbd/v1"
)

// profileKinds are the words of the command line.
var profileKinds = map[string]lbdv1.ProfileKind{
	"cpu":  lbdv1.ProfileKind_PROFILE_KIND_CPU,
	"heap": lbdv1.ProfileKind_PROFILE_KIND_HEAP,
}

func (c *cli) profileCommand() *cobra.Command {
	var duration time.Duration
	var out, node string
	cmd := &cobra.Command{
		Use:   "profile cpu|heap",
		Short: "Take a profile of a node",
		Long: `Take a profile of the answering node, or of another (--node), for "go tool pprof": where its CPU time goes during --duration, or what its memory holds. It
goes to a file of mode 0600; one that is there is not written over.`,
		Example:   `  lbctl profile cpu --duration 30s --out lbd.pprof && go tool pprof -http=: lbd.pprof`,
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"cpu", "heap"},
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		// --timeout is for the node's answer, which cannot come before the profile is taken.
		if args[0] == "cpu" {
			c.timeout += duration
		}
		return c.does(func(ctx context.Context, args []string) error {
			whose, err := oneNode(node)
			if err != nil {
				return err
			}
			request := &lbdv1.GetProfileRequest{Kind: profileKinds[args[0]], Node: whose}
			if args[0] == "cpu" {
				request.Duration = durationpb.New(duration)
			}
			if out == "" {
				out = args[0] + ".pprof"
			}
			return c.call(func(cl *client) error { return c.profile(ctx, cl, request, out) })
		})(cmd, args)
	}
	cmd.Flags().DurationVar(&duration, "duration", 10*time.Second, "of a CPU profile: 1s to 60s")
	cmd.Flags().StringVar(&out, "out", "", "the file to write (default: cpu.pprof or heap.pprof)")
	nodeFlag(cmd, &node)
	return cmd
}

// profile makes the file first: a minute of profiling is not to end at a name that is taken.
func (c *cli) profile(ctx context.Context, cl *client, request *lbdv1.GetProfileRequest, path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fail(exitUsage, "make the profile's file: %w", err)
	}
	defer f.Close()
	if request.GetDuration() != nil {
		c.say("taking a CPU profile for %s", document.Duration(request.GetDuration().AsDuration()))
	}
	answer, err := cl.system.GetProfile(ctx, request)
	if err != nil {
		os.Remove(path)
		return c.complained(err)
	}
	if _, err := f.Write(answer.GetProfile()); err != nil {
		return fail(exitInternal, "write %s: %w", path, err)
	}
	if err := f.Close(); err != nil {
		return fail(exitInternal, "write %s: %w", path, err)
	}
	value := document.MapOf().With("file", document.Text(path)).With("kind", document.Text(word(request.GetKind()))).
		With("bytes", document.Number(len(answer.GetProfile())))
	c.print(result{value: value, names: []string{path}, table: func(*table) {
		fmt.Fprintf(c.stdout, "wrote %s, %d bytes\n", path, len(answer.GetProfile()))
	}})
	c.say("look at it: go tool pprof -http=: %s", path)
	return nil
}
