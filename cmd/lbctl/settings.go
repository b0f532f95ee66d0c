package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"lbd/cluster/state"
	"lbd/cmd/lbctl/document"
	lbdv1 "lbd/proto/lbd/v1"
)

// settingsOwner is whose revision a change of the settings is. They have no owner themselves.
const settingsOwner = "cluster"

func (c *cli) settingsCommand() *cobra.Command {
	return noun("settings", "The rules of the whole cluster", c.settingsGet(), c.settingsSet())
}

func (c *cli) settingsGet() *cobra.Command {
	return &cobra.Command{
		Use:     "get",
		Short:   "Show the settings",
		Example: "  lbctl cluster settings get -o yaml",
		Args:    cobra.NoArgs,
		RunE: c.does(func(ctx context.Context, _ []string) error {
			return c.call(func(cl *client) error {
				r, err := c.settings(ctx, cl)
				if err != nil {
					return err
				}
				c.printSettings(r)
				return nil
			})
		}),
	}
}

// printSettings lists all settings, those that nobody has set by their defaults.
func (c *cli) printSettings(r *lbdv1.Resource) {
	c.print(result{value: document.Of(r), names: []string{string(state.ClusterSettings)}, table: func(w *table) {
		w.row("SETTING", "VALUE")
		set := state.Diff(nil, r)
		for _, fd := range document.FieldsOf(state.ClusterSettings.Describe()) {
			name, told := string(fd.Name()), false
			for _, f := range set {
				if top, _, _ := strings.Cut(strings.ReplaceAll(f.GetPath(), "[", "."), "."); top == name {
					w.row(f.GetPath(), f.GetAfter())
					told = true
				}
			}
			if !told {
				w.row(name, cmp.Or(document.Default(fd), "none"))
			}
		}
	}})
}

