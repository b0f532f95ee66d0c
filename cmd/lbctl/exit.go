package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Exit codes: scripts rely on them.
const (
	exitOK           = 0
	exitNo           = 1
	exitUsage        = 2
	exitInvalid      = 3
	exitForbidden    = 4
	exitNotFound     = 5
	exitConflict     = 6
	exitUnavailable  = 7
	exitWaitTimedOut = 8
	exitInternal     = 9
	exitInterrupted  = 130
)

// exitCodes is the one list that help prints.
var exitCodes = []struct {
	code    int
	meaning string
}{
	{exitOK, "done"},
	{exitNo, "the answer is no: something differs, is unhealthy, or a node refused the revision"},
	{exitUsage, "wrong command line"},
	{exitInvalid, "invalid configuration"},
	{exitForbidden, "unauthenticated or forbidden"},
	{exitNotFound, "not found"},
	{exitConflict, "conflict: it exists, belongs to another owner, or has changed meanwhile"},
	{exitUnavailable, "unavailable: no node answers, or there is no leader; safe to retry"},
	{exitWaitTimedOut, "the wait timed out: the change is stored, its revision is printed"},
	{exitInternal, "internal: a fault of lbd or lbctl"},
	{exitInterrupted, "interrupted"},
}

func exitCodesTopic() *cobra.Command {
	var b strings.Builder
	b.WriteString("lbctl answers by its exit code:\n\n")
	for _, e := range exitCodes {
		fmt.Fprintf(&b, "  %3d  %s\n", e.code, e.meaning)
	}
	return &cobra.Command{Use: "exit-codes", Short: "What the exit codes mean", Long: strings.TrimRight(b.String(), "\n")}
}

// failure is an error with its exit code.
type failure struct {
	code int
	// What to tell the person; nil: it has been told.
	err error
}

func (f *failure) Error() string {
	if f.err == nil {
		return fmt.Sprintf("exit code %d", f.code)
	}
	return f.err.Error()
}

func (f *failure) Unwrap() error { return f.err }

func fail(code int, format string, args ...any) *failure {
	return &failure{code, fmt.Errorf(format, args...)}
}

// failed gives a verb's error its exit code. nil stays nil.
func failed(err error) error {
	var f *failure
	if err == nil || errors.As(err, &f) {
		return err
	}
	if s, ok := status.FromError(err); ok {
		return &failure{codeOf(s.Code()), errors.New(s.Message())}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return &failure{exitUnavailable, err}
	}
	return &failure{exitInternal, err}
}

// codeOf is the one place where gRPC's codes become exit codes.
func codeOf(code codes.Code) int {
	switch code {
	case codes.OK:
		return exitOK
	case codes.InvalidArgument, codes.OutOfRange:
		return exitInvalid
	case codes.Unauthenticated, codes.PermissionDenied:
		return exitForbidden
	case codes.NotFound:
		return exitNotFound
	case codes.AlreadyExists, codes.Aborted, codes.FailedPrecondition:
		return exitConflict
	case codes.Unavailable, codes.ResourceExhausted, codes.DeadlineExceeded:
		return exitUnavailable
	case codes.Canceled:
		return exitInterrupted
	default:
		return exitInternal
	}
}

// exit tells what went wrong and returns the exit code. An error without one comes from cobra: a wrong command line.
func (c *cli) exit(ctx context.Context, cmd *cobra.Command, err error) int {
	if err == nil {
		return exitOK
	}
	var f *failure
	if !errors.As(err, &f) {
		c.tellFailure(plainly(cmd, err))
		fmt.Fprintf(c.stderr, "see `%s --help`\n", cmd.CommandPath())
		return exitUsage
	}
	if ctx.Err() != nil && f.code != exitInterrupted {
		f = fail(exitInterrupted, "interrupted")
	}
	if f.err != nil {
		c.tellFailure(f.err.Error())
	}
	return f.code
}

// tellFailure tells why the command line has failed. Where GitHub's runner reads the log and has no annotation yet, this is one.
func (c *cli) tellFailure(text string) {
	if c.problems.format == problemsGitHub && !c.problems.annotated {
		fmt.Fprintln(c.stderr, workflowError(text))
		return
	}
	fmt.Fprintf(c.stderr, "error: %s\n", text)
}

// plainly is what cobra finds wrong with a command line, with what to write instead.
func plainly(cmd *cobra.Command, err error) string {
	var word, flag string
	text := err.Error()
	if names, ok := strings.CutPrefix(text, "required flag(s) "); ok {
		return missing(cmd, strings.TrimSuffix(names, " not set"))
	}
	if n, _ := fmt.Sscanf(text, "invalid argument %q for %q flag:", &word, &flag); n == 2 && strings.Contains(flag, "--") { // else it is about a verb's argument
		flag = flag[strings.Index(flag, "--")+2:]
		return fmt.Sprintf("--%s takes %s, not %q", flag, takenBy(cmd, flag, text), word)
	}
	if n, _ := fmt.Sscanf(text, "unknown command %q", &word); n == 1 && cmd == cmd.Root() {
		for _, noun := range cmd.Commands() {
			for _, verb := range noun.Commands() {
				if verb.Name() == word {
					return fmt.Sprintf("there is no `%s %s` (did you mean `%s`?)", cmd.Name(), word, verb.CommandPath())
				}
			}
		}
	}
	return text
}

// missing asks for the flags that are named, each in quotes.
func missing(cmd *cobra.Command, names string) string {
	var all []string
	for _, name := range strings.Split(names, ", ") {
		name = strings.Trim(name, `"`)
		all = append(all, fmt.Sprintf("--%s %s (%s)", name, strings.ToUpper(name), cmd.Flags().Lookup(name).Usage))
	}
	return "say " + strings.Join(all, " and ")
}

// takenBy is what a flag takes whose value cannot be read; why is how that was said.
func takenBy(cmd *cobra.Command, flag, why string) string {
	kind := ""
	if f := cmd.Flags().Lookup(flag); f != nil {
		kind = f.Value.Type()
	}
	switch {
	case strings.HasPrefix(kind, "int") && strings.Contains(why, strconv.ErrRange.Error()):
		return fmt.Sprintf("a whole number up to %d", math.MaxInt64)
	case strings.HasPrefix(kind, "int"):
		return "a whole number"
	case kind == "duration":
		return "a length of time such as 30s or 5m"
	case kind == "bool":
		return "true or false"
	}
	return "another value"
}
