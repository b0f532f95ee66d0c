package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"lbd/cluster/state"
	"lbd/cmd/lbctl/document"
	lbdv1 "lbd/proto/lbd/v1"
)

// editMark starts the lines that edit itself writes into the text and takes out again.
const editMark = "#: "

func (c *cli) editCommand() *cobra.Command {
	var wait string
	header := &lbdv1.ApplyHeader{}
	cmd := &cobra.Command{
		Use:   "edit KIND/NAME",
		Short: "Change a resource in an editor",
		Long: `Change a resource in an editor ($VISUAL, else $EDITOR, else vi), as one revision. What is refused comes up again with the
errors as comments; to save it unchanged then gives up. If somebody else has changed the resource meanwhile nothing is
stored (exit 6). Whenever a text is not stored it is kept, and its path is told.

The next apply of the owner's documents puts back what they say: change them too.`,
		Example: `  EDITOR=nano lbctl edit pool/shop --wait`,
		Args:    oneKey,
		RunE: func(cmd *cobra.Command, args []string) error { // each call has a deadline, the editor has none
			key, err := state.ParseKey(args[0])
			if err != nil {
				return fail(exitUsage, "%w", err)
			}
			if err := checkWait(&wait, false); err != nil {
				return err
			}
			return failed(c.call(func(cl *client) error {
				e := &editing{c: c, cl: cl, key: key, header: header}
				return e.run(cmd.Context(), wait)
			}))
		},
	}
	cmd.Flags().StringVarP(&header.Message, "message", "m", "", "kept with the revision")
	waitFlag(cmd, &wait)
	return cmd
}

// editing is one resource under an editor.
type editing struct {
	c      *cli
	cl     *client
	key    state.Key
	header *lbdv1.ApplyHeader

	// As it was read.
	before *lbdv1.Resource
	// Where its text is edited.
	path string
}

// run reads the resource, and has it edited until it is stored or given up.
func (e *editing) run(ctx context.Context, wait string) error {
	if err := e.read(ctx); err != nil {
		return err
	}
	text, complaints := e.text(), []string(nil)
	for {
		edited, err := e.edit(text, complaints)
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			ctx = context.WithoutCancel(ctx) // an interrupt while the editor ran was the editor's
		}
		given := complaints != nil && bytes.Equal(edited, text)
		text = edited
		if given {
			return e.kept(fail(exitInvalid, "given up: nothing was changed"))
		}
		source := document.Parse([]document.File{{Name: e.path, Folder: ".", Data: text}})
		source.ReadContents(document.ReadFile, e.c.getenv)
		after, problems := e.check(source)
		if after != nil && proto.Equal(state.Spec(after), state.Spec(e.before)) {
			e.c.say("nothing was changed")
			return os.Remove(e.path)
		}
		if !document.Invalid(problems) {
			var answer *lbdv1.ApplyResponse
			answer, problems, err = e.store(ctx, source, after)
			if err != nil {
				return e.kept(err)
			}
			if answer != nil {
				return e.done(ctx, answer, wait)
			}
		}
		complaints = []string{}
		for _, p := range problems {
			complaints = append(complaints, p.Message+lineOf(p, len(problems)))
		}
	}
}

func (e *editing) read(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, e.c.timeout)
	defer cancel()
	answer, err := e.cl.config.Get(ctx, &lbdv1.GetRequest{Kind: string(e.key.Kind), Name: e.key.Name})
	if err != nil {
		return err
	}
	e.before = answer.GetResource()
	e.header.Owner = cmp.Or(e.before.GetOwner(), state.OwnerDev)
	f, err := os.CreateTemp("", "lbctl-edit-*.yaml") // its mode is 0600
	if err != nil {
		return fail(exitInternal, "make a file to edit: %w", err)
	}
	e.path = f.Name()
	return f.Close()
}

// text is the resource as a document.
func (e *editing) text() []byte {
	return document.Of(state.DocumentOf(e.header.GetOwner(), []*lbdv1.Resource{e.before})).YAML()
}

