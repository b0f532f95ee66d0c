// Command lbctl changes and reads a cluster of lbd nodes.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"unicode/utf8"
)

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// run executes one command line and returns its exit code.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	for i, arg := range args {
		if !utf8.ValidString(arg) {
			fmt.Fprintf(stderr, "error: argument %d is not UTF-8: %q\n", i+1, arg)
			return exitUsage
		}
	}
	c := &cli{stdin: stdin, stdout: stdout, stderr: stderr, getenv: os.LookupEnv}
	root := c.root()
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	return c.exit(ctx, cmd, err)
}
