package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cluster/state"
	"lbd/cmd/lbctl/document"
	lbdv1 "lbd/proto/lbd/v1"
)

// pageSize is how many resources or revisions one call asks for.
const pageSize = 500

func (c *cli) getCommand() *cobra.Command {
	var owner string
	kinds := kindWords()
	cmd := &cobra.Command{
		Use:   "get KIND[/NAME]",
		Short: "Read resources of a kind, or one",
		Long:  "Read resources of a kind, or one. Kinds: " + strings.Join(kinds, ", ") + "; the singular is understood too.",
		Example: `  lbctl get pools
  lbctl get pool/shop -o jsonpath='{.pool.backends[*].address}'`,
		Args:      oneKey,
		ValidArgs: kinds,
		RunE: c.does(func(ctx context.Context, args []string) error {
			kind, name, err := parseKey(args[0])
			if err != nil {
				return err
			}
			if name != "" && owner != "" {
				return fail(exitUsage, "--owner chooses among several: leave the name or the owner out")
			}
			return c.call(func(cl *client) error { return c.get(ctx, cl, kind, name, owner) })
		}),
	}
	cmd.Flags().StringVar(&owner, "owner", "", "only this owner's")
	return cmd
}

func kindWords() []string {
	var words []string
	for _, k := range state.Kinds() {
		words = append(words, string(k))
	}
	return words
}

// parseKey reads KIND or KIND/NAME.
func parseKey(arg string) (kind state.Kind, name string, err error) {
	if word, _, ok := strings.Cut(arg, "/"); !ok {
		if kind, ok := state.ParseKind(word); ok {
			return kind, "", nil
		}
	}
	key, err := state.ParseKey(arg)
	if err != nil {
		return "", "", fail(exitUsage, "%w: one of %s", err, strings.Join(kindWords(), ", "))
	}
	return key.Kind, key.Name, nil
}

// withoutKind is a name as its verb takes it: `pools/shop/10.0.0.1:80`, which lbctl prints, is `shop/10.0.0.1:80` for a
// verb of backends. What follows the kind of a pool that is called like the kind itself is an address.
func withoutKind(kind state.Kind, arg string) string {
	word, name, _ := strings.Cut(arg, "/")
	given, ok := state.ParseKind(word)
	isAddress := strings.Contains(name, ":") && !strings.Contains(name, "/")
	if !ok || given != kind || name == "" || isAddress {
		return arg
	}
	return name
}

// oneKey is cobra.ExactArgs(1) for a verb of KIND/NAME, and says so to who writes a space.
func oneKey(cmd *cobra.Command, args []string) error {
	if err := keysApart(args); err != nil {
		return err
	}
	return cobra.ExactArgs(1)(cmd, args)
}

// keysApart refuses a kind and its name as two arguments.
func keysApart(args []string) error {
	if len(args) != 2 {
		return nil
	}
	kind, ok := state.ParseKind(args[0])
	if _, other := state.ParseKind(args[1]); !ok || kind.Single() || other || strings.Contains(args[1], "/") {
		return nil
	}
	return fmt.Errorf("write %s/%s", args[0], args[1])
}

func (c *cli) get(ctx context.Context, cl *client, kind state.Kind, name, owner string) error {
	if name == "" && !kind.Single() {
		resources, err := listAll(ctx, cl, kind, owner)
		if err != nil {
			return err
		}
		values := []*document.Value{}
		for _, r := range resources {
			values = append(values, document.Of(r))
		}
		c.printResources(document.ListOf(values), resources, kind)
		return nil
	}
	answer, err := cl.config.Get(ctx, &lbdv1.GetRequest{Kind: string(kind), Name: name})
	if err != nil {
		return err
	}
	c.printResources(document.Of(answer.GetResource()), []*lbdv1.Resource{answer.GetResource()}, kind)
	for _, o := range answer.GetOverrides() {
		c.say("%s", overrideText(o))
	}
	return nil
}

// listAll reads all pages of a kind.
func listAll(ctx context.Context, cl *client, kind state.Kind, owner string) ([]*lbdv1.Resource, error) {
	var all []*lbdv1.Resource
	request := &lbdv1.ListRequest{Kind: string(kind), Owner: owner, PageSize: pageSize}
	for {
		page, err := cl.config.List(ctx, request)
		if err != nil {
			return nil, err
		}
		all = append(all, page.GetResources()...)
		if request.PageToken = page.GetNextPageToken(); request.PageToken == "" {
			return all, nil
		}
	}
}

func (c *cli) printResources(value *document.Value, resources []*lbdv1.Resource, kind state.Kind) {
	var names []string
	for _, r := range resources {
		key, _ := state.KeyOf(r)
		names = append(names, key.String())
	}
	c.print(result{value: value, names: names, table: func(w *table) {
		w.wideRow(append(headings[kind], "OWNER", "REVISION"), "LABELS", "UPDATED", "ETAG")
		for _, r := range resources {
			cells := append(cells(r), r.GetOwner(), fmt.Sprint(r.GetRevision()))
			w.wideRow(cells, labels(r), moment(r.GetUpdateTime()), r.GetEtag())
		}
	}})
}

// labels are a resource's labels as KEY=VALUE, by key.
func labels(r *lbdv1.Resource) string {
	spec, ok := state.Spec(r).(interface{ GetLabels() map[string]string })
	if !ok {
		return ""
	}
	var all []string
	for k, v := range spec.GetLabels() {
		all = append(all, k+"="+v)
	}
	slices.Sort(all)
	return strings.Join(all, ",")
}

// word is an enum's bare word.
func word(e protoreflect.Enum) string { return document.Word(e.Descriptor(), e.Number()) }

// moment is a time for people: UTC, to the second.
func moment(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return t.AsTime().UTC().Format(time.RFC3339)
}