// edit opens the editor on a text, and returns what was saved without the lines that were put before it.
func (e *editing) edit(text []byte, complaints []string) ([]byte, error) {
	lead := []string{"What you save is stored as a revision of owner " + e.header.GetOwner() + "."}
	if complaints != nil {
		lead = append([]string{"Not stored. Mend it, or save it as it is to give up."}, complaints...)
	}
	var b bytes.Buffer
	for _, l := range lead {
		b.WriteString(editMark + l + "\n")
	}
	b.Write(text)
	if err := os.WriteFile(e.path, b.Bytes(), 0o600); err != nil {
		return nil, fail(exitInternal, "write %s: %w", e.path, err)
	}
	editor := e.editor()
	cmd := exec.Command("sh", "-c", editor+` "$1"`, editor, e.path)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = e.c.stdin, e.c.stdout, e.c.stderr
	if err := cmd.Run(); err != nil {
		return nil, e.kept(fail(exitNo, "the editor (%s) ended with an error: %w", editor, err))
	}
	saved, err := os.ReadFile(e.path)
	if err != nil {
		return nil, fail(exitInternal, "read what was edited: %w", err)
	}
	var rest []string
	for l := range strings.Lines(string(saved)) {
		if !strings.HasPrefix(l, editMark) {
			rest = append(rest, l)
		}
	}
	return []byte(strings.Join(rest, "")), nil
}

func (e *editing) editor() string {
	for _, name := range []string{"VISUAL", "EDITOR"} {
		if v, ok := e.c.getenv(name); ok && strings.TrimSpace(v) != "" {
			return v
		}
	}
	return "vi"
}

// check finds the resource in what was saved, and all that is wrong without asking a node. The resource is nil if it is
// not there alone.
func (e *editing) check(source *document.Source) (*lbdv1.Resource, []document.Problem) {
	problems := source.Report(nil)
	if document.Invalid(problems) {
		return nil, source.Report(state.ValidateRest(change(source.Document)))
	}
	all := state.Resources(source.Document)
	var wrong string
	switch {
	case source.Document.GetOwner() != e.header.GetOwner():
		wrong = "the owner is " + e.header.GetOwner() + ": an edit cannot give a resource away"
	case len(all) != 1:
		wrong = fmt.Sprintf("there must be %s alone", e.key)
	default:
		if key, _ := state.KeyOf(all[0]); key != e.key {
			wrong = fmt.Sprintf("this is %s: an edit cannot rename it", e.key)
		}
	}
	if wrong != "" {
		return nil, []document.Problem{{Position: source.Position(""), Message: wrong}}
	}
	return all[0], problems
}

// store sends what was edited, on the condition that the resource is as it was read. Without an answer and an error there
// are problems.
func (e *editing) store(ctx context.Context, source *document.Source, after *lbdv1.Resource) (*lbdv1.ApplyResponse, []document.Problem, error) {
	ctx, cancel := context.WithTimeout(ctx, e.c.timeout)
	defer cancel()
	after.Etag = e.before.GetEtag()
	e.header.RequestId = newRequestID()
	answer, err := retried(ctx, e.cl, startGrace, func() (*lbdv1.ApplyResponse, error) {
		return send(ctx, e.cl, e.header, &lbdv1.ApplyResources{Resources: []*lbdv1.Resource{after}})
	})
	if vs := violations(err); len(vs) > 0 {
		if err := e.c.misused(vs, "message"); err != nil {
			return nil, nil, err
		}
		return nil, source.Report(vs), nil
	}
	return answer, nil, err
}

func (e *editing) done(ctx context.Context, answer *lbdv1.ApplyResponse, wait string) error {
	ctx, cancel := context.WithTimeout(ctx, e.c.timeout)
	defer cancel()
	if err := os.Remove(e.path); err != nil {
		e.c.say("%v", err)
	}
	return e.c.finish(ctx, e.cl, answer, false, wait)
}

// kept is a failure that names where the text is.
func (e *editing) kept(err error) error {
	var f *failure
	errors.As(failed(e.cl.explain(err)), &f)
	return fail(f.code, "%w; your text is kept at %s", f, e.path)
}

// lineOf names a problem's line as the editor counts it, below the lines that are put before the text.
func lineOf(p document.Problem, problems int) string {
	return fmt.Sprintf(" (line %d)", p.Position.Line+problems+1)
}
