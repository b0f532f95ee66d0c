package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/reflect/protoreflect"

	"lbd/cmd/lbctl/document"
	lbdv1 "lbd/proto/lbd/v1"
)

var update = flag.Bool("update", false, "rewrite docs/reference.md")

// TestReference holds that docs/reference.md is what the schema, the verbs and the exit codes are.
func TestReference(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "reference.md")
	want := reference()
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is not up to date: go test ./cmd/lbctl -run TestReference -update", path)
	}
	for _, part := range []string{"| `health_check.http.expect_status[]` | list of text | `[\"2xx\", \"3xx\"]` |", "| 6 | conflict", "| `lbctl backend drain POOL/ADDRESS…` |"} {
		if !strings.Contains(want, part) {
			t.Errorf("the reference lacks %q", part)
		}
	}
}

// reference writes the page from what the binary itself knows.
func reference() string {
	var b strings.Builder
	b.WriteString(`# Reference

Made of the schema, the verbs and the exit codes by ` + "`go test ./cmd/lbctl -run TestReference -update`" + `; do not edit it. ` + "`lbctl explain KIND.FIELD`" + ` says the same.
How a request ended (the access log's ` + "`reason`" + `), log fields and metrics: [observing.md](observing.md). The rules: [concepts.md](concepts.md).

A document is YAML or JSON with ` + "`api_version: lbd/v1`, `owner`" + ` and lists of resources by kind; several files of a folder count as one. Names are lower-case
letters, digits, ` + "`-`, `.` and `_`" + `, at most 63 bytes. Words like ` + "`HTTPS`" + ` are read in any case. Lengths of time are ` + "`500ms`, `5s`, `1m30s`" + `. ` + "`[]`" + ` is a list; what is in it stands below it.
What a document does not know is refused, never ignored.
`)
	for _, fd := range document.FieldsOf((&lbdv1.Document{}).ProtoReflect().Descriptor()) {
		if fd.Message() == nil {
			continue
		}
		fmt.Fprintf(&b, "\n## %s\n\n%s\n", fd.Name(), document.Comment(fd.Message()))
		if text := document.Comment(fd); text != "" {
			fmt.Fprintf(&b, "%s\n", text)
		}
		b.WriteString("\n| field | type | default | what |\n|---|---|---|---|\n")
		referRows(&b, "", document.FieldsOf(fd.Message()))
	}
	b.WriteString("\n## Exit codes\n\n| code | of `lbctl` means |\n|---|---|\n")
	for _, e := range exitCodes {
		fmt.Fprintf(&b, "| %d | %s |\n", e.code, cell(e.meaning))
	}
	b.WriteString("\n## Verbs\n\n`lbctl VERB --help` has the flags and an example.\n\n| verb | does |\n|---|---|\n")
	c := &cli{}
	referVerbs(&b, c.root())
	return b.String()
}

func referRows(b *strings.Builder, path string, fields []protoreflect.FieldDescriptor) {
	for _, fd := range fields {
		at := path + string(fd.Name())
		if fd.IsList() {
			at += "[]"
		}
		e := explained{field: fd}
		what := []string{cell(e.comment())}
		if fd.Enum() != nil {
			for i := range fd.Enum().Values().Len() {
				v := fd.Enum().Values().Get(i)
				if text := document.Comment(v); text != "" {
					what = append(what, "`"+document.Word(fd.Enum(), v.Number())+"`: "+cell(text))
				}
			}
		}
		fallback := cell(defaultCell(fd))
		if fallback == document.Default(fd) && strings.ContainsAny(fallback, "[]") {
			fallback = "`" + fallback + "`"
		}
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", at, cell(document.TypeOf(fd)), fallback, strings.Join(what, "<br>"))
		referRows(b, at+".", e.fields())
	}
}

func referVerbs(b *strings.Builder, parent *cobra.Command) {
	for _, cmd := range parent.Commands() {
		switch {
		case cmd.HasSubCommands():
			referVerbs(b, cmd)
		case cmd.Runnable() && cmd.Name() != "help":
			fmt.Fprintf(b, "| `%s` | %s |\n", cell(strings.TrimSuffix(cmd.UseLine(), " [flags]")), cell(cmd.Short))
		}
	}
}

// cell makes text fit for a table.
func cell(text string) string { return strings.NewReplacer("|", `\|`, "\n", " ").Replace(text) }

// TestUsagesHaveNoBackQuotes: what stands between them would be taken for the name of a flag's value.
func TestUsagesHaveNoBackQuotes(t *testing.T) {
	flags := 0
	var look func(*cobra.Command)
	look = func(cmd *cobra.Command) {
		for _, set := range []*pflag.FlagSet{cmd.LocalFlags(), cmd.PersistentFlags()} {
			set.VisitAll(func(f *pflag.Flag) {
				flags++
				if strings.Contains(f.Usage, "`") {
					t.Errorf("%s --%s: %q", cmd.CommandPath(), f.Name, f.Usage)
				}
			})
		}
		for _, sub := range cmd.Commands() {
			look(sub)
		}
	}
	look((&cli{}).root())
	if flags < 100 {
		t.Errorf("only %d flags were looked at", flags)
	}
}
