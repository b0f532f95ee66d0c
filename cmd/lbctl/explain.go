package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/reflect/protoreflect"

	"lbd/cluster/state"
	"lbd/cmd/lbctl/document"
	lbdv1 "lbd/proto/lbd/v1"
)

func (c *cli) explainCommand() *cobra.Command {
	kinds := kindWords()
	return &cobra.Command{
		Use:   "explain [KIND[.FIELD…]]",
		Short: "Say what documents may say, with ranges and defaults",
		Long: `Say what documents may say: a kind's or a field's meaning, type, range and default, and what is in it. Without an argument
it lists the kinds.`,
		Example: `  lbctl explain pools
  lbctl explain pool.health_check.http.expect_status`,
		Args:      cobra.MaximumNArgs(1),
		ValidArgs: kinds,
		RunE: c.does(func(_ context.Context, args []string) error {
			if len(args) == 0 {
				c.printExplained(explained{path: "document", about: (&lbdv1.Document{}).ProtoReflect().Descriptor()})
				return nil
			}
			e, err := findField(args[0])
			if err != nil {
				return err
			}
			c.printExplained(e)
			return nil
		}),
	}
}

// explained is one place in a document.
type explained struct {
	path string
	// A kind's message, or the document's; nil for a field.
	about protoreflect.MessageDescriptor
	field protoreflect.FieldDescriptor
}

// findField follows a path like pool.backends.weight; indices in it count for nothing.
func findField(arg string) (explained, error) {
	words := strings.Split(arg, ".")
	kind, _, err := parseKey(words[0])
	if err != nil {
		return explained{}, err
	}
	e := explained{path: string(kind), about: kind.Describe()}
	for _, w := range words[1:] {
		w, _, _ = strings.Cut(w, "[")
		next := e.find(w)
		if next == nil {
			return e, unknownField(e, w)
		}
		e = explained{path: e.path + "." + w, field: next}
	}
	return e, nil
}

func (e explained) fields() []protoreflect.FieldDescriptor {
	if e.field != nil {
		return document.Fields(e.field)
	}
	return document.FieldsOf(e.about)
}

func (e explained) find(name string) protoreflect.FieldDescriptor {
	for _, fd := range e.fields() {
		if string(fd.Name()) == name {
			return fd
		}
	}
	return nil
}

func unknownField(e explained, name string) error {
	var names []string
	for _, fd := range e.fields() {
		names = append(names, string(fd.Name()))
	}
	switch near, ok := state.Nearest(name, names); {
	case len(names) == 0:
		return fail(exitUsage, "there are no fields in %s", e.path)
	case ok:
		return fail(exitUsage, "there is no field `%s` in %s (did you mean `%s`?)", name, e.path, near)
	default:
		return fail(exitUsage, "there is no field `%s` in %s: %s", name, e.path, strings.Join(names, ", "))
	}
}

// comment is what the schema says of the place; of a field that it says nothing of, what it says of what is in it.
func (e explained) comment() string {
	if e.field == nil {
		return document.Comment(e.about)
	}
	text := document.Comment(e.field)
	if e.field.Message() != nil && !e.field.IsMap() && len(document.Fields(e.field)) > 0 {
		text = strings.TrimSpace(text + " " + document.Comment(e.field.Message()))
	}
	return text
}

func (c *cli) printExplained(e explained) {
	c.print(result{
		value: e.value(),
		names: []string{e.path},
		table: func(w *table) {
			fmt.Fprintln(c.stdout, e.path)
			for _, line := range wrap(e.comment(), textColumns) {
				fmt.Fprintln(c.stdout, "  "+line)
			}
			if e.field != nil {
				e.facts(w)
			}
			if fields := e.fields(); len(fields) > 0 {
				fmt.Fprintln(c.stdout)
				w.row("FIELD", "TYPE", "DEFAULT")
				for _, fd := range fields {
					w.row(string(fd.Name()), document.TypeOf(fd), defaultCell(fd))
				}
			}
		},
	})
}

// facts are what a script would want to know of a field.
func (e explained) facts(w *table) {
	w.row()
	w.row("TYPE", document.TypeOf(e.field))
	if document.Required(e.field) {
		w.row("REQUIRED", "yes")
	}
	if text := document.Default(e.field); text != "" {
		w.row("DEFAULT", text)
	}
	if others := document.Alternatives(e.field); len(others) > 0 {
		w.row("ONE OF", strings.Join(others, ", "))
	}
	w.flush()
	if e.field.Enum() == nil {
		return
	}
	w.row()
	w.row("WORD", "MEANING")
	values := e.field.Enum().Values()
	for i := range values.Len() {
		if word := document.Word(e.field.Enum(), values.Get(i).Number()); word != "" {
			w.row(word, document.Comment(values.Get(i)))
		}
	}
	w.flush()
}

// defaultCell is a field's default, or that it has to be there.
func defaultCell(fd protoreflect.FieldDescriptor) string {
	switch {
	case document.Required(fd):
		return "required"
	case len(document.Alternatives(fd)) > 0:
		return "one of " + strings.Join(document.Alternatives(fd), ", ")
	default:
		return document.Default(fd)
	}
}

func (e explained) value() *document.Value {
	v := document.MapOf().With("path", document.Text(e.path))
	if e.field != nil {
		v.With("type", document.Text(document.TypeOf(e.field))).
			With("required", document.Truth(document.Required(e.field))).
			With("default", document.Text(document.Default(e.field)))
	}
	v.With("description", document.Text(e.comment()))
	var fields []*document.Value
	for _, fd := range e.fields() {
		fields = append(fields, explained{path: e.path + "." + string(fd.Name()), field: fd}.summary())
	}
	return v.With("fields", document.ListOf(fields))
}

// summary is a field inside of what is explained.
func (e explained) summary() *document.Value {
	return document.MapOf().
		With("name", document.Text(string(e.field.Name()))).
		With("type", document.Text(document.TypeOf(e.field))).
		With("default", document.Text(document.Default(e.field))).
		With("description", document.Text(cmp.Or(document.Comment(e.field), e.comment())))
}

// textColumns is how wide prose is written.
const textColumns = 98

// wrap breaks text into lines of at most so many characters, at its spaces.
func wrap(text string, columns int) []string {
	var lines []string
	line := ""
	for _, w := range strings.Fields(text) {
		if line != "" && len([]rune(line))+1+len([]rune(w)) > columns {
			lines = append(lines, line)
			line = ""
		}
		line = strings.TrimSpace(line + " " + w)
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}