func (c *cli) settingsSet() *cobra.Command {
	var wait, owner string
	header := &lbdv1.ApplyHeader{}
	cmd := &cobra.Command{
		Use:   "set FIELD=VALUE…",
		Short: "Change some settings, as one revision",
		Long: `Change some settings, as one revision, and keep the others. A field is written as in a document, one inside of another behind a dot,
and a value as in YAML; without a value the field gets its default. It takes an admin who is bound to no owner. If somebody else
changes the settings at the same moment nothing is stored (exit 6).

"lbctl explain cluster_settings" lists the fields. Where a document holds cluster_settings its next apply makes them as it says.`,
		Example: `  lbctl cluster settings set allow_loopback_backends=true
  lbctl cluster settings set backup.schedule=6h backup.directory=/var/lib/lbd-backups state_bytes=`,
		Args: cobra.MinimumNArgs(1),
		RunE: c.does(func(ctx context.Context, args []string) error {
			if err := checkWait(&wait, header.ValidateOnly); err != nil {
				return err
			}
			header.Owner, header.RequestId = owner, newRequestID()
			return c.call(func(cl *client) error { return c.setSettings(ctx, cl, args, header, wait) })
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&owner, "owner", settingsOwner, "whose revision it is")
	flags.BoolVar(&header.ValidateOnly, "dry-run", false, "report what would change, change nothing")
	flags.StringVarP(&header.Message, "message", "m", "", "kept with the revision")
	waitFlag(cmd, &wait)
	return cmd
}

func (c *cli) settings(ctx context.Context, cl *client) (*lbdv1.Resource, error) {
	answer, err := retried(ctx, cl, startGrace, func() (*lbdv1.GetResponse, error) {
		return cl.config.Get(ctx, &lbdv1.GetRequest{Kind: string(state.ClusterSettings)})
	})
	return answer.GetResource(), err
}

// setSettings reads the settings, lays what the command line says over them, and applies the whole.
func (c *cli) setSettings(ctx context.Context, cl *client, args []string, header *lbdv1.ApplyHeader, wait string) error {
	before, err := c.settings(ctx, cl)
	if err != nil {
		return err
	}
	set := proto.CloneOf(before.GetClusterSettings())
	for _, arg := range args {
		if err := setField(set, arg); err != nil {
			return err
		}
	}
	r := &lbdv1.Resource{Etag: before.GetEtag(), Spec: &lbdv1.Resource_ClusterSettings{ClusterSettings: set}}
	answer, err := retried(ctx, cl, startGrace, func() (*lbdv1.ApplyResponse, error) {
		return send(ctx, cl, header, &lbdv1.ApplyResources{Resources: []*lbdv1.Resource{r}})
	})
	if vs := violations(err); len(vs) > 0 {
		if err := c.misused(vs, "message", "owner"); err != nil {
			return err
		}
		c.tellViolations(vs)
		return fail(codeOf(status.Code(err)), "nothing was changed")
	}
	if err != nil {
		return withFlag(err)
	}
	return c.finish(ctx, cl, answer, header.GetValidateOnly(), wait)
}

// setField lays FIELD=VALUE over the settings. It is read as the document that it stands for, so that it means the same.
func setField(set *lbdv1.ClusterSettings, arg string) error {
	path, value, ok := strings.Cut(arg, "=")
	if !ok || path == "" {
		return fail(exitUsage, "%q: want FIELD=VALUE", arg)
	}
	if value == "" {
		return clearField(set, path)
	}
	var text strings.Builder
	fmt.Fprintf(&text, "api_version: %s\nowner: %s\ncluster_settings:\n", state.APIVersion, settingsOwner)
	indent := "  "
	words := strings.Split(path, ".")
	for _, word := range words[:len(words)-1] {
		fmt.Fprintf(&text, "%s%s:\n", indent, word)
		indent += "  "
	}
	fmt.Fprintf(&text, "%s%s: %s\n", indent, words[len(words)-1], value)
	source := document.Parse([]document.File{{Name: arg, Folder: ".", Data: []byte(text.String())}})
	for _, p := range source.Report(nil) {
		if !p.Warning {
			return fail(exitUsage, "%s: %s", arg, p.Message)
		}
	}
	one := source.Document.GetClusterSettings()
	if one == nil {
		return fail(exitUsage, "%s: it sets nothing", arg)
	}
	if err := clearField(set, path); err != nil { // a list is replaced, not added to
		return err
	}
	proto.Merge(set, one)
	return nil
}

// clearField gives a field its default.
func clearField(set *lbdv1.ClusterSettings, path string) error {
	m := set.ProtoReflect()
	words := strings.Split(path, ".")
	for i, word := range words {
		field := m.Descriptor().Fields().ByTextName(word)
		switch {
		case field == nil:
			return fail(exitUsage, "there is no setting `%s`: `lbctl explain cluster_settings` lists them", path)
		case i == len(words)-1:
			m.Clear(field)
			return nil
		case field.Message() == nil || field.IsList():
			return fail(exitUsage, "there is nothing inside of `%s`", word)
		case !m.Has(field):
			return nil
		}
		m = m.Mutable(field).Message()
	}
	return nil
}

// settingsLost warns of settings that somebody has set and that go back to their defaults because the documents leave them out.
func settingsLost(doc *lbdv1.Document, changes []*lbdv1.Change) []*lbdv1.Violation {
	set := doc.GetClusterSettings()
	var lost []string
	for _, ch := range changes {
		if state.Kind(ch.GetKind()) != state.ClusterSettings || set == nil {
			continue
		}
		for _, f := range ch.GetFields() {
			path, _, _ := strings.Cut(f.GetPath(), "[")
			if f.GetBefore() != "" && f.GetAfter() == "" && !isSet(set.ProtoReflect(), path) {
				lost = append(lost, fmt.Sprintf("`%s` (%s)", f.GetPath(), f.GetBefore()))
			}
		}
	}
	if lost == nil {
		return nil
	}
	return []*lbdv1.Violation{{
		Severity: lbdv1.Severity_SEVERITY_WARNING,
		Field:    state.Key{Kind: state.ClusterSettings}.Field(),
		Description: fmt.Sprintf("what the document leaves out gets its default, and was something else: %s; name it, or change single settings by `lbctl cluster settings set`",
			strings.Join(lost, ", ")),
	}}
}

// isSet tells whether a message, or one inside of it behind a dot, says something for a field.
func isSet(m protoreflect.Message, path string) bool {
	name, rest, inside := strings.Cut(path, ".")
	field := m.Descriptor().Fields().ByTextName(name)
	if field == nil || !m.Has(field) {
		return false
	}
	return !inside || field.Message() == nil || field.IsList() || isSet(m.Get(field).Message(), rest)
}
